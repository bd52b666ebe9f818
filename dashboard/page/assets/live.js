// A list that stays true: it is read, then watched, and read anew when the watch has ended.
import { ask, stream } from "./api.js";

// A stream that says nothing for so long is given up. Autoscalers send a bookmark each 15 s, API
// servers about each minute.
const silence = { view: 40_000, object: 150_000 };
const slowest = 60_000;

// follow calls changed({items, error, heard, first}) when something is news, until stop() is called.
// items is a Map by namespace/name, the same one each time. A page that cannot be seen asks nothing.
export function follow(path, parameters, changed, { every = 250, resume = false } = {}) {
  const items = new Map();
  const state = { items, error: null, heard: 0, live: false, warning: "", more: 0 };
  let running = null; // of the attempt that goes on
  let timer = 0;
  let wake = 0;
  let failures = 0;
  let stopped = false;
  const key = (object) => object.metadata.namespace + "/" + object.metadata.name;
  const tell = () => {
    clearTimeout(timer);
    timer = 0;
    if (!stopped) changed(state);
  };
  const soon = () => {
    timer ||= setTimeout(tell, every);
  };

  async function attempt() {
    clearTimeout(wake);
    running = new AbortController();
    const { signal } = running;
    let watchdog = 0;
    const guard = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => running && running.signal === signal && running.abort(), resume ? silence.object : silence.view);
    };
    const heard = () => {
      state.heard = Date.now();
      guard();
    };
    try {
      guard();
      const list = await ask(path, resume ? { ...parameters, resourceVersion: "0" } : parameters, signal);
      items.clear();
      for (const item of list.items) items.set(key(item), item);
      Object.assign(state, { error: null, live: true, warning: list.warning || "", more: list.metadata.remainingItemCount || 0 });
      heard();
      tell();
      const from = resume ? { resourceVersion: list.metadata.resourceVersion, allowWatchBookmarks: "true" } : {};
      await stream(path, { ...parameters, ...from }, signal, ({ type, object }) => {
        failures = 0;
        heard();
        if (type === "BOOKMARK") return soon();
        if (type === "ERROR") throw new Error("the watch ended: " + object.message);
        if (type === "DELETED") items.delete(key(object));
        else items.set(key(object), object);
        soon();
      });
      again(1000);
    } catch (error) {
      if (stopped || document.hidden) return;
      failures++;
      Object.assign(state, { live: false, error: signal.aborted ? null : error });
      tell();
      const wait = Math.min(1000 * 2 ** Math.min(failures, 6), slowest);
      again(Math.max(wait, (error.retryAfter || 0) * 1000));
    } finally {
      clearTimeout(watchdog);
      running = null;
    }
  }

  // Pages do not come back all at once.
  function again(after) {
    if (!stopped && !document.hidden) wake = setTimeout(attempt, after * (0.75 + Math.random() / 2));
  }

  function seen() {
    if (document.hidden) {
      clearTimeout(wake);
      if (running) running.abort();
      state.live = false;
    } else if (!running) {
      failures = 0;
      attempt();
    }
  }

  document.addEventListener("visibilitychange", seen);
  addEventListener("online", seen);
  if (!document.hidden) attempt();
  return function stop() {
    stopped = true;
    document.removeEventListener("visibilitychange", seen);
    removeEventListener("online", seen);
    clearTimeout(wake);
    clearTimeout(timer);
    if (running) running.abort();
  };
}

// repeat asks again and again, and calls changed(value, error).
export function repeat(question, every, changed) {
  let timer = 0;
  let stopped = false;
  async function once() {
    clearTimeout(timer);
    if (!document.hidden) {
      try {
        const value = await question();
        if (!stopped) changed(value, null);
      } catch (error) {
        if (!stopped) changed(null, error);
      }
    }
    if (!stopped) timer = setTimeout(once, every * (0.9 + Math.random() / 5));
  }
  once();
  document.addEventListener("visibilitychange", once);
  return function stop() {
    stopped = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", once);
  };
}
