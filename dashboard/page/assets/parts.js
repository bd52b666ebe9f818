// Pieces that several pages show.
import { html, Steady, useEffect, useState } from "./html.js";
import { states } from "./model.js";
import { ago, capital, clock } from "./format.js";
import { explain } from "./api.js";
import { session, withKey } from "./session.js";

export const Badge = ({ state }) => html`<span class=${"badge " + states[state].tone}>${states[state].label}</span>`;

// Spark is the shape of a series; what is not known is a gap.
export class Spark extends Steady {
  render({ values }) {
    const known = (values || []).filter((v) => v !== null);
    if (known.length < 2) return html`<svg class="spark" viewBox="0 0 120 28" aria-hidden="true"></svg>`;
    const top = Math.max(1, ...known);
    const step = 120 / (values.length - 1);
    let line = "";
    let area = "";
    let from = null;
    const close = (i) => {
      if (from !== null) area += "L" + ((i - 1) * step).toFixed(1) + " 27L" + from + " 27Z";
      from = null;
    };
    values.forEach((v, i) => {
      if (v === null) return close(i);
      const point = (i * step).toFixed(1) + " " + (27 - (v / top) * 25).toFixed(1);
      line += (from === null ? "M" : "L") + point;
      area += (from === null ? "M" : "L") + point;
      if (from === null) from = (i * step).toFixed(1);
    });
    close(values.length);
    return html`<svg class="spark" viewBox="0 0 120 28" preserveAspectRatio="none" aria-hidden="true"><path class="area" d=${area} /><path class="line" d=${line} /></svg>`;
  }
}

// useNow is the time, every second.
export function useNow() {
  const [now, set] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => set(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

// Freshness says whether what is shown is of now.
export function Freshness({ of }) {
  const now = useNow();
  if (!of || (!of.heard && !of.error)) return html`<span class="fresh waiting" role="status">Connecting</span>`;
  if (!of.heard && [401, 403].includes(of.error.code)) return null; // the page says what is missing
  const age = now - of.heard;
  if (of.live && age < 25_000) return html`<span class="fresh live" role="status">Live</span>`;
  return html`<span class="fresh stale" role="status">${of.heard ? "Not live: as of " + ago(of.heard, now) + " ago" : "Not live"}</span>`;
}

// Problem is an error, as large as it is grave: all there is, or a line above what was read before.
export function Problem({ error, what, where, name, small, onSignedIn }) {
  const p = explain(error, what, where);
  if (p.signIn) return html`<${SignIn} problem=${error.reason === "SignIn" ? null : p} onSignedIn=${onSignedIn} />`;
  const title = p.missing && name ? "There is no Service " + name + " in the namespace " + where + "." : p.title;
  const advice = p.missing && name ? "It may have been deleted, or its name is another one." : p.advice;
  return html`<section class=${small ? "notice" : "notice large"} role="alert">
    <h2>${title}</h2>
    ${advice && html`<p>${advice}</p>`}
    ${p.namespace && html`<${NamespaceForm} />`}
    ${p.missing && html`<p><a href="#/">All Services</a></p>`}
    <details><summary>What the API server said</summary><code>${error.message}</code></details>
  </section>`;
}

export function NamespaceForm() {
  const go = (event) => {
    event.preventDefault();
    const name = new FormData(event.target).get("namespace").trim();
    if (name) location.hash = "#/ns/" + encodeURIComponent(name);
  };
  return html`<form class="inline" onSubmit=${go}><label>Namespace <input name="namespace" autocapitalize="off" autocomplete="off" spellcheck=${false} required pattern="[a-z0-9]([a-z0-9\\-]*[a-z0-9])?" /></label><button>Show</button></form>`;
}

export function SignIn({ problem, onSignedIn }) {
  const enter = (event) => {
    event.preventDefault();
    session.signIn(new FormData(event.target).get("token"));
    onSignedIn();
  };
  if (withKey) {
    return html`<section class="signin"><h1>${problem ? "Your credentials are not accepted." : "Open the whole address."}</h1>
      <p>${problem ? "The API server does not accept those of your kubeconfig; they may have expired. Renew them and start " : "This page needs the part behind the # of the address that it was started with. Copy it from the terminal of "}<code>kubectl ebb dashboard</code>${problem ? " again." : "."}</p></section>`;
  }
  return html`<section class="signin">
    <h1>${problem ? problem.title : "Sign in"}</h1>
    <p>${problem ? problem.advice : "The page shows what you may read, and changes nothing."}</p>
    <form onSubmit=${enter}>
      <label for="token">Bearer token</label>
      <input id="token" name="token" type="password" autocomplete="off" required autofocus />
      <button>Sign in</button>
    </form>
    ${!window.isSecureContext && html`<p class="caution">This page came without TLS. Whoever is on the way to it can read your token.</p>`}
    <p class="hint">For a ServiceAccount: <code>kubectl create token NAME -n NAMESPACE</code>. The token is kept until you close this tab, and sent to this page’s server only, which hands it to the API server.</p>
  </section>`;
}

export const Figure = ({ label, value, note, tone }) => html`<div class=${"figure " + (tone || "")}><dt>${label}</dt><dd>${value}${note && html`<small>${note}</small>`}</dd></div>`;

// Conditions are those of an object, what is wrong first.
export function Conditions({ of, all, now }) {
  const rows = (of.status?.conditions || []).filter((c) => all || (c.status !== "True" && c.type !== "Active" && c.severity !== "Info"));
  const order = { False: 0, Unknown: 1, True: 2 };
  rows.sort((a, b) => order[a.status] - order[b.status] || a.type.localeCompare(b.type));
  return html`<ul class="conditions">${rows.map(
    (c) => html`<li class=${c.status} key=${c.type}>${c.lastTransitionTime && html`<time title=${clock(c.lastTransitionTime)}>${ago(c.lastTransitionTime, now)}</time>`}<strong>${c.type}</strong> <span class="status">${c.status}</span>
      ${c.reason && html` <span class="reason">${c.reason}</span>`}
      ${c.message && html`<p>${capital(c.message.trim())}</p>`}</li>`,
  )}</ul>`;
}
