// All runs: how each stands, what it has reached, and several of them to be compared.

import { address } from "../parts/address.js";
import { get } from "../parts/api.js";
import { fill, h } from "../parts/dom.js";
import { ago, duration, number, percent } from "../parts/format.js";
import { STATES } from "../parts/run_header.js";
import { badge, meter, table } from "../parts/table.js";

const MOST = 200;

export async function show({ root, params, signal }) {
  const chosen = new Set(params.getAll("chosen"));
  const list = h("div", {});
  const compare = h("a", { class: "button", "data-key": "compare" });
  const draw = (runs, dir) => {
    compare.textContent = chosen.size ? `Compare ${chosen.size} run${chosen.size > 1 ? "s" : ""}` : "Compare all runs";
    compare.href = address("compare", { runs: chosen.size ? [...chosen] : runs.slice(0, 50).map((run) => run.id) });
    compare.hidden = !runs.length;
    const toggle = (id) => {
      if (!chosen.delete(id)) chosen.add(id);
      history.replaceState(null, "", address("runs", { chosen: [...chosen] }));
      draw(runs, dir);
    };
    fill(list, table([
      { title: "Run", cell: (run) => run.name, grow: true },
      { title: "Compare", cell: (run) => h("input", { type: "checkbox", "data-key": `pick-${run.id}`, checked: chosen.has(run.id), "aria-label": `compare ${run.name}`, onchange: () => toggle(run.id) }) },
      { title: "State", cell: (run) => [badge(run.state, STATES[run.state]), run.num_alerts ? badge(`${run.num_alerts} alert${run.num_alerts > 1 ? "s" : ""}`, run.worst) : null] },
      { title: "Progress", cell: (run) => (run.progress === null ? number(run.policy_version) : [meter(run.progress, `progress of ${run.name}`), ` ${number(run.policy_version)} / ${number(run.num_updates)}`]) },
      { title: "Left", numeric: true, cell: (run) => duration(run.eta_s) },
      { title: "Success", numeric: true, cell: (run) => percent(run.last["rollout/success"]) },
      { title: "Reward", numeric: true, cell: (run) => number(run.last["rollout/reward"]) },
      { title: "Environment", cell: (run) => run.env_id ?? "–" },
      { title: "Model", cell: (run) => run.model ?? "–" },
      { title: "Seed", numeric: true, cell: (run) => run.seed ?? "–" },
      { title: "Written", numeric: true, cell: (run) => ago(run.updated_at) },
    ], runs.slice(0, MOST), {
      caption: runs.length > MOST ? `The newest ${MOST} of ${runs.length} runs in ${dir}` : `Runs in ${dir}`,
      empty: `There are no runs in ${dir} yet. Start one: make demo, or rollcage train countdown-small --out ${dir}/first.`,
      key: (run) => run.id,
      href: (run) => address("run", { run: run.id }),
    }));
    const broken = runs.filter((run) => run.error);
    if (broken.length) list.append(h("ul", { class: "wrong" }, broken.slice(0, 10).map((run) => h("li", {}, h("b", {}, run.name), `: ${run.error}`))));
  };
  const refresh = async () => {
    const [{ runs }, { runs_dir: dir }] = await Promise.all([get("/runs", {}, signal), get("", {}, signal)]);
    draw(runs, dir);
  };
  root.append(h("div", { class: "head" }, h("h1", {}, "Runs"), compare), list);
  await refresh();
  return refresh;
}
