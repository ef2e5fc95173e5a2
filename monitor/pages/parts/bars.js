// Horizontal bars: one labelled row each, in pieces where a row is made of several. figure.model holds the numbers.

import { h } from "./dom.js";
import { number } from "./format.js";

/** rows: [{label, pieces: [{name, value}]}]; `names` gives the pieces their colours. */
export function barChart(title, rows, names = [""], { total = false } = {}) {
  const sum = (row) => row.pieces.reduce((all, { value }) => all + value, 0);
  const greatest = Math.max(...rows.map(sum), 1e-12);
  const figure = h("figure", { class: "bars", role: "group", "aria-label": title },
    h("figcaption", {}, h("b", {}, title)),
    rows.length ? rows.map((row) => {
      const words = row.pieces.filter(({ value }) => value).map(({ name, value }) => `${name} ${number(value)}`.trim()).join(", ");
      const bar = h("span", { class: "bar", role: "img", "aria-label": `${row.label}: ${words || "0"}`, title: words });
      for (const { name, value } of row.pieces) {
        const piece = h("i", { class: `c${Math.max(0, names.indexOf(name)) % 8}` });
        piece.style.width = `${(100 * value) / greatest}%`;
        bar.append(piece);
      }
      return h("div", { class: "bar-row" }, h("span", { class: "bar-label" }, row.label), bar, h("span", { class: "bar-value" }, number(sum(row))));
    }) : h("p", { class: "empty" }, "no data yet"),
    names.length > 1 ? h("div", { class: "legend" }, names.map((name, index) => h("span", {}, h("i", { class: `c${index % 8}` }), name))) : null,
    total ? h("p", { class: "quiet" }, `${number(rows.reduce((all, row) => all + sum(row), 0))} in all`) : null);
  figure.model = { title, rows };
  return figure;
}

/** Bars from a histogram of the store: {bounds, counts}; buckets that nothing fell into are left out. */
export function histogramChart(title, { bounds, counts }, unit = "") {
  const rows = counts.map((value, index) => ({
    label: index < bounds.length ? `≤ ${number(bounds[index])}${unit}` : `> ${number(bounds.at(-1))}${unit}`,
    pieces: [{ name: "", value }],
  }));
  return barChart(title, rows.filter(({ pieces: [{ value }] }) => value), [""], { total: true });
}
