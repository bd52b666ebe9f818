// The page of one Service: how it does, and why it has as many pods as it has.
import { html, useEffect, useMemo, useState } from "./html.js";
import { ask, serving, view } from "./api.js";
import { follow, repeat } from "./live.js";
import { answer, compared, split, stateOf } from "./model.js";
import { ago, clock, milliseconds, number, percent } from "./format.js";
import { Badge, Conditions, Figure, Problem, useNow } from "./parts.js";
import { Chart } from "./chart.js";
import { Timeline } from "./timeline.js";
import { ColdStarts } from "./coldstarts.js";

export function ServicePage({ namespace, name, onFresh, onSignedIn }) {
  const [known, setKnown] = useState({});
  const [more, setMore] = useState({ revisions: [], events: [] });
  useEffect(() => {
    const one = { fieldSelector: "metadata.name=" + name };
    const scope = "/namespaces/" + namespace + "/services";
    const key = namespace + "/" + name;
    const take = (part) => (state) => {
      if (part === "view") onFresh(state);
      setKnown((all) => ({ ...all, [part]: state.items.get(key), [part + "Error"]: state.error, [part + "Read"]: Boolean(state.heard || state.error) }));
    };
    const stops = [
      follow(serving + scope, one, take("service"), { resume: true }),
      follow(view + scope, one, take("view"), { every: 500 }),
      repeat(() => gather(namespace, name), 15_000, (value) => value && setMore(value)),
    ];
    return () => stops.forEach((stop) => stop());
  }, []);
  const now = useNow();
  const { service, view: seen } = known;
  const error = known.serviceError || known.viewError;
  if (!service && !seen) {
    if (error && (known.serviceError || known.serviceRead)) return html`<${Problem} error=${error} what="Services" where=${namespace} onSignedIn=${onSignedIn} />`;
    if (known.serviceRead && known.viewRead) return html`<${Problem} error=${{ code: 404, message: "services.serving.knative.dev \"" + name + "\" not found" }} name=${name} where=${namespace} />`;
    return html`<p class="loading" role="status">Reading ${name} …</p>`;
  }
  const state = stateOf(service, seen);
  const url = service?.status?.url;
  return html`
    ${error && html`<${Problem} small error=${error} what=${error === known.serviceError ? "this Service" : "the load of this Service"} where=${namespace} onSignedIn=${onSignedIn} />`}
    <header class="of">
      <p class="crumbs"><a href="#/">Services</a> / <a href=${"#/ns/" + namespace}>${namespace}</a></p>
      <h1>${name} <${Badge} state=${state} /></h1>
      <p class="answer">${answer(service, seen)}</p>
      ${url && html`<p class="url"><a href=${url} rel="noreferrer noopener" target="_blank">${url}</a></p>`}
    </header>
    ${seen ? html`<${Figures} now=${seen.now} /><${Timeline} service=${service} view=${seen} shares=${split(service)} /><${Rollout} view=${seen} />` : !error && html`<p class="notice plain">No autoscaler of Ebb decides for this Service: it has no Revision yet that could run, or its class is hpa. So there is no load to show.</p>`}
    <div class="columns">
      ${service?.status?.traffic?.length > 0 && html`<${Traffic} service=${service} view=${seen} />`}
      <section class="card"><h2>Conditions</h2>
        ${service && html`<${Conditions} of=${service} all now=${now} />`}
        ${more.revisions.map((r) => html`<${RevisionTrouble} key=${r.metadata.name} revision=${r} now=${now} />`)}
      </section>
    </div>
    ${seen && html`<${ColdStarts} starts=${seen.coldStarts || []} now=${now} />`}
    <div class="columns">
      ${seen && html`<${Refusals} refusals=${seen.refusals || []} several=${seen.revisions.length > 1} now=${now} />`}
      <${Changes} events=${more.events} denied=${more.denied} now=${now} />
    </div>`;
}

// gather reads what changes seldom: the Revisions and the newest events about their scale.
async function gather(namespace, name) {
  const at = serving + "/namespaces/" + namespace + "/revisions";
  const { items: revisions } = await ask(at, { labelSelector: "serving.knative.dev/service=" + name });
  revisions.sort((a, b) => new Date(b.metadata.creationTimestamp) - new Date(a.metadata.creationTimestamp));
  const newest = revisions.slice(0, 3);
  try {
    const lists = await Promise.all(newest.map((r) =>
      ask("api/v1/namespaces/" + namespace + "/events", { fieldSelector: "involvedObject.kind=PodAutoscaler,involvedObject.name=" + r.metadata.name, limit: "50" })));
    const events = lists.flatMap((l) => l.items).map((e) => ({
      at: e.series?.lastObservedTime || e.lastTimestamp || e.eventTime, reason: e.reason, message: e.message, of: e.involvedObject.name, key: e.metadata.uid || e.metadata.name }));
    return { revisions: newest, events: events.sort((a, b) => new Date(b.at) - new Date(a.at)).slice(0, 8) };
  } catch (error) {
    return { revisions: newest, events: [], denied: error.code === 403 };
  }
}

function RevisionTrouble({ revision, now }) {
  const bad = (revision.status?.conditions || []).some((c) => c.status !== "True" && c.type !== "Active" && c.severity !== "Info");
  return bad && html`<h3>Revision ${revision.metadata.name}</h3><${Conditions} of=${revision} now=${now} />`;
}

function Figures({ now }) {
  const { replicas: r } = now;
  const awake = r.wanted - r.asleep;
  const notes = [awake !== r.ready && "of " + awake + " wanted", r.starting > 0 && r.starting + " starting", r.asleep > 0 && r.asleep + " asleep"].filter(Boolean);
  return html`<dl class="figures">
    <${Figure} label="Requests/s" value=${number(now.requestsPerSecond)} />
    <${Figure} label="p50" value=${milliseconds(now.p50Ms)} />
    <${Figure} label="p99" value=${milliseconds(now.p99Ms)} />
    <${Figure} label="Success" value=${percent(now.successRatio)} tone=${now.successRatio !== undefined && now.successRatio < 0.99 ? "low" : ""} />
    <${Figure} label="In flight" value=${number(now.inFlight)} note=${now.queued >= 1 && number(now.queued) + " queued"} tone=${now.queued >= 1 ? "warn" : ""} />
    <${Figure} label="Pods ready" value=${r.ready} note=${notes.join(", ")} />
  </dl>`;
}

// Rollout is what the judge of one counts of the newest two revisions, in the same seconds. The first
// sentence of the page has the verdict.
function Rollout({ view: seen }) {
  const [at, setAt] = useState(null);
  const { times, of } = useMemo(() => compared(seen.revisions.filter((r) => r.judged?.seconds?.length).slice(-2)), [seen]);
  if (of.length < 2 || times.length < 2) return null;
  const index = at === null ? null : Math.min(at, times.length - 1);
  const read = (r) => (index === null ? number(r.failed) + " of " + number(r.requests) : r.percents[index] === null ? "–" : number(r.percents[index]) + " %");
  const slow = (r) => milliseconds(index === null ? r.p99 : r.times99[index]);
  const tones = ["second", "load"];
  const cursor = { index, set: setAt };
  return html`<section class="card timeline rollout" onMouseLeave=${() => setAt(null)}><div class="head"><h2>Rollout</h2></div>
    <h3>Failed requests ${of.map((r, i) => html`<span class=${"read " + tones[i]} key=${r.name}>${r.name} ${read(r)}</span>`)}</h3>
    <${Chart} kind="failed" times=${times} data=${of.map((r, i) => ({ values: r.percents, tone: tones[i] }))} format=${(n) => number(n) + " %"} cursor=${cursor} height=${110} />
    <h3>p99 ${of.map((r, i) => html`<span class=${"read " + tones[i]} key=${r.name}>${r.name} ${slow(r)}</span>`)}</h3>
    <${Chart} kind="p99" times=${times} data=${of.map((r, i) => ({ values: r.times99, tone: tones[i] }))} format=${milliseconds} cursor=${cursor} height=${110} axis />
  </section>`;
}

function Traffic({ service, view: seen }) {
  const shares = split(service);
  const of = (name) => seen?.revisions.find((r) => r.name === name);
  return html`<section class="card"><h2>Traffic</h2>
      ${shares.length > 1 && html`<div class="split" aria-hidden="true">${shares.filter((s) => s.percent > 0).map((s, i) => html`<span key=${s.name} class=${"share-" + (i % 4)} style=${{ flexGrow: s.percent }}></span>`)}</div>`}
      <table class="plain"><thead><tr><th>Revision</th><th class="n">Share</th><th class="n">Requests/s</th><th class="n">p99</th><th class="n">Pods</th></tr></thead><tbody>
        ${shares.map((s, i) => {
          const r = of(s.name);
          return html`<tr key=${s.name}><td>${shares.length > 1 && html`<span class=${"dot share-" + (i % 4)} aria-hidden="true"></span>`}${s.name}${s.tags.map((t) => html` <span class="tag" key=${t}>${t}</span>`)}</td>
            <td class="n">${s.percent} %</td><td class="n">${number(r?.now.requestsPerSecond)}</td><td class="n">${milliseconds(r?.now.p99Ms)}</td>
            <td class="n">${r ? r.now.replicas.ready : "–"}${r?.now.replicas.asleep > 0 && html` <small class="asleep">+${r.now.replicas.asleep}</small>`}</td></tr>`;
        })}
      </tbody></table>
  </section>`;
}

function Refusals({ refusals, several, now }) {
  return html`<section class="card"><h2>Refused requests</h2>
    ${refusals.length === 0 ? html`<p class="empty">None of the newest requests was refused.</p>` : html`<ul class="lines">
      ${refusals.map((r) => html`<li key=${r.at + r.name + r.status}><time title=${clock(r.at)}>${ago(r.at, now)} ago</time>
        <p><b>${r.status || "cut off"}</b>${r.count > 1 && html` <span class="times">× ${number(r.count)}</span>`} ${r.reason}</p>
        <small>by ${r.by} ${r.name}${several ? ", for " + r.revision : ""}</small></li>`)}</ul>`}
  </section>`;
}

function Changes({ events, denied, now }) {
  return html`<section class="card"><h2>Changes of the scale</h2>
    ${denied ? html`<p class="empty">You may not read events of this namespace.</p>` : events.length === 0 ? html`<p class="empty">No event is kept.</p>` : html`<ul class="lines">
      ${events.map((e) => html`<li key=${e.key}><time title=${clock(e.at)}>${ago(e.at, now)} ago</time><p><b>${e.reason}</b> ${e.message}</p><small>${e.of}</small></li>`)}</ul>`}
  </section>`;
}
