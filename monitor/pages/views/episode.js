// One episode turn by turn, its tokens coloured by what the trainer made of them, and another attempt beside it.

import { address, change, changed } from "../parts/address.js";
import { get, runPath } from "../parts/api.js";
import { lineChart } from "../parts/chart.js";
import { h } from "../parts/dom.js";
import { duration, number } from "../parts/format.js";
import { say } from "../parts/notices.js";
import { badge, facts, note } from "../parts/table.js";
import { oneLine, textBlock } from "../parts/texts.js";
import { piecesOf, quantities, titleOf, tokenBlock, valuesOf } from "../parts/tokens.js";
import { result } from "./trajectories.js";

const FIRST_CHOICE = ["advantages", "credit", "logprob_gap", "rollout_logprobs"];
const CURVES = ["waad", "fai"];
const MOST_TURNS = 60;
const LOW = 125;
const OVER_TOKENS = { height: LOW, whole: true, x: "token of the message" };

export async function show({ root, params, run, signal, keys }) {
  const key = params.get("key") ?? "";
  const other = params.get("beside");
  const load = (it) => get(runPath(run, `/trajectories/${encodeURIComponent(it)}`), {}, signal);
  const [left, right] = await Promise.all([load(key), other ? load(other) : null]);
  const known = [...new Set([left, right].filter(Boolean).flatMap(({ trajectory }) => Object.keys(quantities(trajectory))))];
  const wanted = params.get("colour");
  const colour = known.includes(wanted) ? wanted : wanted === "none" ? "" : FIRST_CHOICE.find((name) => known.includes(name)) ?? known[0] ?? "";
  const shown = Number(params.get("turns") ?? MOST_TURNS);
  root.append(
    h("div", { class: "head" }, h("h1", {}, `Episode ${left.trajectory.id}`), h("a", { href: address("trajectories", { run, task_id: left.trajectory.task_id }) }, "all attempts at this task"), h("a", { href: address("trajectories", { run }) }, "all episodes")),
    h("div", { class: "row" }, attempts(left.siblings, key, other, keys), known.length
      ? h("label", {}, "Colour ", h("select", { id: "colour", value: colour || "none", onchange: (event) => change({ colour: event.target.value }) }, known.map((name) => h("option", { value: name }, titleOf(name))), h("option", { value: "none" }, "nothing")))
      : h("span", { class: "quiet" }, "The run did not write this episode's tokens, so there is nothing to colour.")),
    replay(left.replay),
    h("div", { class: other ? "beside" : "" }, column(left, colour, shown), right ? column(right, colour, shown) : null));
  return null; // a finished episode does not change
}

function attempts(siblings, key, other, keys) {
  const index = siblings.findIndex((it) => it.key === key);
  const name = (it) => `${it.id} (${it.failure_kind ? "failed" : it.success ? "success" : "no success"}, reward ${number(it.return)})`;
  const go = (by) => siblings[index + by] && change({ key: siblings[index + by].key });
  keys.push(["n p", "next and previous attempt at this task"]);
  addEventListenerOnce("n", () => go(1), "p", () => go(-1));
  return [
    h("button", { type: "button", "data-key": "previous", disabled: index <= 0, onclick: () => go(-1) }, "previous"),
    h("span", {}, `attempt ${index + 1} of ${siblings.length}`),
    h("button", { type: "button", "data-key": "next", disabled: index < 0 || index >= siblings.length - 1, onclick: () => go(1) }, "next"),
    h("select", { id: "beside", "aria-label": "Attempt beside it", value: other ?? "", onchange: (event) => change({ beside: event.target.value }) },
      h("option", { value: "" }, siblings.length > 1 ? "beside it: nothing" : "there is no other attempt"), siblings.filter((it) => it.key !== key).map((it) => h("option", { value: it.key }, `beside it: ${name(it)}`))),
  ];
}

let stop = null;

function addEventListenerOnce(nextKey, next, previousKey, previous) {
  stop?.abort();
  stop = new AbortController();
  addEventListener("hashchange", () => stop.abort(), { signal: stop.signal });
  addEventListener("keydown", (event) => {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === nextKey) next();
    if (event.key === previousKey) previous();
  }, { signal: stop.signal });
}

function replay(command) {
  return h("div", { class: "row copy" }, h("span", { class: "quiet" }, "Play it again:"), h("code", {}, command),
    h("button", { type: "button", onclick: () => navigator.clipboard.writeText(command).then(() => say("Copied."), () => say("The browser does not let the page copy: select the command and copy it.", "error")) }, "Copy"));
}

function column({ trajectory: it, seed }, colour, shown) {
  const steps = it.end_s - it.start_s;
  const summary = { ...it, failure_kind: it.failure?.kind, failure_reason: it.failure?.reason };
  return h("article", { "aria-label": `episode ${it.id}` },
    h("div", { class: "head" }, h("h2", {}, it.id), result(summary), it.truncated ? badge("truncated", "warning") : null),
    facts([["task", oneLine(it.task_id)], ["environment", oneLine(it.env_id)], ["policy", oneLine(it.policy)], ["reward", number(it.return)], ["seed", seed],
      ["versions", it.start_version === it.end_version ? it.start_version : `${it.start_version} to ${it.end_version}`], ["took", duration(steps)], ["turns", it.turns.length]]),
    it.failure ? h("details", { class: "finding critical", open: true, "data-key": `failure-${it.id}` }, h("summary", {}, badge(it.failure.kind, "critical"), " ", oneLine(it.failure.reason)), textBlock(it.failure.message, { label: "failure" })) : null,
    explanation(it.info),
    h("section", { class: "turn" }, h("h3", {}, "Task"), textBlock(it.prompt, { label: "prompt", kind: "observation" })),
    colour && it.turns.length && !it.turns.some((turn) => valuesOf(it, turn, colour).length) ? h("p", { class: "quiet" }, `The run did not write the ${titleOf(colour)} of this episode's tokens.`) : null,
    it.turns.slice(0, shown).map((turn, index) => turnOf(it, turn, index, colour)),
    it.turns.length > shown ? h("a", { class: "button", href: changed({ turns: shown + MOST_TURNS }) }, `${it.turns.length - shown} more turns`) : null,
    it.turns.length ? null : note("It ended before the first message."));
}

function explanation(info) {
  const entries = Object.entries(info ?? {});
  if (!entries.length) return null;
  return h("details", { open: true, "data-key": "why" }, h("summary", {}, "How the reward came about"),
    textBlock(entries.map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join("\n"), { label: "explanation of the reward" }));
}

function turnOf(it, turn, index, colour) {
  const curves = CURVES.map((name) => ({ name: titleOf(name), y: valuesOf(it, turn, name) })).filter(({ y }) => y.length).map((line) => ({ ...line, x: line.y.map((_, token) => token) }));
  const coloured = colour ? tokenBlock(it, turn, colour) : null;
  const drawn = valuesOf(it, turn, colour);
  const about = [`reward ${number(turn.reward)}`, turn.finish_reason, `model ${duration(turn.act_s)}`, `environment ${duration(turn.env_s)}`];
  return h("section", { class: "turn" }, h("h3", {}, `Turn ${index + 1}`, h("span", { class: "quiet" }, ` ${about.filter(Boolean).join(" · ")}`)),
    coloured && piecesOf(it, turn) ? null : textBlock(turn.action, { label: "message", kind: "action" }),
    coloured,
    drawn.length > 1 && !CURVES.includes(colour) ? lineChart(titleOf(colour), [{ name: colour, x: drawn.map((_, token) => token), y: drawn }], OVER_TOKENS) : null,
    curves.map((line) => lineChart(line.name, [line], OVER_TOKENS)),
    turn.observation ? textBlock(turn.observation, { label: "reply", kind: "observation" }) : null);
}
