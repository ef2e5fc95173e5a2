// The head of every view of one run: which run it is, how it stands, and the way to another one.

import { address, here } from "./address.js";
import { get, runPath } from "./api.js";
import { fill, h } from "./dom.js";
import { ago, duration, number, percent } from "./format.js";
import { badge, meter } from "./table.js";

export const STATES = { running: "good", finished: "plain", paused: "warning", stopped: "warning", failed: "critical", dead: "critical", unknown: "plain" };

/** Make it; `header.refresh()` asks for the run's state again. Beware: it throws where the run is not there. */
export async function runHeader(title, run, signal, { chooser = true } = {}) {
  const state = h("div", { class: "run-state" });
  const header = h("div", { class: "head" }, h("h1", {}, title), chooser ? await runChooser(run, signal) : h("code", {}, run), state);
  header.refresh = async () => {
    const status = await get(runPath(run, "/status"), {}, signal);
    fill(state, stateLine(status));
    header.status = status;
    return status;
  };
  await header.refresh();
  return header;
}

/** How a run stands, in one line. */
export function stateLine(status) {
  return [
    badge(status.state, STATES[status.state]), status.is_partial ? badge("still being read", "warning") : null, " ",
    status.num_updates ? [meter(status.progress, "progress"), ` ${number(status.policy_version)} of ${number(status.num_updates)} updates`] : `${number(status.policy_version)} updates`,
    status.progress === null ? null : ` (${percent(status.progress, 0)})`,
    status.eta_s === null ? null : `, about ${duration(status.eta_s)} left`,
    h("span", { class: "quiet" }, `, trained ${duration(status.train_s)}, written ${ago(status.updated_at)}`),
    status.error ? h("p", { class: "wrong" }, status.error) : null,
  ];
}

async function runChooser(run, signal) {
  const { runs } = await get("/runs", {}, signal);
  const ids = runs.map((it) => it.id);
  if (!ids.includes(run)) ids.unshift(run);
  return h("select", { id: "run", "aria-label": "Run", value: run, onchange: (event) => { location.hash = address(here().page, { run: event.target.value }); } },
    ids.slice(0, 500).map((id) => h("option", { value: id }, id)));
}
