// Text that a model, an environment or a program wrote: shown as it is, harmless, and never so long that the page stops.
//
// It only becomes text nodes. Characters that would hide or reorder what stands there (control codes, marks of the
// writing direction, lone surrogates) are shown as their code in a frame.

import { h } from "./dom.js";

const FIRST = 20_000;
const MORE = 200_000;
const LINE = 4_000;
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** Return nodes for a text: plain text, and a framed code for each character that cannot be seen. */
export function visible(text) {
  const nodes = [];
  let last = 0;
  for (const found of text.matchAll(HIDDEN)) {
    if (nodes.length > 4000) break; // so many frames are noise: the rest is cut
    nodes.push(text.slice(last, found.index));
    const code = found[0].charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");
    nodes.push(h("span", { class: "code-point", title: `U+${code}` }, found[0] === "\u001b" ? "ESC" : code));
    last = found.index + 1;
  }
  if (nodes.length <= 4000) nodes.push(text.slice(last));
  return nodes;
}

/** Make a block of text: its first part, and a button for more. */
export function textBlock(text, { label, kind = "" } = {}) {
  const whole = String(text ?? "");
  const block = h("pre", { class: `text ${kind}`, dir: "ltr", "aria-label": label ?? null }, visible(folded(whole.slice(0, cut(whole, FIRST)))));
  if (whole.length <= FIRST) return block;
  let shown = cut(whole, FIRST);
  const left = () => `${(whole.length - shown).toLocaleString("en-US")} more characters`;
  const button = h("button", {
    type: "button",
    onclick: () => {
      const end = cut(whole, shown + MORE);
      block.append(...visible(folded(whole.slice(shown, end))));
      shown = end;
      if (shown >= whole.length) button.remove();
      else button.textContent = left();
    },
  }, left());
  return h("div", {}, block, button);
}

// No character of two halves is cut in two.
function cut(text, at) {
  return /[\ud800-\udbff]/.test(text[at - 1] ?? "") ? at + 1 : at;
}

// Browsers lay a line out as one piece: one of a million characters would stop the page.
function folded(text) {
  if (text.length <= LINE) return text;
  return text.split("\n").map((line) => {
    const pieces = [];
    for (let start = 0; start < line.length;) {
      const end = cut(line, start + LINE);
      pieces.push(line.slice(start, end));
      start = end;
    }
    return pieces.join("\n");
  }).join("\n");
}

/** Return the start of a text in one line. */
export function oneLine(text, length = 120) {
  const line = String(text ?? "").slice(0, 4 * length).replace(/\s+/g, " ");
  return visible(line.length > length ? `${line.slice(0, length)}…` : line);
}
