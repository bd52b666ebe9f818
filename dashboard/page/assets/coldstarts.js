// The newest cold starts, each with its phases one after another.
import { html } from "./html.js";
import { ago, clock, milliseconds } from "./format.js";

const phases = {
  decide: "the autoscaler asks for a pod",
  schedule: "a node is chosen",
  pull: "image, sandbox and containers",
  start: "the program starts",
  announce: "the pod says that it is ready",
  forward: "the request is answered",
};

export function ColdStarts({ starts, now }) {
  if (starts.length === 0) {
    return html`<section class="card"><h2>Cold starts</h2><p class="empty">No request had to wait for a pod from zero.</p></section>`;
  }
  const longest = Math.max(...starts.map((s) => s.totalMs));
  const sorted = starts.map((s) => s.totalMs).sort((a, b) => a - b);
  const median = sorted[Math.floor((sorted.length - 1) / 2)];
  return html`<section class="card"><h2>Cold starts <small>${starts.length === 1 ? "the newest one" : "the newest " + starts.length + ", median " + milliseconds(median)}</small></h2>
    <ul class="legend">${Object.entries(phases).map(([name, what]) => html`<li key=${name} title=${what}><span class=${"swatch p-" + name}></span>${name}</li>`)}</ul>
    <div class="falls">${starts.map((s) => html`<${Fall} key=${s.at + s.pod} start=${s} longest=${longest} now=${now} />`)}</div>
  </section>`;
}

function Fall({ start, longest, now }) {
  const share = (ms) => Math.max(0, (100 * ms) / longest) + "%";
  return html`<details class="fall">
    <summary><time title=${clock(start.at)}>${ago(start.at, now)} ago</time>
      <span class="track" aria-hidden="true">${start.phases.map((p) => html`<i key=${p.name} class=${"p-" + p.name} style=${{ left: share(p.startMs), width: share(p.durationMs) }}></i>`)}</span>
      <b>${milliseconds(start.totalMs)}</b></summary>
    <table class="plain"><tbody>${start.phases.map((p) => html`<tr key=${p.name}><td><span class=${"swatch p-" + p.name}></span>${p.name}</td><td class="n">${milliseconds(p.durationMs)}</td><td class="what">${phases[p.name]}</td></tr>`)}</tbody></table>
    <p class="meta">${start.revision}, pod ${start.pod}${start.traceID && html`, trace <code>${start.traceID}</code>`}${!start.complete && ". When the pod was asked for and scheduled is not known; that time is in pull."}${start.pulled && ". The node did not have an image of the pod and pulled it."}</p>
  </details>`;
}
