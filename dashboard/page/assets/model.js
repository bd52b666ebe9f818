// What a Service does, in a word and in a sentence. Functions of what the API told; nothing is asked
// or kept here.
import { number, pods } from "./format.js";

export const condition = (object, type) => (object?.status?.conditions || []).find((c) => c.type === type);

// The states, those that need somebody first.
export const states = {
  broken: { label: "Not ready", tone: "bad" },
  queued: { label: "Queueing", tone: "warn" },
  limited: { label: "At its limit", tone: "warn" },
  starting: { label: "Starting", tone: "busy" },
  growing: { label: "Scaling up", tone: "busy" },
  serving: { label: "Serving", tone: "good" },
  asleep: { label: "Asleep", tone: "calm" },
  zero: { label: "At zero", tone: "calm" },
  unknown: { label: "No data", tone: "none" },
};

const bounded = new Set(["max-scale", "max-scale-up-rate"]);

// main is the revision whose decision stands for the Service: the one with most requests.
export function main(view) {
  return view?.revisions?.reduce((best, r) => (!best || weight(r) > weight(best) ? r : best), null) || null;
}
const weight = (r) => r.now.inFlight * 1e6 + r.now.replicas.wanted * 1e3 + (r.decision ? 1 : 0);

export function stateOf(service, view) {
  const ready = condition(service, "Ready");
  if (ready && ready.status === "False") return "broken";
  if (!view) return ready && ready.status !== "True" ? "starting" : "unknown";
  const { replicas, queued } = view.now;
  const decision = main(view)?.decision;
  if (decision && bounded.has(decision.rule) && decision.formula > decision.want) return "limited";
  if (queued >= 1 && replicas.ready > 0) return "queued";
  const awake = replicas.wanted - replicas.asleep;
  if (replicas.starting > 0 || replicas.ready < awake) return replicas.ready > 0 ? "growing" : "starting";
  if (replicas.ready > 0) return "serving";
  if (replicas.asleep > 0) return "asleep";
  return "zero";
}

// answer is why a Service has as many pods as it has, as `kubectl ebb explain` says it.
export function answer(service, view) {
  const ready = condition(service, "Ready");
  if (ready && ready.status !== "True") {
    return (ready.status === "False" ? "Not ready: " : "Not ready yet: ") + (ready.message?.trim() || ready.reason || "no reason is known").replace(/\.$/, "") + ".";
  }
  const of = main(view);
  if (!of?.decision) return "Nothing was decided yet.";
  const { replicas } = view.now;
  const awake = Math.max(replicas.wanted - replicas.asleep, 0);
  let has;
  if (awake === 0 && replicas.asleep > 0) has = "Has " + pods(replicas.asleep) + " asleep; the next request wakes one";
  else if (awake === 0) has = "Is at zero; the next request starts a pod";
  else if (replicas.ready < awake) has = "Wants " + pods(awake) + " and has " + replicas.ready + " ready";
  else has = "Has " + pods(replicas.ready);
  if (awake > 0 && replicas.asleep > 0) has += ", and " + replicas.asleep + " asleep";
  if (view.now.queued >= 1) has += ", and " + number(Math.round(view.now.queued)) + " requests wait for a free slot";
  const why = of.decision.reason.split(" (")[0].split("; asleep: ")[0];
  return view.revisions.length > 1 ? has + ". Most requests go to " + of.name + ": " + why + "." : has + ": " + why + ".";
}

// silence is why there are no figures to draw, of a Service or of one of its revisions.
export function silence(service, now) {
  if (now.replicas.wanted > 0 || now.replicas.ready > 0 || now.inFlight > 0) return "The first figures come in a few seconds.";
  if (service && !service.status?.latestReadyRevisionName) return "There was never a figure, because no pod was ever ready. " + answer(service);
  return "The autoscaler remembers no pod and no request. It looks back ten minutes.";
}

// split is the traffic of a Service by revision, the largest share first.
export function split(service) {
  const shares = new Map();
  for (const t of service?.status?.traffic || []) {
    if (!t.revisionName) continue;
    const share = shares.get(t.revisionName) || { name: t.revisionName, percent: 0, tags: [] };
    share.percent += t.percent || 0;
    if (t.tag) share.tags.push(t.tag);
    shares.set(t.revisionName, share);
  }
  return [...shares.values()].sort((a, b) => b.percent - a.percent || a.name.localeCompare(b.name));
}

// kind groups rules by what they do to a scale; it is the colour of a mark.
export function kind(rule) {
  if (["panic-window", "burst", "queue", "activation-scale", "max-scale-up-rate", "activating"].includes(rule)) return "up";
  if (["max-scale", "activation-timeout", "missing-data", "no-data"].includes(rule)) return "limit";
  if (rule === "zero" || rule === "hand-over" || rule.startsWith("scale-to-zero") || rule === "stable-window-before-zero") return "zero";
  return "steady";
}

// quantile is the end of the bucket in which it lies, in milliseconds; see Second in api/view.
function quantile(buckets, q) {
  const all = buckets.reduce((n, b) => n + (b || 0), 0);
  if (all === 0) return null;
  let passed = 0;
  const at = buckets.findIndex((b) => (passed += b || 0) >= q * all);
  return 0.262144 * 2 ** (at / 2);
}

// merged are the buckets of some seconds.
function merged(seconds) {
  const out = [];
  for (const s of seconds) (s.buckets || []).forEach((n, i) => (out[(s.firstBucket || 0) + i] = (out[(s.firstBucket || 0) + i] || 0) + n));
  return Array.from(out);
}

// compared is what the judge of a rollout counts of some revisions: the percent that failed in each
// second and the 99th percentile of their times, on one axis, and those of all seconds.
export function compared(revisions) {
  const second = (s) => Math.round(new Date(s.at) / 1000);
  const times = [...new Set(revisions.flatMap((r) => r.judged.seconds.map(second)))].sort((a, b) => a - b);
  const of = revisions.map((r) => {
    const known = new Map(r.judged.seconds.map((s) => [second(s), s]));
    const failed = r.judged.seconds.reduce((n, s) => n + s.failed, 0);
    const percents = times.map((t) => {
      const s = known.get(t);
      return s && s.good + s.failed > 0 ? (100 * s.failed) / (s.good + s.failed) : null;
    });
    const times99 = times.map((t) => (known.has(t) ? quantile(merged([known.get(t)]), 0.99) : null));
    const requests = r.judged.seconds.reduce((n, s) => n + s.good, failed);
    return { name: r.name, requests, failed, percents, times99, p99: quantile(merged(r.judged.seconds), 0.99) };
  });
  return { times, of };
}

// decisions are those of some revisions within a time, the oldest first.
export function decisions(revisions, from) {
  return revisions
    .flatMap((r) => (r.history || []).map((d) => ({ ...d, revision: r.name })))
    .filter((d) => new Date(d.last) >= from)
    .sort((a, b) => new Date(a.first) - new Date(b.first));
}

// rows joins Services and what is known of their load. Those that have not changed stay the same
// objects, so that they are not drawn again.
export function joiner() {
  let before = new Map();
  return function rows(services, views) {
    const after = new Map();
    for (const key of new Set([...services.keys(), ...views.keys()])) {
      const service = services.get(key);
      const view = views.get(key);
      const old = before.get(key);
      after.set(key, old && old.service === service && old.view === view ? old : row(key, service, view));
    }
    before = after;
    return [...after.values()];
  };
}

function row(key, service, view) {
  const [namespace, name] = key.split("/");
  const state = stateOf(service, view);
  const now = view?.now;
  return {
    key, namespace, name, service, view, state,
    rank: Object.keys(states).indexOf(state === "growing" ? "serving" : state), // or rows would hop
    load: now ? now.requestsPerSecond : -1,
    pods: now ? now.replicas.ready + now.replicas.asleep / 1000 : -1,
    p99: now?.p99Ms ?? -1,
    success: now?.successRatio ?? 2,
    why: state === "broken" ? condition(service, "Ready")?.message || condition(service, "Ready")?.reason || "" : main(view)?.decision?.reason || "",
    rule: main(view)?.decision?.rule || "",
  };
}
