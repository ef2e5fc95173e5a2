// One run at a glance: how it stands, what is wrong and what to try, evaluations, events, configuration.

import { address, change } from "../parts/address.js";
import { get, runPath } from "../parts/api.js";
import { fill, h } from "../parts/dom.js";
import { duration, moment, number, percent } from "../parts/format.js";
import { actorLogs } from "../parts/logs.js";
import { action } from "../parts/notices.js";
import { runHeader } from "../parts/run_header.js";
import { badge, table } from "../parts/table.js";
import { oneLine, textBlock } from "../parts/texts.js";

const NUM_EVENTS = 50;

export async function show({ root, params, run, signal }) {
  const header = await runHeader("Run", run, signal);
  const boxes = Object.fromEntries(["acts", "doctor", "evaluations", "events", "actors", "alerts"].map((name) => [name, h("div", { class: name })]));
  const { command, config } = await get(runPath(run, "/config"), {}, signal);
  root.append(header, boxes.acts,
    h("section", {}, h("h2", {}, "What is going on"), boxes.doctor),
    h("section", {}, h("h2", {}, "Evaluations"), boxes.evaluations),
    h("section", {}, h("h2", {}, "Events"), boxes.events),
    h("section", {}, h("h2", {}, "Processes and logs"), boxes.actors),
    h("section", {}, h("h2", {}, "Alert rules"), boxes.alerts),
    h("section", {}, h("h2", {}, "Configuration"), h("p", {}, h("code", {}, command)),
      h("details", { "data-key": "config" }, h("summary", {}, "All settings"), textBlock(JSON.stringify(config, null, 2)))));
  const offset = Number(params.get("offset") ?? 0);
  const kinds = params.getAll("kinds");
  const refresh = async () => {
    const [status, doctor, { evaluations }, events, alerts, actors] = await Promise.all([
      header.refresh(), get(runPath(run, "/doctor"), {}, signal), get(runPath(run, "/evaluations"), {}, signal),
      get(runPath(run, "/events"), { limit: NUM_EVENTS, offset, kinds }, signal), get(runPath(run, "/alerts"), {}, signal), actorLogs(run, params.get("log"), signal)]);
    fill(boxes.acts, h("div", { class: "row" }, actions(run, status, refresh),
      ["training", "pipeline", "environments", "trajectories"].map((page) => h("a", { class: "button", "data-key": `to-${page}`, href: address(page, { run }) }, page[0].toUpperCase() + page.slice(1)))));
    fill(boxes.doctor, findings(doctor));
    fill(boxes.evaluations, evaluationTable(evaluations));
    fill(boxes.events, eventList(events, status.event_kinds, kinds, offset));
    fill(boxes.actors, actors);
    fill(boxes.alerts, ruleTable(alerts.rules));
  };
  await refresh();
  return refresh;
}

function actions(run, status, refresh) {
  if (!status.can_act) return null;
  const name = status.state === "paused" ? "resume" : "pause";
  return action(name === "pause" ? "Pause" : "Resume", runPath(run, `/actions/${name}`), {},
    { done: refresh, question: name === "pause" ? `Pause ${run}? Episodes under way are held until it is resumed.` : null });
}

function findings({ verdict, findings: list }) {
  return [h("p", {}, verdict), list.map((it) => h("details", { class: `finding ${it.severity}`, "data-key": `finding-${it.rule}` },
    h("summary", {}, badge(it.severity, it.severity), " ", h("b", {}, it.title)),
    h("p", {}, it.what), h("p", { class: "quiet" }, it.why), it.try.length ? [h("p", {}, "Try:"), h("ul", {}, it.try.map((text) => h("li", {}, text)))] : null))];
}

function evaluationTable(rows) {
  return table([
    { title: "When", cell: (row) => row.when },
    { title: "What", cell: (row) => row.name },
    { title: "Tasks", numeric: true, cell: (row) => number(row.num_tasks) },
    { title: "Success", numeric: true, cell: (row) => percent(row.success_rate) },
    { title: "95 % interval", numeric: true, cell: (row) => (row.success_ci95 ? row.success_ci95.map((it) => percent(it)).join(" to ") : "–") },
    { title: "Mean reward", numeric: true, cell: (row) => number(row.mean_reward) },
    { title: "Failures", cell: (row) => Object.entries(row.failures ?? {}).map(([kind, num]) => `${kind} ${num}`).join(", ") || "none" },
    { title: "Time", numeric: true, cell: (row) => duration(row.seconds) },
  ], rows, { caption: "Success, with its 95 % interval", empty: "No evaluation yet. A preset evaluates before and after training, and `rollcage eval` does at any time." });
}

function eventList({ total, events }, known, kinds, offset) {
  const choose = h("select", { id: "kinds", "aria-label": "Kind of event", value: kinds[0] ?? "", onchange: (event) => change({ kinds: event.target.value, offset: null }) },
    h("option", { value: "" }, "all kinds"), Object.entries(known).map(([kind, num]) => h("option", { value: kind }, `${kind} (${num})`)));
  const rows = table([
    { title: "Time", cell: (row) => moment(row.time) },
    { title: "Event", cell: (row) => row.event },
    { title: "Details", grow: true, cell: (row) => details(row) },
  ], events, { caption: `${number(total)} events`, empty: kinds.length ? "No event of this kind. Choose all kinds." : "Nothing has happened yet." });
  return [h("div", { class: "row" }, choose, pager(total, offset)), rows];
}

function details({ time, event, ...fields }) {
  const words = Object.entries(fields).filter(([, value]) => value !== null && value !== "").map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`).join("; ");
  if (words.length <= 160) return oneLine(words, 160);
  return h("details", { "data-key": `event-${time}-${event}` }, h("summary", {}, oneLine(words)), textBlock(Object.entries(fields).map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`).join("\n")));
}

function pager(total, offset) {
  const move = (label, next, possible) => h("button", { type: "button", "data-key": label, disabled: !possible, onclick: () => change({ offset: next || null }) }, label);
  return total > NUM_EVENTS ? [move("newer", Math.max(0, offset - NUM_EVENTS), offset > 0), move("older", offset + NUM_EVENTS, offset + NUM_EVENTS < total)] : null;
}

function ruleTable(rules) {
  return table([
    { title: "Rule", cell: (rule) => rule.title },
    { title: "State", cell: (rule) => badge(rule.state === "unknown" ? "no data" : rule.state, { ok: "good", firing: rule.severity, unknown: "plain" }[rule.state]) },
    { title: "Value", numeric: true, cell: (rule) => number(rule.value) },
    { title: "Threshold", numeric: true, cell: (rule) => number(rule.threshold) },
    { title: "What it says", grow: true, cell: (rule) => h("span", { class: "quiet" }, rule.message, rule.state === "firing" ? ` ${rule.advice}` : "") },
  ], rules, { caption: `${rules.length} rules, ${rules.filter((rule) => rule.state === "firing").length} firing`, empty: "No rules." });
}
