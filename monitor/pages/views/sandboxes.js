// Sandboxes: the fleet by host and state, one sandbox with its events, probes and last output, and what can be done.

import { address, change } from "../parts/address.js";
import { get } from "../parts/api.js";
import { add, fill, h } from "../parts/dom.js";
import { ago, bytes, duration, moment, number } from "../parts/format.js";
import { action } from "../parts/notices.js";
import { badge, facts, meter, note, table } from "../parts/table.js";
import { oneLine, textBlock } from "../parts/texts.js";

const STATES = ["PENDING", "STARTING", "READY", "UNHEALTHY", "RECOVERING", "STOPPED", "FAILED"];
const KINDS = { READY: "good", UNHEALTHY: "warning", RECOVERING: "warning", FAILED: "critical", STOPPED: "plain" };
const CONDITIONS = { open: "good", drained: "warning", quarantined: "critical", full: "critical" };
const MOST = 300;
const POLL_MS = 2000;

export async function show({ root, params, signal }) {
  const id = params.get("id");
  const text = params.get("text") ?? "";
  const state = params.get("state") ?? "";
  const [fleet, list, one] = ["fleet", "list", "one"].map((name) => h("div", { class: name }));
  const refresh = async () => {
    const answer = await get("/sandboxes", {}, signal).catch((error) => {
      if (error.status !== 502) throw error;
      return { problem: error.message };
    });
    all.hidden = Boolean(answer.problem);
    if (answer.problem) {
      fill(fleet, note(answer.problem));
      fill(one);
      return;
    }
    fill(fleet, hostTable(answer, refresh));
    const shown = answer.sandboxes.filter((it) => (!state || it.state === state) && (!text || JSON.stringify([it.id, it.key, it.owner, it.image, it.message]).toLowerCase().includes(text.toLowerCase())));
    fill(list, sandboxTable(shown, answer.sandboxes.length, id));
    if (id) fill(one, await detail(id, signal, refresh));
  };
  refresh.interval_ms = POLL_MS;
  const all = h("section", {}, h("h2", {}, "All sandboxes"), h("div", { class: "row" },
    h("input", { id: "text", type: "search", placeholder: "name, owner, image", "aria-label": "Search", value: text, onchange: (event) => change({ text: event.target.value }) }),
    h("select", { id: "state", "aria-label": "State", value: state, onchange: (event) => change({ state: event.target.value }) }, h("option", { value: "" }, "all states"), STATES.map((it) => h("option", { value: it }, it)))), list);
  add(root, h("div", { class: "head" }, h("h1", {}, "Sandboxes")), h("section", {}, h("h2", {}, "Hosts"), fleet),
    id ? h("section", {}, one) : null, all);
  await refresh();
  return refresh;
}

function hostTable({ address: service, hosts, by_host: counts }, refresh) {
  return table([
    { title: "Host", cell: (host) => host.name },
    { title: "Condition", cell: (host) => badge(host.condition, CONDITIONS[host.condition]) },
    { title: "New ones", cell: (host) => {
      const on = host.condition !== "drained";
      return action(on ? "Drain" : "Undrain", `/sandboxes/hosts/${encodeURIComponent(host.name)}/drain`, { on },
        { done: refresh, title: `${on ? "Drain" : "Undrain"} ${host.name}`, question: on ? `Drain ${host.name}? It gets no new sandboxes; those that run stay.` : null });
    } },
    { title: "Sandboxes", cell: (host) => states(counts[host.name] ?? {}) },
    { title: "Load", cell: (host) => [meter(host.num_cpus ? host.load / host.num_cpus : 0, `load of ${host.name}`), ` ${number(host.load)} of ${number(host.num_cpus)} cores`] },
    { title: "Promised", cell: (host) => `${number(host.reserved_cpus)} cores, ${bytes(host.reserved_memory_bytes)} of ${bytes(host.memory_bytes)}` },
    { title: "Free disk", numeric: true, cell: (host) => bytes(host.free_disk_bytes) },
  ], hosts, { caption: `Hosts of the service at ${service}`, empty: "The service has no hosts. Add one: rollcage sandbox serve --host unix:///var/run/docker.sock." });
}

function states(counts) {
  const there = STATES.filter((name) => counts[name]);
  return there.length ? there.map((name) => badge(`${counts[name]} ${name.toLowerCase()}`, KINDS[name])) : "none";
}

function sandboxTable(rows, total, id) {
  return table([
    { title: "Sandbox", cell: (it) => it.key || it.id },
    { title: "State", cell: (it) => [badge(it.state, KINDS[it.state]), it.oom_killed ? badge("out of memory", "critical") : null] },
    { title: "Host", cell: (it) => it.host || "–" },
    { title: "Owner", cell: (it) => it.owner },
    { title: "Image", cell: (it) => it.image },
    { title: "Restarts", numeric: true, cell: (it) => number(it.num_restarts) },
    { title: "Life", numeric: true, cell: (it) => number(it.generation) },
    { title: "Started", numeric: true, cell: (it) => ago(it.started_at) },
    { title: "Message", grow: true, cell: (it) => oneLine(it.message) },
  ], rows.slice(0, MOST), { caption: rows.length > MOST ? `${MOST} of ${rows.length} sandboxes: narrow the search` : `${rows.length} of ${total} sandboxes`,
    key: (it) => it.id, chosen: (it) => it.id === id, href: (it) => address("sandboxes", { id: it.id }),
    empty: total ? "None matches. Empty the search field, or choose all states." : "No sandboxes. They appear when an environment or `rollcage sandbox` creates one." });
}

async function detail(id, signal, refresh) {
  const path = `/sandboxes/${encodeURIComponent(id)}`;
  let found;
  try {
    found = await get(path, {}, signal);
  } catch (error) {
    if (error.status !== 404) throw error;
    return note(`Sandbox ${id} is gone. Choose another one below.`);
  }
  const { sandbox: it, events, probes } = found;
  const logs = await get(`${path}/logs`, { num_lines: 200 }, signal).catch((error) => ({ text: `(${error.message})` }));
  return [
    h("div", { class: "head" }, h("h2", {}, it.key || it.id), badge(it.state, KINDS[it.state]), h("a", { href: address("sandboxes") }, "close"),
      action("Restart", `${path}/restart`, {}, { done: refresh, question: `Restart ${it.key || it.id}? It begins a new life from its last snapshot, else from its image.` }),
      action("Delete", `${path}/delete`, {}, { kind: "danger", done: () => { location.hash = address("sandboxes"); }, question: `Delete ${it.key || it.id} and all that is in it?` })),
    facts([["id", it.id], ["host", it.host], ["owner", it.owner], ["image", it.image], ["life", it.generation], ["restarts", it.num_restarts], ["on death", it.restart],
      ["started", moment(it.started_at)], ["lease ends", it.expires_at ? moment(it.expires_at) : "never"], ["memory", bytes(it.memory_limit_bytes)], ["cores", number(it.cpus)],
      ["probed every", duration(it.probe?.interval_s)], it.exit_code === null ? null : ["exit code", it.exit_code], it.message ? ["message", oneLine(it.message, 300)] : null]),
    h("h3", {}, "Last output"), logs.text ? textBlock(logs.text, { label: "last output" }) : note("It has written nothing."),
    h("h3", {}, "Probes"), eventTable(probes, "No probe has failed."),
    h("h3", {}, "Events"), eventTable(events, "No events.")];
}

function eventTable(events, empty) {
  return table([
    { title: "Time", cell: (it) => moment(it.time) },
    { title: "Event", cell: (it) => it.kind },
    { title: "Details", grow: true, cell: (it) => oneLine(Object.entries(it.data).map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`).join("; "), 300) },
  ], events.slice(-100).reverse(), { caption: "Newest first", empty });
}
