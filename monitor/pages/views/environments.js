// Environments: how the tasks go, which starve, and every kind of failure with its traceback.

import { address } from "../parts/address.js";
import { get, runPath } from "../parts/api.js";
import { barChart } from "../parts/bars.js";
import { fill, h } from "../parts/dom.js";
import { ago, number, percent } from "../parts/format.js";
import { runHeader } from "../parts/run_header.js";
import { badge, meter, note, table } from "../parts/table.js";
import { oneLine, textBlock } from "../parts/texts.js";

const OUTCOMES = ["trained", "filtered", "failed", "stale", "late"];

export async function show({ root, run, signal }) {
  const header = await runHeader("Environments", run, signal);
  const boxes = Object.fromEntries(["failures", "by_env", "shares", "by_task"].map((name) => [name, h("div", { class: name })]));
  root.append(header, h("section", {}, h("h2", {}, "Environments"), boxes.by_env), h("section", {}, h("h2", {}, "Failures"), boxes.failures),
    h("section", {}, h("h2", {}, "What became of the samples"), boxes.shares), h("section", {}, h("h2", {}, "Tasks"), boxes.by_task));
  const refresh = async () => {
    const [data] = await Promise.all([get(runPath(run, "/environments"), {}, signal), header.refresh()]);
    fill(boxes.by_env, rates(run, "env_id", "Environment", data.by_env, `Environments, over the newest ${number(data.num_read)} episodes`));
    fill(boxes.failures, failures(run, data.failures));
    fill(boxes.shares, h("div", { class: "charts" }, [["by_difficulty", "By difficulty: share of failed attempts up to"], ["by_length", "By length: sampled tokens up to"], ["by_duration", "By duration: seconds up to"]]
      .map(([name, title]) => barChart(title, data[name].map((row) => ({ label: row.upper, pieces: OUTCOMES.map((it) => ({ name: it, value: row[it] ?? 0 })) })), OUTCOMES))));
    fill(boxes.by_task, rates(run, "task_id", "Task", data.by_task, "Tasks: those with most failures first, then those with the least success"));
  };
  await refresh();
  return refresh;
}

function rates(run, key, title, rows, caption) {
  return table([
    { title, grow: true, cell: (row) => oneLine(row[key]) },
    { title: "Episodes", numeric: true, cell: (row) => number(row.num) },
    { title: "Success", cell: (row) => (row.success === null ? "–" : [meter(row.success, `success of ${row[key]}`), ` ${percent(row.success)}`]) },
    { title: "Mean reward", numeric: true, cell: (row) => number(row.reward) },
    { title: "Failed", numeric: true, cell: (row) => (row.failed ? badge(number(row.failed), "critical") : "0") },
  ], rows, { caption, key: (row) => row[key], href: (row) => address("trajectories", { run, [key]: row[key] }),
    empty: "No episode has ended yet. They appear here as they do." });
}

function failures(run, list) {
  if (!list.length) return note("No failures. A failure is an episode without a score: the environment, the engine or a deadline gave up.");
  return list.map(({ kind, reason, count, last, messages }) => h("details", { class: "finding", "data-key": `failure-${kind}-${reason}` },
    h("summary", {}, badge(kind, "critical"), " ", h("b", {}, reason), ` ${count === 1 ? "once" : `${number(count)} times`}, last ${ago(last)}`),
    messages.map((it) => h("div", { class: "cause" },
      h("p", {}, `${number(it.count)} × `, oneLine(it.message, 300)),
      h("p", { class: "quiet" }, `task ${it.task_id ?? "–"} `, h("a", { href: address("trajectories", { run, task_id: it.task_id, failure: "any" }), "data-key": `cause-${kind}-${reason}-${it.task_id}` }, "its failed episodes")),
      it.traceback ? textBlock(it.traceback, { label: "traceback" }) : null))));
}
