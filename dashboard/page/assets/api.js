// What is asked of the API server, and what its errors mean to people.
import { session } from "./session.js";

export const view = "apis/view.ebb.dev/v1alpha1";
export const serving = "apis/serving.knative.dev/v1";
export const system = "knative-serving";

// Refused is an answer that is not what was asked for.
export class Refused extends Error {
  constructor(code, reason, message, retryAfter) {
    super(message);
    Object.assign(this, { code, reason, retryAfter });
  }
}

async function send(path, signal) {
  let answer;
  try {
    answer = await fetch(path, { headers: session.header(), signal, cache: "no-store", redirect: "error" });
  } catch (error) {
    if (signal && signal.aborted) throw error;
    throw new Refused(0, "NoDashboard", "the dashboard does not answer");
  }
  if (answer.ok) return answer;
  let status = {};
  try {
    status = JSON.parse(await answer.text());
  } catch {
    // an answer of something between
  }
  throw new Refused(answer.status, status.reason || "", status.message || answer.statusText || "status " + answer.status, Number(answer.headers.get("Retry-After")) || 0);
}

const query = (parameters) => {
  const text = new URLSearchParams(parameters).toString();
  return text ? "?" + text : "";
};

export async function ask(path, parameters = {}, signal) {
  const answer = await send(path + query(parameters), signal);
  const value = await answer.json();
  const warning = answer.headers.get("Warning");
  if (warning) value.warning = warning.replace(/^299 - "(.*)"$/, "$1");
  return value;
}

// stream calls take with each line of a watch, and returns when it has ended.
export async function stream(path, parameters, signal, take) {
  const answer = await send(path + query({ ...parameters, watch: "true" }), signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) take(JSON.parse(line));
  }
}

// explain says what an error means, and what to do. what is "Services", "this Service" and the like;
// where is a namespace, or "" for all.
export function explain(error, what, where) {
  const details = error.message;
  const say = (title, advice, more = {}) => ({ title, advice, details, ...more });
  switch (true) {
    case error.reason === "NoDashboard":
      return say("The dashboard does not answer.", "It is tried again. If you started it with kubectl ebb dashboard, is that still running?", { passing: true });
    case error.reason === "NoAPIServer":
      return say("The API server does not answer.", "It is tried again.", { passing: true });
    case error.reason === "TooManyPages" || error.code === 429:
      return say("Too many pages are open.", "What you see is not live. It is tried again.", { passing: true });
    case error.code === 401 && error.reason === "SignIn":
      return say("Sign in to go on.", "", { signIn: true });
    case error.code === 401:
      return say("Your token is not accepted.", "It may have expired. Sign in with a new one.", { signIn: true });
    case error.code === 403 && !where:
      return say("You may not read " + what + " of all namespaces.", "Name a namespace in which you may.", { namespace: true });
    case error.code === 403:
      return say("You may not read " + what + " in the namespace " + where + ".", "Is it somebody else’s? Ask for the ClusterRole view there, or choose another namespace.", { namespace: true });
    case error.code === 404:
      return say("There is no such thing as " + what + ".", "", { missing: true });
    case error.code === 503 || error.code === 502 || error.code === 504:
      return say("No autoscaler answers.", "Services go on working with the pods they have; their load and decisions cannot be told. kubectl ebb check says more.", { passing: true });
    default:
      return say("The API server answered with an error.", "It is tried again.", { passing: true });
  }
}
