// Pipeline: who is busy when, who waits for whom, how full the queues are, and whether every sample is accounted for.

import { change } from "../parts/address.js";
import { get, runPath } from "../parts/api.js";
import { lineChart } from "../parts/chart.js";
import { fill, h } from "../parts/dom.js";
import { duration, number, percent } from "../parts/format.js";
import { runHeader } from "../parts/run_header.js";
import { badge, note, table } from "../parts/table.js";
import { timelineChart } from "../parts/timeline.js";

const COLUMNS = [
  ["trained", "went into an update"], ["filtered", "their group gave no gradient"], ["stale", "too old for the next update"],
  ["failed", "gave no score"], ["cancelled", "others were faster, or the run stopped"], ["in_flight", "still under way"],
];
const TITLES = { sampled_tokens: "sampled tokens a second" };
const LAST_S = 120;
const STRIPS = [[/^engine_live_requests\{engine=(.*)\}$/, (found) => `engine ${found[1]} requests`], [/^running_episodes$/, () => "episodes"],
  [/^node_load\{node=(.*)\}$/, (found) => `node ${found[1]} load`]];
const ORDER = ["learner", "engine", "environments", "episodes", "node"];

export async function show({ root, params, run, signal }) {
  const window_s = [params.get("from"), params.get("to")].map((it) => (it === null ? null : Number(it)));
  const header = await runHeader("Pipeline", run, signal);
  // A run that goes on is followed; one that has ended is seen whole.
  const isWhole = () => (params.get("all") ?? (["running", "paused"].includes(header.status.state) ? "0" : "1")) === "1";
  const look = (from, to) => change({ from: from.toFixed(3), to: to.toFixed(3), all: null });
  const timeline = timelineChart("Who is busy when", { first: 0, last: 1, zero: 0, tracks: [] }, look);
  const [shares, gauges, account] = ["shares", "gauges", "account"].map((name) => h("div", { class: name }));
  const charts = new Map();
  const where = h("p", { class: "quiet" });
  const zoom = (factor) => {
    const { first, last } = timeline.model;
    const middle = (first + last) / 2;
    look(middle - ((last - first) * factor) / 2, middle + ((last - first) * factor) / 2);
  };
  const button = (label, title, onclick) => h("button", { type: "button", "data-key": `zoom-${title}`, title, "aria-label": title, onclick }, label);
  root.append(header,
    h("section", {}, h("div", { class: "row" }, button("−", "zoom out", () => zoom(2)), button("+", "zoom in", () => zoom(0.5)),
      button("last 2 min", `the last ${LAST_S} seconds`, () => change({ from: null, to: null, all: 0 })), button("all", "the whole timeline", () => change({ from: null, to: null, all: 1 }))),
      timeline, where),
    h("section", {}, h("h2", {}, "Who waits"), shares),
    h("section", {}, h("h2", {}, "Queues and rates"), gauges),
    h("section", {}, h("h2", {}, "Every sample accounted for"), account));
  const sums = lineChart("Samples, by what became of them", [], { whole: true, x: "updates" });
  const refresh = async () => {
    const [range, sum, { actors }] = await Promise.all([get(runPath(run, "/timeline"), { max_spans: 1 }, signal), get(runPath(run, "/account"), {}, signal), get(runPath(run, "/actors"), {}, signal), header.refresh()]);
    const last = window_s[1] ?? range.last_s;
    const first = window_s[0] ?? (isWhole() ? range.first_s : Math.max(range.first_s, last - LAST_S));
    const [spans, { gauges: points }] = await Promise.all([
      get(runPath(run, "/timeline"), { start_s: first, end_s: last, max_spans: 2000 }, signal),
      get(runPath(run, "/gauges"), { max_points: 1000 }, signal)]);
    timeline.update({ first, last, zero: range.first_s, tracks: tracksOf(spans.spans, points, first, last, actors) });
    where.textContent = range.total ? `Seconds since the run began; ${number(spans.total)} spans in view. Drag over a stretch to look closer.` : "Nothing has been timed yet: the first spans come with the first update.";
    fill(shares, sharesTable(spans.shares, last - first));
    drawGauges(gauges, charts, points, range.first_s);
    fill(account, accountOf(sum), sums);
    sums.update(COLUMNS.map(([name]) => ({ name, x: sum.series.policy_version, y: sum.series[name] ?? [] })).filter(({ y }) => y.length));
  };
  await refresh();
  return refresh;
}

function tracksOf(spans, points, first, last, actors) {
  const tracks = new Map();
  const nodes = new Map(actors.filter(({ node }) => node).map(({ actor, node }) => [actor === "learner rank 0" ? "learner" : actor, node]));
  for (const span of spans) {
    const name = span.track === "environments" ? `environments ${span.name}` : span.track; // many at once: a row for each kind
    if (!tracks.has(name)) tracks.set(name, { name: nodes.has(name) ? `${name} on ${nodes.get(name)}` : name, spans: [] });
    tracks.get(name).spans.push(span);
  }
  for (const [key, { at_s: at, value }] of Object.entries(points))
    for (const [rule, name] of STRIPS) {
      const found = rule.exec(key);
      if (!found) continue;
      const inside = at.map((_, index) => index).filter((index) => at[index] >= first - 5 && at[index] <= last + 5);
      tracks.set(name(found), { name: name(found), strip: { at_s: inside.map((index) => at[index]), value: inside.map((index) => value[index]) } });
    }
  const place = (track) => (ORDER.findIndex((it) => track.name.startsWith(it)) + ORDER.length + 1) % (ORDER.length + 1);
  return [...tracks.values()].sort((a, b) => place(a) - place(b) || a.name.localeCompare(b.name, "en", { numeric: true })).slice(0, 64);
}

function sharesTable(shares, seconds) {
  const rows = Object.entries(shares).map(([track, parts]) => ({ track, parts: Object.entries(parts).sort((a, b) => b[1] - a[1]) }));
  const words = (parts) => parts.map(([name, share]) => `${name} ${percent(share, 0)}`).join(", ");
  return table([
    { title: "Track", cell: ({ track }) => track },
    { title: "Share of the time in view", grow: true, cell: ({ track, parts }) => {
      const bar = h("span", { class: "bar whole", role: "img", "aria-label": `${track}: ${words(parts)}` });
      for (const [name, share] of parts) {
        const piece = h("i", { class: { train: "c0", publish: "c1", wait: "c7", idle: "c7" }[name] ?? "c2", title: `${name} ${percent(share)}` });
        piece.style.width = `${100 * Math.min(1, share)}%`;
        bar.append(piece);
      }
      return [bar, h("span", { class: "quiet" }, words(parts))];
    } },
    { title: "Waits", numeric: true, cell: ({ track, parts }) => percent(waits(track, parts)) },
  ], rows, { caption: `Shares of ${duration(seconds)}`, empty: "No spans in this stretch of time. Look at all of it, or wait for the next update." });
}

/** The learner says when it waits; an engine does whenever it has no request. Environments wait for nobody's sake. */
function waits(track, parts) {
  if (track.startsWith("engine")) return Math.max(0, 1 - parts.reduce((sum, [, share]) => sum + share, 0));
  return parts.find(([name]) => name === "wait")?.[1];
}

/** What a count grows by in a second, from one point to the next; a run that was resumed begins anew. */
function rates({ at_s: at, value }) {
  return value.map((it, index) => (index && at[index] > at[index - 1] ? Math.max(0, it - value[index - 1]) / (at[index] - at[index - 1]) : null));
}

function drawGauges(box, charts, points, zero) {
  const names = new Map();
  for (const [key, data] of Object.entries(points)) {
    const [, name, labels] = /^([^{]*)(?:\{(.*)\})?$/.exec(key);
    if (!names.has(name)) names.set(name, []);
    names.get(name).push({ name: labels ?? name.replaceAll("_", " "), x: data.at_s.map((at) => at - zero), y: name === "sampled_tokens" ? rates(data) : data.value });
  }
  for (const [name, lines] of names) {
    if (!charts.has(name)) charts.set(name, lineChart(TITLES[name] ?? name.replaceAll("_", " "), [], { seconds: true, x: "time since the run began" }));
    charts.get(name).update(lines.slice(0, 16));
  }
  if (box.querySelectorAll("figure").length !== charts.size || !charts.size)
    fill(box, charts.size ? h("div", { class: "charts" }, [...charts.values()]) : note("No queue depths yet: they are written twice a second while the run samples."));
}

function accountOf({ columns, balanced, difference, failed_by_kind: kinds }) {
  const rows = COLUMNS.map(([name, meaning]) => ({ name: name.replace("_", " "), meaning, value: columns[name] ?? 0 }));
  return h("div", {},
    h("p", {}, h("b", {}, number(columns.started ?? 0)), " samples started. ", balanced ? badge("the account closes", "good") : badge(`${number(Math.abs(difference))} samples ${difference > 0 ? "are missing" : "too many"}`, "critical")),
    table([
      { title: "Became", cell: (row) => row.name },
      { title: "Samples", numeric: true, cell: (row) => number(row.value) },
      { title: "Share", numeric: true, cell: (row) => percent(columns.started ? row.value / columns.started : null) },
      { title: "", grow: true, cell: (row) => h("span", { class: "quiet" }, row.meaning) },
    ], rows, { caption: "The conservation account" }),
    Object.keys(kinds).length ? h("p", {}, "Failed: ", Object.entries(kinds).map(([kind, num]) => `${kind} ${num}`).join(", "), ".") : null);
}
