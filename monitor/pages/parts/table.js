// Tables that scroll sideways on a narrow page and tell what to do where they have no rows.

import { h } from "./dom.js";

/**
 * Make a table.
 *
 * columns: [{title, cell(row) -> text or element, numeric, grow (takes the room that is left), clip (one line of it), sort: key}].
 * options: caption, empty (what to say without rows), key(row), href(row) (the row's first cell becomes a link),
 *   chosen(row), sorted: {key, descending}, onSort(key, descending).
 */
export function table(columns, rows, { caption, empty, key, href, chosen, sorted, onSort } = {}) {
  if (!rows.length) return note(empty ?? "Nothing yet.");
  const head = columns.map((column) => h("th", {
    scope: "col", class: cls(column),
    "aria-sort": sorted && column.sort && sorted.key === column.sort ? (sorted.descending ? "descending" : "ascending") : null,
  }, column.sort && onSort
    ? h("button", { type: "button", class: "plain", "data-key": `sort-${column.sort}`,
        onclick: () => onSort(column.sort, sorted?.key === column.sort ? !sorted.descending : true) },
        column.title, sorted?.key === column.sort ? (sorted.descending ? " ↓" : " ↑") : "")
    : column.title));
  const body = rows.map((row) => h("tr", { "data-key": key ? `row-${key(row)}` : null, class: chosen?.(row) ? "chosen" : null },
    columns.map((column, index) => {
      const content = column.cell(row);
      if (index || !href) return h("td", { class: cls(column) }, content);
      return h("th", { scope: "row", class: cls(column) },
        h("a", { href: href(row), "data-key": key ? `link-${key(row)}` : null }, content));
    })));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption ?? "table" },
    h("table", {}, caption ? h("caption", {}, h("span", {}, caption)) : null, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

const cls = (column) => [column.numeric ? "numeric" : "", column.grow ? "grow" : "", column.clip ? "clip" : ""].join(" ").trim() || null;

/** Make a line that says why there is nothing, and what to do. */
export function note(text) {
  return h("p", { class: "empty" }, text);
}

/** Make a list of terms and values. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value ?? "–"))));
}

/** Make a small coloured word. */
export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}

/** Make a bar from 0 to 1. */
export function meter(share, label) {
  const element = h("span", { class: "meter", role: "progressbar", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100,
    "aria-valuenow": Math.round(100 * (share ?? 0)) }, h("span", {}));
  element.firstChild.style.width = `${100 * Math.min(1, Math.max(0, share ?? 0))}%`;
  return element;
}
