// The page of the cluster: Ebb's components, what they may take, and the nodes.
import { html, useEffect, useState } from "./html.js";
import { ask, explain, system } from "./api.js";
import { repeat } from "./live.js";
import { bytes, number } from "./format.js";
import { Problem } from "./parts.js";

const apps = "apis/apps/v1/namespaces/" + system;
const parts = ["deployments", "agent", "nodes"];
const paths = { deployments: apps + "/deployments", agent: apps + "/daemonsets/node-agent", nodes: "api/v1/nodes" };

export function Cluster({ onFresh, onSignedIn }) {
  const [known, setKnown] = useState(null);
  useEffect(() => repeat(read, 10_000, (value) => {
    setKnown(value);
    const failed = parts.find((p) => value[p + "Error"] && ![403, 404].includes(value[p + "Error"].code));
    onFresh({ heard: Date.now(), live: !failed, error: failed });
  }), []);
  if (!known) return html`<p class="loading" role="status">Reading the cluster …</p>`;
  const errors = parts.map((p) => known[p + "Error"]);
  if (errors.every(Boolean) && errors[0].code !== 403) return html`<${Problem} error=${errors[0]} what="the components of Ebb" where=${system} onSignedIn=${onSignedIn} />`;
  return html`<header class="tally"><h1>Cluster</h1><p>${summary(known)}</p></header>
    <section class="card"><h2>Components</h2>${known.deployments ? html`<${Components} deployments=${known.deployments.items} agent=${known.agent} agentError=${known.agentError} />` : html`<${Unread} error=${known.deploymentsError} what="the components of Ebb" />`}</section>
    ${known.deployments && html`<section class="card"><h2>Budgets <small>what each replica may take</small></h2><${Budgets} deployments=${known.deployments.items} agent=${known.agent} /></section>`}
    <section class="card"><h2>Nodes</h2>${known.nodes ? html`<${Nodes} nodes=${known.nodes.items} agent=${known.agent} />` : html`<${Unread} error=${known.nodesError} what="nodes" />`}</section>`;
}

// read asks for each part, because somebody may read one and not another.
async function read() {
  const found = {};
  await Promise.all(parts.map(async (part) => {
    try {
      found[part] = await ask(paths[part]);
    } catch (error) {
      found[part + "Error"] = error;
    }
  }));
  return found;
}

function summary({ deployments, nodes }) {
  const away = (deployments?.items || []).filter((d) => available(d) < wanted(d));
  const words = deployments ? (away.length ? away.map((d) => d.metadata.name).join(", ") + (away.length === 1 ? " has" : " have") + " too few replicas" : "All components are available") : "";
  return [words, nodes && number(nodes.items.length) + (nodes.items.length === 1 ? " node" : " nodes")].filter(Boolean).join(" · ");
}

const Unread = ({ error, what }) => html`<p class="empty">${error.code === 403 ? "You may not read " + what + ". An administrator of the cluster may." : explain(error, what, system).title}</p>`;

const available = (d) => d.status?.availableReplicas || 0;
const wanted = (d) => d.spec.replicas ?? 1;
const version = (o) => o.metadata.labels?.["app.kubernetes.io/version"] || "–";
const image = (o) => o.spec.template.spec.containers[0].image.replace(/^.*\//, "");

function Components({ deployments, agent, agentError }) {
  const rows = deployments.map((d) => ({ name: d.metadata.name, ready: available(d), wanted: wanted(d), version: version(d), image: image(d) }));
  if (agent) rows.push({ name: "node-agent", ready: agent.status.numberAvailable || 0, wanted: agent.status.desiredNumberScheduled || 0, version: version(agent), image: image(agent), of: "nodes" });
  return html`<table class="plain"><thead><tr><th>Component</th><th>State</th><th class="n">Available</th><th class="wide">Version</th><th class="wide">Image</th></tr></thead><tbody>
    ${rows.map((r) => html`<tr key=${r.name}><td>${r.name}</td><td><span class=${"badge " + (r.ready >= r.wanted ? "good" : r.ready ? "warn" : "bad")}>${r.ready >= r.wanted ? "Available" : r.ready ? "Degraded" : "Away"}</span></td>
      <td class="n">${r.ready} of ${r.wanted}${r.of ? " " + r.of : ""}</td><td class="wide">${r.version}</td><td class="wide"><code>${r.image}</code></td></tr>`)}
  </tbody></table>${agentError?.code === 404 && html`<p class="meta">There is no node agent, so pods that sleep are warm.</p>`}`;
}

const held = { EBB_HOLD_REQUESTS: "requests waiting", EBB_HOLD_BYTES: "of them in memory", EBB_HOLD_REQUESTS_PER_REVISION: "waiting for a Revision", EBB_HOLD_BYTES_PER_REVISION: "for a Revision" };

function Budgets({ deployments, agent }) {
  const all = agent ? [...deployments, agent] : deployments;
  return html`<table class="plain"><thead><tr><th>Component</th><th class="n wide">CPU asked for</th><th class="n">Memory asked for</th><th class="n">Memory at most</th><th class="wide">Queue at most</th></tr></thead><tbody>
    ${all.map((d) => {
      const c = d.spec.template.spec.containers[0];
      const { requests = {}, limits = {} } = c.resources || {};
      const holds = (c.env || []).filter((e) => held[e.name]).map((e) => (e.name.includes("BYTES") ? bytes(e.value) : number(Number(e.value))) + " " + held[e.name]);
      return html`<tr key=${d.metadata.name}><td>${d.metadata.name}</td><td class="n wide">${requests.cpu || "–"}</td><td class="n">${bytes(requests.memory)}</td><td class="n">${bytes(limits.memory)}</td><td class="wide">${holds.join(", ") || "–"}</td></tr>`;
    })}
  </tbody></table>`;
}

function Nodes({ nodes, agent }) {
  const depth = (swap) => (!agent ? "warm, no node agent" : swap ? "compressed, " + bytes(swap) + " of swap" : "frozen, no swap");
  return html`<table class="plain"><thead><tr><th>Node</th><th>State</th><th class="n wide">CPU</th><th class="n wide">Memory</th><th>Pods can sleep</th></tr></thead><tbody>
    ${nodes.map((n) => {
      const ready = n.status.conditions.find((c) => c.type === "Ready");
      const ok = ready?.status === "True" && !n.spec.unschedulable;
      const swap = n.status.nodeInfo?.swap?.capacity || 0;
      return html`<tr key=${n.metadata.name}><td>${n.metadata.name}</td><td><span class=${"badge " + (ok ? "good" : ready?.status === "True" ? "warn" : "bad")}>${ok ? "Ready" : ready?.status === "True" ? "Cordoned" : ready?.reason || "Not ready"}</span></td>
        <td class="n wide">${n.status.allocatable?.cpu}</td><td class="n wide">${bytes(n.status.allocatable?.memory)}</td><td>${depth(swap)}</td></tr>`;
    })}
  </tbody></table>`;
}
