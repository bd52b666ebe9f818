// Load, pods and decisions of a Service on one time axis, and the reason at each moment.
import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import { Chart } from "./chart.js";
import { decisions, kind, silence } from "./model.js";
import { clock, last, milliseconds, number, pods } from "./format.js";

const kinds = { steady: "follows the load", up: "reacts to a rise", limit: "held back", zero: "on the way to zero" };
const measures = {
  load: { label: "In flight", series: [["load", "Requests in flight", "load"]], show: number },
  rate: { label: "Requests/s", series: [["requestsPerSecond", "Requests/s", "load"]], show: number },
  latency: { label: "Latency", series: [["p99Ms", "p99", "load"], ["p50Ms", "p50", "second"]], show: milliseconds, single: true },
};

export function Timeline({ service, view, shares }) {
  const [chosen, choose] = useState("");
  const [measure, setMeasure] = useState("load");
  const [at, setAt] = useState(null); // the index of the point under the cursor, null for the newest
  const figure = useRef(null);
  const several = view.revisions.length > 1;
  const one = several ? view.revisions.find((r) => r.name === chosen) : view.revisions[0];
  const series = (one && one.series) || view.series;
  const shown = one ? [one] : view.revisions;
  const allowed = Object.keys(measures).filter((m) => !measures[m].single || (one && one.series?.p99Ms));
  const what = allowed.includes(measure) ? measure : "load";
  const times = useMemo(() => {
    const start = new Date(series.start) / 1000;
    return series.load.map((_, i) => start + i * series.stepSeconds);
  }, [series]);
  const newest = times.length - 1;
  const index = at === null ? newest : Math.min(at, newest);
  const runs = useMemo(() => decisions(shown, new Date(times[0] * 1000)), [view, chosen]);
  const moment = times[index];
  const choice = several && html`<${Choice} label="Revision" value=${one ? one.name : ""} set=${choose} options=${[["", "All"], ...view.revisions.map((r) => [r.name, short(r.name) + share(shares, r.name)])]} />`;
  if (newest < 1) return html`<section class="card timeline"><div class="head"><h2>Load and pods</h2>${choice}</div><p class="empty">${silence(service, (one || view).now)}</p></section>`;

  // The newest moment is now, not the end of its step.
  const when = at === null ? Infinity : moment * 1000;
  const then = runAt(runs, when);
  const value = (name) => series[name]?.[index] ?? null;
  const spoken = clock(moment * 1000) + ", " + number(value("load")) + " in flight, " + value("wanted") + " wanted, " + value("ready") + " ready, " + value("asleep") + " asleep. " + (then ? then.rule + ": " + then.reason : "Nothing was decided.");

  const move = (event) => {
    const jump = (to) => (event.preventDefault(), setAt(to >= newest ? null : Math.max(0, to)));
    const back = event.key === "ArrowLeft";
    if (event.key === "Home") return jump(0);
    if (event.key === "End") return jump(newest);
    if (!back && event.key !== "ArrowRight") return;
    if (!event.shiftKey) return jump(index + (back ? -1 : 1));
    const starts = runs.map((d) => times.findIndex((t) => t * 1000 >= new Date(d.first))).filter((i) => i >= 0);
    jump(back ? Math.max(0, ...starts.filter((i) => i < index)) : Math.min(newest, ...starts.filter((i) => i > index)));
  };
  const cursor = { index: at, set: setAt };
  return html`<section class="card timeline" ref=${figure}>
    <div class="head"><h2>${last(times[newest] - times[0])}</h2>
      ${choice}
      <${Choice} label="Load as" value=${what} set=${setMeasure} options=${allowed.map((m) => [m, measures[m].label])} />
    </div>
    <div class="plots" tabindex="0" role="slider" aria-label="Time" aria-orientation="horizontal" aria-valuemin="0" aria-valuemax=${newest} aria-valuenow=${index} aria-valuetext=${spoken}
      onKeyDown=${move} onBlur=${() => setAt(null)} onMouseLeave=${() => setAt(null)}>
      <h3>${measures[what].label} ${measures[what].series.map(([name, label, tone]) => html`<span class=${"read " + tone} key=${name}>${measures[what].series.length > 1 ? label + " " : ""}${measures[what].show(value(name))}</span>`)}</h3>
      <${Chart} kind=${what} times=${times} data=${measures[what].series.map(([name, , tone]) => ({ values: series[name] || [], tone }))} format=${measures[what].show} cursor=${cursor} height=${130} />
      <h3>Pods <span class="read ready">ready ${number(value("ready"))}</span><span class="read asleep">asleep ${number(value("asleep"))}</span><span class="read wanted">wanted ${number(value("wanted"))}</span></h3>
      <${Chart} kind="pods" times=${times} data=${podSeries(series)} format=${number} cursor=${cursor} height=${120} axis />
      <${Ribbons} revisions=${shown} runs=${runs} times=${times} moment=${at === null ? null : moment} several=${several} set=${setAt} />
    </div>
    <${Why} decision=${then} moment=${at === null ? null : moment} several=${several && !one} />
  </section>`;
}

const short = (name) => name.replace(/^.*-(\d{5})$/, "$1");
const share = (shares, name) => {
  const found = shares.find((s) => s.name === name);
  return found ? " · " + found.percent + " %" : "";
};

// runAt is the run of decisions that held at a time. Of several revisions it is that of the one
// which wants most.
function runAt(runs, when) {
  const newest = new Map();
  for (const d of runs) if (new Date(d.first) <= when) newest.set(d.revision, d);
  return [...newest.values()].reduce((best, d) => (!best || d.want > best.want ? d : best), null);
}

// podSeries is what is drawn: asleep on top of ready, and the line of what is wanted.
function podSeries(s) {
  const top = s.ready.map((r, i) => (r === null || s.asleep[i] === null ? null : r + s.asleep[i]));
  return [{ values: top, tone: "asleep", steps: true, above: true }, { values: s.ready, tone: "ready", steps: true, fill: true }, { values: s.wanted, tone: "wanted", steps: true }];
}

function Choice({ label, value, set, options }) {
  return html`<div class="choice" role="group" aria-label=${label}>${options.map(([key, text]) => html`<button key=${key} aria-pressed=${key === value ? "true" : "false"} onClick=${() => set(key)}>${text}</button>`)}</div>`;
}

// Ribbons show which rule decided when, one for each revision.
function Ribbons({ revisions, runs, times, moment, several, set }) {
  const from = times[0];
  const long = times[times.length - 1] - from;
  const place = (time) => Math.min(Math.max((new Date(time) / 1000 - from) / long, 0), 1) * 100;
  const used = [...new Set(runs.map((d) => kind(d.rule)))];
  return html`<div class="ribbons" aria-hidden="true">
    ${revisions.slice(0, 4).map((r) => {
      const own = runs.filter((d) => d.revision === r.name);
      return html`<div class="ribbon" key=${r.name}><span class="label">${several ? short(r.name) : "Rule"}</span><div class="lane">
        ${own.map((d, i) => {
          const left = place(d.first);
          const right = i + 1 < own.length ? place(own[i + 1].first) : 100;
          return html`<i key=${d.first} class=${"k-" + kind(d.rule)} title=${d.rule + ": " + d.reason} style=${{ left: left + "%", width: Math.max(right - left, 0.15) + "%" }}
            onMouseEnter=${() => set(Math.max(0, times.findIndex((t) => t * 1000 >= new Date(d.first))))}></i>`;
        })}
        ${moment !== null && html`<b style=${{ left: place(moment * 1000) + "%" }}></b>`}
      </div></div>`;
    })}
    <ul class="legend">${used.map((k) => html`<li key=${k}><span class=${"swatch k-" + k}></span>${kinds[k]}</li>`)}</ul>
  </div>`;
}

// Why is a decision with its figures.
function Why({ decision: d, moment, several }) {
  if (!d) return html`<div class="why"><p class="empty">Nothing was decided at this time.</p></div>`;
  const unit = d.metric === "rps" ? " requests/s" : " in flight";
  const [reason, standby] = d.reason.split("; asleep: ");
  const limits = [d.limits.min > 0 && "at least " + d.limits.min, d.limits.max > 0 && "at most " + d.limits.max].filter(Boolean).join(", ") || "none";
  return html`<div class="why">
    <h3>${moment === null ? "Why, now" : "Why, at " + clock(moment * 1000)}${several ? ", " + d.revision : ""} <span class=${"rule k-" + kind(d.rule)}>${d.rule}</span></h3>
    <p class="reason">${reason}</p>
    <dl>
      <div><dt>Stable average</dt><dd>${number(d.stable)}${unit} / ${number(d.target)} = <b>${pods(d.stablePods)}</b></dd></div>
      <div><dt>Panic average</dt><dd>${number(d.panic)}${unit} / ${number(d.target)} = <b>${pods(d.panicPods)}</b>${d.panicking && html` <em>panicking</em>`}</dd></div>
      <div><dt>Limits</dt><dd>${limits}</dd></div>
      <div><dt>Decided on</dt><dd><b>${d.want < 0 ? "nothing yet" : pods(d.want)}</b>${d.want >= 0 && d.formula !== d.want && html`, the load alone asks for ${d.formula}`}</dd></div>
      <div><dt>Since</dt><dd>${clock(d.first)}${d.times > 1 && ", " + number(d.times) + " times alike"}</dd></div>
    </dl>
    ${(standby || d.standby) && html`<p class="standby"><b>Standby</b> ${standby || d.standby.reason}</p>`}
    ${d.incomplete && html`<p class="standby"><b>Incomplete</b> Load may be missing in these averages.</p>`}
  </div>`;
}
