// A message token by token: each one coloured by a number that belongs to it.
//
// An episode's record has `segments` (token_ids, loss_mask, rollout_logprobs, policy_versions; each [T]). `annotations`
// hold what the trainer had for the same tokens: lists [T] of the first segment, or a list of such lists, one a segment,
// under the name of the quantity; `pieces` are the tokens' texts.

import { h } from "./dom.js";
import { number } from "./format.js";
import { visible } from "./texts.js";

const MOST = 4000;
const TITLES = {
  rollout_logprobs: "log-probability (sampler)", policy_versions: "policy version", logprob_gap: "log-probability gap",
  advantages: "advantage", credit: "credit", waad: "WAAD", fai: "FAI",
};
const NOT_NUMBERS = new Set(["pieces", "token_ids", "loss_mask"]);

/** Return {quantity: [list a segment]} of everything that is known about an episode's tokens. */
export function quantities(trajectory) {
  const found = {};
  const segments = trajectory.segments ?? [];
  for (const segment of segments)
    for (const name of ["rollout_logprobs", "policy_versions"])
      if (segment[name]?.length) (found[name] ??= []).push(segment[name]);
  const notes = trajectory.annotations ?? {};
  for (const source of [notes, notes.tokens ?? {}, ...(notes.segments ?? []).map((it, index) => at(it, index))])
    for (const [name, value] of Object.entries(source))
      if (!NOT_NUMBERS.has(name) && Array.isArray(value) && value.length) {
        if (typeof value[0] === "number" || value[0] === null) found[name] = [value];
        else if (Array.isArray(value[0])) found[name] = Object.assign(found[name] ?? [], value);
      }
  if (!found.logprob_gap && found.old_logprobs && found.rollout_logprobs)
    found.logprob_gap = found.old_logprobs.map((list, index) => list.map((value, token) => value - found.rollout_logprobs[index]?.[token]));
  return found;
}

// A segment's own object of lists, put where the others' lists of segments are.
function at(segment, index) {
  return Object.fromEntries(Object.entries(segment).filter(([, list]) => Array.isArray(list)).map(([name, list]) => {
    const lists = [];
    lists[index] = list;
    for (let before = 0; before < index; before += 1) lists[before] ??= [];
    return [name, lists];
  }));
}

/** Return the words for a quantity. */
export function titleOf(name) {
  return TITLES[name] ?? name.replaceAll("_", " ");
}

/** Return the texts of a turn's tokens, or null where the run did not write them. */
export function piecesOf(trajectory, turn) {
  const notes = trajectory.annotations ?? {};
  const all = notes.pieces ?? notes.tokens?.pieces ?? notes.segments?.[turn.segment]?.pieces ?? trajectory.segments?.[turn.segment]?.pieces;
  const own = Array.isArray(all?.[0]) ? all[turn.segment] : all;
  return own ? own.slice(turn.start, turn.end) : null;
}

/** Return the numbers of a turn's tokens. */
export function valuesOf(trajectory, turn, name) {
  return quantities(trajectory)[name]?.[turn.segment]?.slice(turn.start, turn.end) ?? [];
}

/** Make the coloured message of a turn; null where there is nothing to colour. element.model = {name, values}. */
export function tokenBlock(trajectory, turn, name) {
  const values = valuesOf(trajectory, turn, name);
  if (!values.length) return null;
  const pieces = piecesOf(trajectory, turn);
  const ids = trajectory.segments?.[turn.segment]?.token_ids?.slice(turn.start, turn.end) ?? [];
  const known = values.filter((value) => value !== null && Number.isFinite(value));
  const least = Math.min(...known);
  const greatest = Math.max(...known);
  const isSigned = least < 0 && greatest > 0;
  const largest = Math.max(Math.abs(least), Math.abs(greatest)) || 1;
  const shares = (value) => (isSigned || greatest <= 0 ? value / largest : greatest > least ? (value - least) / (greatest - least) : value ? 0.5 : 0);
  const block = h("pre", { class: `text tokens${pieces ? "" : " ids"}`, dir: "ltr", "aria-label": `message, coloured by ${titleOf(name)}` },
    values.slice(0, MOST).map((value, index) => {
      const share = shares(value ?? 0);
      const token = h("span", { class: `token ${share < 0 ? "minus" : "plus"}`, title: `${titleOf(name)} ${number(value)}${ids[index] === undefined ? "" : `, token ${ids[index]}`}` },
        pieces ? visible(pieces[index] ?? "") : String(ids[index] ?? index));
      token.style.setProperty("--share", Math.abs(share).toFixed(3));
      return token;
    }), values.length > MOST ? ` … ${values.length - MOST} more tokens` : null);
  block.model = { name, values };
  return h("div", {}, block, h("p", { class: "scale" }, `${titleOf(name)} from `, h("b", {}, number(least)), " to ", h("b", {}, number(greatest)),
    pieces ? null : ". The run did not write the tokens' texts, so their ids stand here."));
}
