// The frame of the page: which view is shown, and the keys that work everywhere.
import { html, render, useEffect, useState } from "./html.js";
import { session } from "./session.js";
import { Freshness } from "./parts.js";
import { Services } from "./services.js";

// route reads the part of the address behind the #: "", ns/NAMESPACE, ns/NAMESPACE/SERVICE, cluster.
function route() {
  const [first, namespace = "", name = ""] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  if (first === "cluster") return { page: "cluster" };
  if (first === "ns" && name) return { page: "service", namespace, name };
  return { page: "services", namespace: first === "ns" ? namespace : "" };
}

// Pages that are not the first one are fetched when they are needed.
const later = { service: () => import("./service.js").then((m) => m.ServicePage), cluster: () => import("./cluster.js").then((m) => m.Cluster) };

function App() {
  const [at, setAt] = useState(route());
  const [fresh, setFresh] = useState(null);
  const [life, setLife] = useState(0); // another one after each sign-in
  const [loaded, setLoaded] = useState({ services: Services });
  const [help, setHelp] = useState(false);
  useEffect(() => {
    const moved = () => {
      setAt(route());
      setFresh(null);
      scrollTo(0, 0);
      document.getElementById("main").focus({ preventScroll: true });
    };
    const pressed = (event) => keys(event, setHelp);
    addEventListener("hashchange", moved);
    addEventListener("keydown", pressed);
    return () => {
      removeEventListener("hashchange", moved);
      removeEventListener("keydown", pressed);
    };
  }, []);
  useEffect(() => {
    document.title = (at.name ? at.name + " · " : at.page === "cluster" ? "Cluster · " : at.namespace ? at.namespace + " · " : "") + "Ebb";
    if (!loaded[at.page]) later[at.page]().then((page) => setLoaded((all) => ({ ...all, [at.page]: page })));
  }, [at]);
  const again = () => {
    setFresh(null);
    setLife((n) => n + 1);
  };
  const Page = loaded[at.page];
  return html`
    <a class="skip" href="#main" onClick=${(e) => (e.preventDefault(), document.getElementById("main").focus())}>Skip to the content</a>
    <nav class="bar" aria-label="Pages">
      <a class="brand" href="#/"><img src="icon.svg" alt="" width="22" height="22" />Ebb</a>
      <a href="#/" aria-current=${at.page !== "cluster" ? "page" : undefined}>Services</a>
      <a href="#/cluster" aria-current=${at.page === "cluster" ? "page" : undefined}>Cluster</a>
      <span class="gap"></span>
      <${Freshness} of=${fresh} />
      <button class="quiet" aria-label="Keys" aria-keyshortcuts="?" onClick=${() => setHelp(true)}>?</button>
      ${session.signedIn() && html`<button class="quiet" onClick=${() => (session.signOut(), again())}>Sign out</button>`}
    </nav>
    <main id="main" tabindex="-1">${Page && html`<${Page} key=${[life, at.page, at.namespace, at.name].join("/")} ...${at} onFresh=${(of) => setFresh({ ...of })} onSignedIn=${again} />`}</main>
    ${help && html`<${Keys} close=${() => setHelp(false)} />`}`;
}

function keys(event, setHelp) {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else if (document.querySelector("dialog[open]")) setHelp(false);
    else if (route().name) location.hash = "#/";
    return;
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "?") return setHelp(true);
  if (event.key === "s") return void (location.hash = "#/");
  if (event.key === "c") return void (location.hash = "#/cluster");
  if (event.key === "/") {
    const filter = document.getElementById("filter");
    if (filter) event.preventDefault(), filter.focus();
    return;
  }
  const step = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
  const links = step && [...document.querySelectorAll(".list .row a")];
  if (!links?.length) return;
  const here = links.indexOf(document.activeElement);
  if (here < 0 && event.key.startsWith("Arrow")) return; // it scrolls
  event.preventDefault();
  links[Math.min(Math.max(here + step, 0), links.length - 1)].focus();
}

function Keys({ close }) {
  const rows = [["/", "filter Services"], ["j, k", "next and previous Service"], ["Enter", "open it"], ["Esc", "back"], ["s, c", "Services, Cluster"], ["←, →", "on a chart: move through time"], ["Shift ←, →", "on a chart: from decision to decision"]];
  const open = (element) => element && !element.open && element.showModal();
  return html`<dialog ref=${open} onClose=${close} onClick=${(e) => e.target.tagName === "DIALOG" && close()} aria-labelledby="keys"><h2 id="keys">Keys</h2>
    <dl>${rows.map(([key, what]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl><button onClick=${close}>Close</button></dialog>`;
}

render(html`<${App} />`, document.getElementById("app"));
