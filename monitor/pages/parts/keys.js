// Shortcuts: one list, which the help shows too. They rest while somebody types.

import { h } from "./dom.js";

const ALWAYS = [
  ["?", "show these shortcuts"],
  ["1 … 6", "runs, training, pipeline, environments, sandboxes, trajectories"],
  ["/", "go to the search or filter field"],
  ["t", "light or dark"],
  ["j k", "next and previous link in the page"],
  ["Esc", "close what is open"],
];
const CHARTS = [["← →", "on a chart: read the values; on the timeline: move"], ["Home End", "on a chart: first and last"], ["+ -", "on the timeline: zoom"]];

/** Listen. actions: {key: function}; own(): [[key, meaning]] of the page that is shown. */
export function listen(actions, own) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target;
    if (event.key === "Escape" && target.matches("input")) return target.blur();
    if (target.matches("input, textarea, select") || document.querySelector("dialog[open]")) return;
    if (event.key === "?") return help(own());
    if (event.key === "j" || event.key === "k") return step(event.key === "j" ? 1 : -1);
    if (event.key === "/") {
      const field = document.querySelector("main [type=search], main input");
      if (field) {
        event.preventDefault();
        field.focus();
      }
      return;
    }
    actions[event.key]?.(event);
  });
}

function step(by) {
  const links = [...document.querySelectorAll("main a, main summary")].filter((it) => it.offsetParent);
  const now = links.indexOf(document.activeElement);
  links[now < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, now + by))]?.focus();
}

/** Show the list. */
export function help(own) {
  document.getElementById("help-dialog")?.remove();
  const rows = (list) => list.map(([key, meaning]) => h("div", {}, h("dt", {}, key.split(" ").map((it) => (it === "…" ? " … " : h("kbd", {}, it)))), h("dd", {}, meaning)));
  const dialog = h("dialog", { id: "help-dialog", "aria-label": "Keyboard shortcuts" },
    h("h2", {}, "Keyboard"), h("dl", { class: "keys" }, rows([...ALWAYS, ...own, ...CHARTS])),
    h("form", { method: "dialog" }, h("button", {}, "Close")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
