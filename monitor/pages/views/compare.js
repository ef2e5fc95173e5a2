// Several runs in one chart: runs that differ only in their seed are one line, with the 95 % interval of their mean.

import { change, address } from "../parts/address.js";
import { get, runPath } from "../parts/api.js";
import { lineChart } from "../parts/chart.js";
import { add, fill, h } from "../parts/dom.js";
import { note, table } from "../parts/table.js";

const DEFAULT = ["rollout/reward", "rollout/success", "learner/entropy", "learner/approx_kl_k3", "rollout/staleness", "learner/grad_norm"];

export async function show({ root, params, signal }) {
  const runs = params.getAll("runs");
  const names = params.getAll("names").length ? params.getAll("names") : DEFAULT;
  const charts = new Map(names.map((name) => [name, lineChart(name, [], { whole: true, x: "updates" })]));
  const groups = h("div", {});
  const missing = h("div", {});
  const refresh = async () => {
    const answer = await get("/compare", { runs, names, max_points: 300 }, signal);
    for (const [name, chart] of charts)
      chart.update(answer.groups.filter((group) => group.series[name]?.policy_version.length).map((group) => {
        const { policy_version: x, mean: y, low, high } = group.series[name];
        return { name: group.runs.length > 1 ? `${group.label} (${group.runs.length} runs)` : group.runs[0], x, y, low, high };
      }));
    fill(missing, answer.unknown.length ? note(`These are no runs of this folder: ${answer.unknown.join(", ")}.`) : null);
    fill(groups, table([
      { title: "Line", cell: (group) => group.label, grow: true },
      { title: "Runs", cell: (group) => group.runs.map((id) => h("a", { href: address("run", { run: id }) }, id)).flatMap((link) => [link, " "]) },
    ], answer.groups, { caption: "What the lines are" }));
  };
  root.append(h("div", { class: "head" }, h("h1", {}, "Compare"), h("a", { href: address("runs", { chosen: runs }) }, "choose other runs")));
  if (!runs.length) {
    root.append(note("No run is chosen. Go to Runs and tick some."));
    return null;
  }
  const all = await get(runPath(runs[0], "/metric_names"), {}, signal).catch(() => ({ names: DEFAULT }));
  const picker = h("select", { id: "metric", "aria-label": "Add a chart", value: "", onchange: (event) => change({ names: [...names, event.target.value] }) },
    h("option", { value: "" }, "add a chart …"), all.names.filter((name) => !names.includes(name)).map((name) => h("option", { value: name }, name)));
  add(root, h("p", { class: "quiet" }, "The line is the mean over the seeds; the band is its 95 % interval (Student's t). A single run has no band."),
    missing, groups, h("div", { class: "charts" }, [...charts.values()]), names.length < 20 ? picker : null);
  await refresh();
  return refresh;
}
