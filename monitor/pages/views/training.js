// Training: every statistic that the run has, in charts that belong together.

import { change } from "../parts/address.js";
import { get, runPath } from "../parts/api.js";
import { histogramChart } from "../parts/bars.js";
import { lineChart } from "../parts/chart.js";
import { fill, h } from "../parts/dom.js";
import { runHeader } from "../parts/run_header.js";
import { note } from "../parts/table.js";

const GROUPS = ["Reward", "Policy", "Off-policy", "Learner", "Critics", "Attention rhythm", "Episodes and batches", "Other"];
// [group, chart, which names]: a name goes to the first that takes it, so what is special stands before what is general.
const CHARTS = [
  ["Critics", "Explained variance of the returns", /critic.*explained_variance/],
  ["Critics", "Tokens masked (share)", /critic_(advantage|entropy)_masked/],
  ["Critics", "Disagreement (standard deviation)", /critic_disagreement/],
  ["Critics", "Loss of the critics", /critic.*loss/],
  ["Critics", "Values and returns", /critic_(value|return)/],
  ["Critics", "Gradient norm of the critics", /critic.*grad_norm/],
  ["Critics", "Critics: learning rate, time", /critic/],
  ["Attention rhythm", "Tokens with amplified credit (share)", /rhythm_share_amplified/],
  ["Attention rhythm", "Credit factor of a token (mean)", /rhythm_gamma/],
  ["Attention rhythm", "WAAD of the local heads (tokens)", /rhythm_waad/],
  ["Attention rhythm", "FAI of the global heads", /rhythm_fai/],
  ["Attention rhythm", "Time of the attention pass", /rhythm/],
  ["Reward", "Reward", /^rollout\/reward/],
  ["Reward", "Success", /^rollout\/success/],
  ["Reward", "Mixed groups (share)", /mixed_groups/],
  ["Policy", "Entropy (nats a token)", /entropy(?!.*coef)/],
  ["Policy", "KL (nats a token)", /(^|[/_])kl([_/]|$)/],
  ["Policy", "Importance ratio", /importance_ratio|sequence_ratio|\/weight$/],
  ["Policy", "Effective sample size (share)", /(^|\/)ess/],
  ["Policy", "Clipped and capped (share of tokens)", /clip|capped|masked_frac|dropped/],
  ["Off-policy", "Staleness (versions)", /staleness|drift/],
  ["Off-policy", "Sampler against trainer: |log-probability gap|", /logprob_gap/],
  ["Learner", "Gradient norm", /grad_norm/],
  ["Learner", "Loss", /loss/],
  ["Learner", "Learning rate", /\/lr/],
  ["Episodes and batches", "Sampled tokens an episode", /rollout\/sampled_tokens/],
  ["Episodes and batches", "Turns an episode", /rollout\/turns/],
  ["Episodes and batches", "Seconds an episode", /rollout\/episode_s/],
  ["Episodes and batches", "Cut by length (share)", /cut_by_length/],
  ["Episodes and batches", "Samples and tokens a batch", /num_samples|num_tokens/],
  ["Episodes and batches", "Rows left out", /num_rows/],
  ["Episodes and batches", "Conversations that could not go on token by token", /rollout\/splits/],
  ["Episodes and batches", "Seconds an update", /^time\/(wait|train|publish)_s|learner\/seconds/],
];
const NOT_HERE = /^(account|counter)\/|^time\/elapsed_s$|^time$/;
const MAX_POINTS = 1000;

/** Return [[group, chart, [names]]] of the charts that have something to show; what no rule takes has a chart of its own. */
export function arranged(names) {
  const charts = CHARTS.map(([group, title]) => [group, title, []]);
  const others = [];
  for (const name of names.filter((it) => !NOT_HERE.test(it))) {
    const index = CHARTS.findIndex(([, , rule]) => rule.test(name));
    if (index >= 0) charts[index][2].push(name);
    else others.push(["Other", name, [name]]);
  }
  return [...charts.filter(([, , found]) => found.length), ...others];
}

export async function show({ root, params, run, signal, reopen }) {
  const bySeconds = params.get("x") === "seconds";
  const [header, { names }] = await Promise.all([runHeader("Training", run, signal), get(runPath(run, "/metric_names"), {}, signal)]);
  const layout = arranged(names);
  const wanted = layout.flatMap(([, , found]) => found);
  const charts = layout.map(([group, title, found]) => [group, found, lineChart(title, [], bySeconds ? { seconds: true, x: "time in training" } : { whole: true, x: "updates" })]);
  const spread = h("div", { class: "charts" });
  const body = h("div", {});
  root.append(header, h("div", { class: "row" },
    h("label", {}, "Over ", h("select", { id: "x", value: bySeconds ? "seconds" : "", onchange: (event) => change({ x: event.target.value }) },
      h("option", { value: "" }, "updates"), h("option", { value: "seconds" }, "seconds of training")))), body);
  const refresh = async () => {
    const [answer, { histograms }, { names: now }] = await Promise.all([
      wanted.length ? get(runPath(run, "/series"), { names: bySeconds ? [...wanted, "time/elapsed_s"] : wanted, max_points: MAX_POINTS }, signal) : { series: {} },
      get(runPath(run, "/histograms"), {}, signal), get(runPath(run, "/metric_names"), {}, signal), header.refresh()]);
    if (now.filter((it) => !NOT_HERE.test(it)).length !== wanted.length) return reopen(); // statistics that were not there before: other charts
    const { series } = answer;
    const seconds = new Map(series["time/elapsed_s"]?.policy_version.map((version, index) => [version, series["time/elapsed_s"].value[index]]));
    for (const [, found, chart] of charts)
      chart.update(found.map((name) => line(shortOf(name, found), series[name], bySeconds ? seconds : null)).filter((it) => it.x.length));
    return fill(spread, Object.entries(histograms).filter(([name]) => /staleness|drift|reward|length|token|logprob/.test(name)).map(([name, data]) => histogramChart(name.replaceAll("_", " "), data)));
  };
  if (!wanted.length) body.append(note("The run has not finished its first update; the curves begin with it. Meanwhile, Pipeline shows what it does."));
  for (const group of GROUPS.filter((it) => charts.some(([name]) => name === it)))
    body.append(h("section", { "aria-label": group }, h("h2", {}, group), h("div", { class: "charts" }, charts.filter(([name]) => name === group).map(([, , chart]) => chart)),
      group === "Off-policy" ? spread : null));
  await refresh();
  return refresh;
}

/** A name without its part, unless another one in the chart is the same but for that. */
function shortOf(name, found) {
  const cut = (it) => it.replace(/^(rollout|learner|time)\//, "");
  return found.filter((it) => cut(it) === cut(name)).length > 1 ? name.replace("/", " ") : cut(name);
}

function line(short, data, seconds) {
  if (!data) return { name: short, x: [], y: [] };
  if (!seconds) return { name: short, x: data.policy_version, y: data.value };
  const known = data.policy_version.map((version, index) => [seconds.get(version), data.value[index]]).filter(([at]) => at !== undefined && at !== null);
  return { name: short, x: known.map(([at]) => at), y: known.map(([, value]) => value) };
}

