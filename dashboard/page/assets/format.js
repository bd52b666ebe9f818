// Figures and times as people read them.
export function number(n) {
  if (n === null || n === undefined || Number.isNaN(n)) return "–";
  const size = Math.abs(n);
  if (size >= 1e6) return trim((n / 1e6).toFixed(size >= 1e7 ? 0 : 1)) + " M";
  if (size >= 1e4) return trim((n / 1e3).toFixed(size >= 1e5 ? 0 : 1)) + " k";
  if (size >= 100 || Number.isInteger(n)) return Math.round(n).toLocaleString("en").replace(",", " ");
  return trim(n.toFixed(size >= 10 ? 1 : 2));
}

const trim = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

export function milliseconds(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms >= 60_000) return trim((ms / 60_000).toFixed(1)) + " min";
  if (ms >= 1000) return trim((ms / 1000).toFixed(ms >= 10_000 ? 0 : 2)) + " s";
  return trim(ms.toFixed(ms >= 10 ? 0 : 1)) + " ms";
}

export function percent(ratio) {
  if (ratio === null || ratio === undefined) return "–";
  if (ratio === 1) return "100 %";
  // 99.97 % is not 100 %.
  const floor = Math.floor(ratio * 10_000) / 100;
  return trim(floor.toFixed(floor >= 99 ? 2 : 1)) + " %";
}

export function bytes(text) {
  const found = /^(\d+(?:\.\d+)?)([KMGT]i?|m)?$/.exec(String(text ?? ""));
  if (!found) return text ? String(text) : "–";
  const unit = { m: 1e-3, K: 1e3, M: 1e6, G: 1e9, T: 1e12, Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40 };
  let n = Number(found[1]) * (unit[found[2]] || 1);
  for (const name of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024) return trim(n.toFixed(n < 10 ? 1 : 0)) + " " + name;
    n /= 1024;
  }
  return trim(n.toFixed(1)) + " TiB";
}

export function ago(from, now) {
  const s = Math.max(0, (now - new Date(from)) / 1000);
  if (s < 60) return Math.floor(s) + " s";
  if (s < 3600) return Math.floor(s / 60) + " min";
  if (s < 86_400 * 2) return Math.floor(s / 3600) + " h";
  return Math.floor(s / 86_400) + " d";
}

// last names a time that ends now.
export function last(seconds) {
  if (seconds < 55) return "The last " + seconds + " seconds";
  const minutes = Math.round(seconds / 60);
  return minutes === 1 ? "The last minute" : "The last " + minutes + " minutes";
}

const two = (n) => String(n).padStart(2, "0");
export const clock = (time) => {
  const t = new Date(time);
  return two(t.getHours()) + ":" + two(t.getMinutes()) + ":" + two(t.getSeconds());
};
export const pods = (n) => (n === 1 ? "1 pod" : number(n) + " pods");
export const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);
