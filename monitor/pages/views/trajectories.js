// Trajectories: search and filter all episodes of a run.

import { address, change } from "../parts/address.js";
import { get, runPath } from "../parts/api.js";
import { fill, h } from "../parts/dom.js";
import { ago, duration, number } from "../parts/format.js";
import { runHeader } from "../parts/run_header.js";
import { badge, table } from "../parts/table.js";
import { oneLine } from "../parts/texts.js";

const LIMIT = 50;
const FILTERS = ["env_id", "task_id", "success", "failure", "min_version", "max_version", "text"];
const TYPING_MS = 250;

export async function show({ root, params, run, signal }) {
  const filters = Object.fromEntries(FILTERS.map((name) => [name, params.get(name)]));
  const sort = params.get("sort") ?? "time";
  const descending = params.get("order") !== "up";
  const offset = Number(params.get("offset") ?? 0);
  const header = await runHeader("Trajectories", run, signal);
  const [list, pages] = [h("div", {}), h("div", { class: "row" })];
  const refresh = async () => {
    const [{ total, trajectories }] = await Promise.all([get(runPath(run, "/trajectories"), { ...filters, sort, descending, offset, limit: LIMIT }, signal), header.refresh()]);
    fill(pages, pager(total, offset));
    fill(list, rows(run, trajectories, total, sort, descending, Object.values(filters).some(Boolean)));
  };
  root.append(header, form(filters), list, pages);
  await refresh();
  return refresh;
}

function form(filters) {
  const set = (name) => (event) => change({ [name]: event.target.value, offset: null });
  let timer = 0;
  const typed = (name) => (event) => {
    clearTimeout(timer);
    timer = setTimeout(set(name), TYPING_MS, event);
  };
  const choose = (name, label, options) => h("select", { id: name, "aria-label": label, value: filters[name] ?? "", onchange: set(name) }, options.map(([value, text]) => h("option", { value }, text)));
  const field = (name, label, type, shown = label) => h("input", { id: name, type, placeholder: shown, "aria-label": label, value: filters[name] ?? "", [type === "search" ? "oninput" : "onchange"]: type === "search" ? typed(name) : set(name) });
  return h("div", { class: "row filters", role: "search" },
    field("text", "words in prompt, message, reply", "search", "words said"), field("task_id", "task", "search"),
    choose("success", "Success", [["", "success or not"], ["true", "success"], ["false", "no success"]]),
    choose("failure", "Failure", [["", "failed or not"], ["none", "scored"], ["any", "failed"], ["infra", "failed: infra"], ["model", "failed: model"], ["task", "failed: task"]]),
    field("min_version", "from version", "number"), field("max_version", "to version", "number"),
    FILTERS.some((name) => filters[name]) ? h("button", { type: "button", "data-key": "all", onclick: () => change(Object.fromEntries([...FILTERS, "offset"].map((name) => [name, null]))) }, "show all") : null);
}

function rows(run, trajectories, total, sort, descending, isFiltered) {
  return table([
    { title: "Episode", cell: (it) => it.id },
    { title: "Ended", cell: (it) => ago(it.time), sort: "time" },
    { title: "Result", cell: (it) => result(it) },
    { title: "Reward", numeric: true, cell: (it) => number(it.return), sort: "return" },
    { title: "Task", cell: (it) => oneLine(it.task_id, 40), sort: "task_id" },
    { title: "Turns", numeric: true, cell: (it) => number(it.num_turns), sort: "num_turns" },
    { title: "Tokens", numeric: true, cell: (it) => number(it.num_tokens), sort: "num_tokens" },
    { title: "Took", numeric: true, cell: (it) => duration(it.duration_s), sort: "duration_s" },
    { title: "Version", numeric: true, cell: (it) => (it.start_version === it.end_version ? it.start_version : `${it.start_version}–${it.end_version}`), sort: "start_version" },
    { title: "Prompt", clip: true, cell: (it) => oneLine(it.prompt, 160) },
  ], trajectories, {
    caption: total === 1 ? "1 episode" : `${number(total)} episodes`, key: (it) => it.key, href: (it) => address("episode", { run, key: it.key }),
    sorted: { key: sort, descending }, onSort: (key, down) => change({ sort: key, order: down ? null : "up", offset: null }),
    empty: isFiltered ? "No episode matches. Loosen the filters, or show all." : "No episode has ended yet. They appear here as they do.",
  });
}

/** How an episode ended, as a coloured word. */
export function result(it) {
  if (it.failure_kind) return badge(`${it.failure_kind}: ${it.failure_reason}`, "critical");
  return it.success ? badge("success", "good") : badge(it.cut_by_length ? "no success, cut" : "no success", "plain");
}

function pager(total, offset) {
  const button = (label, next, possible) => h("button", { type: "button", "data-key": label, disabled: !possible, onclick: () => change({ offset: next || null }) }, label);
  return total > LIMIT ? [button("previous", Math.max(0, offset - LIMIT), offset > 0), h("span", {}, `${offset + 1} to ${Math.min(total, offset + LIMIT)} of ${number(total)}`), button("next", offset + LIMIT, offset + LIMIT < total)] : null;
}
