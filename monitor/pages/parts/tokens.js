// A message token by token: each one coloured by a number that belongs to it.
//
// An episode's record has `segments`: token_ids, loss_mask, rollout_logprobs, policy_versions, each [T], and where the run
// wrote them `pieces`, the tokens' texts. `annotations` hold what the trainer had for the same tokens (advantages, credit,
// waad, fai, old_logprobs ...): for each quantity one list [T] a segment, null where there was nothing.

import { h } from "./dom.js";
import { number } from "./format.js";
import { extent } from "./scale.js";
import { visible } from "./texts.js";

const MOST = 4000;
const TITLES = {
  rollout_logprobs: "log-probability (sampler)", policy_versions: "policy version", logprob_gap: "log-probability gap",
  advantages: "advantage", old_logprobs: "log-probability (trainer)", credit: "credit", waad: "WAAD", fai: "FAI",
};

/** Return {quantity: [list a segment]} of everything that is known about an episode's tokens. */
export function quantities(trajectory) {
  const found = {};
  for (const segment of trajectory.segments ?? [])
    for (const name of ["rollout_logprobs", "policy_versions"])
      if (segment[name]?.length) (found[name] ??= []).push(segment[name]);
  for (const [name, lists] of Object.entries(trajectory.annotations ?? {}))
    if (Array.isArray(lists?.[0])) found[name] = lists;
  if (found.old_logprobs && found.rollout_logprobs)
    found.logprob_gap = found.old_logprobs.map((list, segment) => list.map((value, token) => {
      const sampled = found.rollout_logprobs[segment]?.[token];
      return value === null || sampled === undefined ? null : value - sampled;
    }));
  return found;
}

/** Return the words for a quantity. */
export function titleOf(name) {
  return TITLES[name] ?? name.replaceAll("_", " ");
}

/** Return the texts of a turn's tokens, or null where the run did not write them. */
export function piecesOf(trajectory, turn) {
  return trajectory.segments?.[turn.segment]?.pieces?.slice(turn.start, turn.end) ?? null;
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
  if (!known.length) return null;
  const [least, greatest] = extent([known]);
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
