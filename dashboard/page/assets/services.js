// The page of all Services at a glance.
import { html, Steady, useEffect, useMemo, useRef, useState } from "./html.js";
import { serving, view } from "./api.js";
import { follow } from "./live.js";
import { joiner, states } from "./model.js";
import { milliseconds, number, percent } from "./format.js";
import { Badge, NamespaceForm, Problem, Spark } from "./parts.js";

const columns = [
  { id: "name", label: "Service", up: true },
  { id: "rank", label: "State", up: true },
  { id: "load", label: "Requests/s" },
  { id: "p99", label: "p99" },
  { id: "success", label: "Success", up: true },
  { id: "pods", label: "Pods" },
];
const settles = 5000; // rows change places at most so often, so that one can read them

export function Services({ namespace, onFresh, onSignedIn }) {
  const [known, setKnown] = useState(null);
  const [filter, setFilter] = useState({ text: "", state: "" });
  const [sort, setSort] = useState({ by: "rank", up: true });
  useEffect(() => {
    const scope = namespace ? "/namespaces/" + namespace + "/services" : "/services";
    const join = joiner();
    const now = { services: null, views: null };
    const began = performance.now();
    let late = 0;
    const tell = () => {
      const { services, views } = now;
      onFresh(views?.heard ? views : services);
      // Both lists are drawn together, unless one of them is late.
      const early = !(services?.heard || services?.error) || !(views?.heard || views?.error);
      if (early && performance.now() - began < 500) return void (late ||= setTimeout(tell, 500));
      setKnown({
        rows: join(services?.items || new Map(), views?.items || new Map()),
        read: Boolean((services?.heard || services?.error) && (views?.heard || views?.error)),
        servicesError: services?.error, viewsError: views?.error, warning: views?.warning, more: views?.more,
      });
    };
    const stops = [
      follow(serving + scope, {}, (state) => ((now.services = state), tell()), { resume: true }),
      follow(view + scope, {}, (state) => ((now.views = state), tell()), { every: 1000 }),
    ];
    setKnown(null);
    return () => {
      clearTimeout(late);
      stops.forEach((stop) => stop());
    };
  }, [namespace]);

  const order = useOrder(known?.rows || [], filter, sort);
  // What one can see comes first, the rest in the next frame.
  const [whole, setWhole] = useState(false);
  useEffect(() => {
    if (known?.read && !whole) requestAnimationFrame(() => setTimeout(() => setWhole(true)));
  }, [known?.read]);
  if (!known || (!known.read && !known.rows.length && !known.servicesError)) return html`<p class="loading" role="status">Reading Services …</p>`;
  const error = known.servicesError || known.viewsError;
  if (error && !known.rows.length && (error.code === 401 || error === known.servicesError)) {
    return html`<${Problem} error=${error} what="Services" where=${namespace} onSignedIn=${onSignedIn} />`;
  }
  return html`
    ${error && html`<${Problem} small error=${error} what=${error === known.servicesError ? "Services" : "the load of Services"} where=${namespace} onSignedIn=${onSignedIn} />`}
    ${known.warning && html`<p class="notice" role="status">${known.warning}</p>`}
    ${known.more > 0 && html`<p class="notice" role="status">${number(known.more)} more Services are not shown. Choose a namespace.</p>`}
    <${Tally} rows=${known.rows} namespace=${namespace} />
    ${known.rows.length === 0 ? html`<${Nothing} namespace=${namespace} />` : html`
      <${Tools} rows=${known.rows} filter=${filter} setFilter=${setFilter} shown=${order.length} />
      <div class="list" role="table" aria-label="Services" aria-rowcount=${order.length + 1}>
        <div class="row head" role="row">
          ${columns.map((c) => html`<div role="columnheader" key=${c.id} class=${"c-" + c.id} aria-sort=${sort.by === c.id ? (sort.up ? "ascending" : "descending") : "none"}>
            <button onClick=${() => setSort({ by: c.id, up: sort.by === c.id ? !sort.up : Boolean(c.up) })}>${c.label}</button></div>`)}
          <div role="columnheader" class="c-why">Why</div>
        </div>
        ${(whole ? order : order.slice(0, 30)).map((row) => html`<${Row} key=${row.key} row=${row} />`)}
      </div>
      ${order.length === 0 && html`<p class="empty">Nothing matches. <button class="link" onClick=${() => setFilter({ text: "", state: "" })}>Show all</button></p>`}`}`;
}

// useOrder is the rows that the filter lets through, in an order that holds for a while.
function useOrder(rows, filter, sort) {
  const last = useRef({ at: 0, places: new Map() });
  const settings = JSON.stringify([filter, sort]);
  return useMemo(() => {
    const text = filter.text.toLowerCase();
    const found = rows.filter((r) => (!filter.state || r.state === filter.state) && (!text || r.key.includes(text) || r.rule.includes(text)));
    const kept = last.current;
    const fresh = kept.settings !== settings || Date.now() - kept.at > settles;
    const sign = sort.up ? 1 : -1;
    const natural = (a, b) => {
      const x = a[sort.by], y = b[sort.by];
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y) || (sort.by === "rank" ? b.load - a.load : 0) || a.key.localeCompare(b.key);
    };
    if (!fresh) {
      const place = (r) => kept.places.get(r.key) ?? Infinity;
      return found.sort((a, b) => (place(a) === place(b) ? natural(a, b) : place(a) - place(b)));
    }
    found.sort(natural);
    last.current = { at: Date.now(), settings, places: new Map(found.map((r, i) => [r.key, i])) };
    return found;
  }, [rows, settings]);
}

function Tally({ rows, namespace }) {
  let load = 0, ready = 0, asleep = 0, needy = 0;
  for (const r of rows) {
    load += Math.max(r.load, 0);
    ready += r.view?.now.replicas.ready || 0;
    asleep += r.view?.now.replicas.asleep || 0;
    if (states[r.state].tone === "bad" || states[r.state].tone === "warn") needy++;
  }
  return html`<header class="tally">
    <h1>${namespace ? html`Services of <b>${namespace}</b>` : "Services"}</h1>
    <p><b>${number(rows.length)}</b> ${rows.length === 1 ? "Service" : "Services"}<span class="sep">·</span><b>${number(load)}</b> requests/s<span class="sep">·</span><b>${number(ready)}</b> ready<span class="sep">·</span><b>${number(asleep)}</b> asleep${needy > 0 && html`<span class="sep">·</span><b class="warn">${needy}</b> to look at`}</p>
    ${namespace && html`<a href="#/">All namespaces</a>`}
  </header>`;
}

function Tools({ rows, filter, setFilter, shown }) {
  const counts = {};
  for (const r of rows) counts[r.state] = (counts[r.state] || 0) + 1;
  return html`<div class="tools" role="search">
    <input type="search" id="filter" placeholder="Filter by name, namespace or rule" aria-label="Filter Services" aria-keyshortcuts="/" value=${filter.text} autocapitalize="off" spellcheck=${false}
      onInput=${(e) => setFilter({ ...filter, text: e.target.value })} />
    <div class="chips" role="group" aria-label="Filter by state">
      ${Object.keys(states).filter((s) => counts[s] || filter.state === s).map((s) => html`<button key=${s} class=${"chip " + states[s].tone} aria-pressed=${filter.state === s ? "true" : "false"}
        onClick=${() => setFilter({ ...filter, state: filter.state === s ? "" : s })}>${states[s].label} <span>${counts[s] || 0}</span></button>`)}
    </div>
    <span class="visually-hidden" role="status">${shown} of ${rows.length} are shown</span>
  </div>`;
}

class Row extends Steady {
  render({ row }) {
    const now = row.view?.now;
    const r = now?.replicas;
    const awake = r ? r.wanted - r.asleep : 0;
    return html`<div class=${"row" + (row.rank < 3 ? " needy" : "") + (now ? "" : " silent")} role="row" title=${row.why}>
      <div role="cell" class="c-name"><a href=${"#/ns/" + row.namespace + "/" + row.name}>${row.name}</a><small>${row.namespace}</small></div>
      <div role="cell" class="c-rank"><${Badge} state=${row.state} /></div>
      <div role="cell" class="c-load"><${Spark} values=${row.view?.series.requestsPerSecond} /><span>${number(now?.requestsPerSecond)}</span></div>
      <div role="cell" class="c-p99"><span class="of">p99 </span>${milliseconds(now?.p99Ms)}</div>
      <div role="cell" class=${"c-success" + (row.success < 0.99 ? " low" : "")}><span class="of">success </span>${percent(now?.successRatio)}</div>
      <div role="cell" class="c-pods">${r ? html`<b>${r.ready}</b>${awake !== r.ready && html` <small>of ${awake}</small>`}${r.asleep > 0 && html` <small class="asleep">${r.asleep} asleep</small>`}<span class="of"> ${r.ready === 1 && !r.asleep && awake === r.ready ? "pod" : "pods"}</span>` : "–"}</div>
      <div role="cell" class="c-why"><span>${row.why}</span></div>
    </div>`;
  }
}

const Nothing = ({ namespace }) => html`<section class="notice large"><h2>${namespace ? "There is no Service in the namespace " + namespace + "." : "There is no Service yet."}</h2>
  <p>${namespace ? "Choose another one." : "Apply one, and it appears here by itself."}</p>${namespace && html`<${NamespaceForm} />`}</section>`;
