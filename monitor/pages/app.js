// The frame around the views: which one the address asks for, what keeps it up to date, and what stands above it.

import { address, changed, here } from "./parts/address.js";
import { get, keepToken, takeToken } from "./parts/api.js";
import { fill, h } from "./parts/dom.js";
import { help, listen } from "./parts/keys.js";
import { follow, throttled } from "./parts/live.js";
import { failure, showAlerts, tokenForm } from "./parts/notices.js";
import { restoreTheme, switchTheme } from "./parts/theme.js";

const PAGES = [["runs", "Runs"], ["training", "Training"], ["pipeline", "Pipeline"], ["environments", "Environments"],
  ["sandboxes", "Sandboxes"], ["trajectories", "Trajectories"]];
const OTHERS = { run: "Runs", compare: "Runs", episode: "Trajectories" };
const OF_A_RUN = new Set(["run", "training", "pipeline", "environments", "trajectories", "episode"]);
const REFRESH_MS = 1000;
const ALERTS_MS = 3000;

const main = document.getElementById("main");
const alerts = document.getElementById("alerts");
const connection = document.getElementById("connection");
let current = null; // {page, controller, keys}
let lastRun = null;

function drawNavigation(page) {
  const name = OTHERS[page] ?? PAGES.find(([id]) => id === page)?.[1];
  fill(document.getElementById("nav"), PAGES.map(([id, title]) => h("a", {
    href: address(id, OF_A_RUN.has(id) && lastRun ? { run: lastRun } : {}), "aria-current": title === name ? "page" : null, "data-key": `nav-${id}`,
  }, title)));
  const nav = document.getElementById("nav");
  const shown = nav.querySelector("[aria-current]");
  if (shown) nav.scrollLeft = shown.offsetLeft - nav.offsetLeft - (nav.clientWidth - shown.offsetWidth) / 2;
}

/** The run of a view: the address' own, else the last one looked at, else the newest. */
async function chosenRun(page, params, signal) {
  if (!OF_A_RUN.has(page)) return null;
  if (params.get("run")) return params.get("run");
  if (lastRun) return lastRun;
  const { runs } = await get("/runs", {}, signal);
  return runs[0]?.id ?? null;
}

async function open() {
  const { page, params } = here();
  current?.controller.abort();
  const controller = new AbortController();
  const { signal } = controller;
  const isSame = current?.page === page;
  current = { page, controller, keys: [] };
  const known = OTHERS[page] || PAGES.some(([id]) => id === page);
  drawNavigation(page);
  const root = h("div", { class: `view ${page}` });
  try {
    const view = await import(`./views/${known ? page : "runs"}.js`);
    const run = await chosenRun(page, params, signal);
    if (run) lastRun = run;
    if (run && !params.get("run") && !signal.aborted) history.replaceState(null, "", changed({ run })); // the address says it all
    drawNavigation(page);
    if (OF_A_RUN.has(page) && !run) throw new Error("There are no runs yet. Start one: `make demo`, or `rollcage train countdown-small --out runs/first`.");
    const refresh = await view.show({ root, params, run, signal, keys: current.keys, reopen: open });
    if (signal.aborted) return;
    place(root, isSame);
    document.title = `${main.querySelector("h1")?.textContent ?? "Rollcage"} · Rollcage`;
    keepUp(refresh, run, signal);
    document.documentElement.dataset.ready = location.hash;
  } catch (error) {
    if (signal.aborted) return;
    const again = error.status === 401 ? tokenForm((token) => { keepToken(token); open(); }) : failure(error, open);
    place(h("div", { class: "view" }, again), false);
    connection.textContent = "";
    document.documentElement.dataset.ready = location.hash;
  }
}

/** Show a finished view in place of the one before; who was typing goes on typing. */
function place(root, isSame) {
  const active = main.contains(document.activeElement) ? document.activeElement : null;
  const [id, value, from] = [active?.id, active?.value, active?.selectionStart];
  const top = window.scrollY;
  main.replaceChildren(root);
  const next = isSame && id ? document.getElementById(id) : null;
  if (next) {
    if (value !== undefined && next.type === "search") next.value = value;
    next.focus({ preventScroll: true });
    if (from !== undefined && from !== null) next.setSelectionRange?.(from, from);
  }
  window.scrollTo(0, isSame ? top : 0);
}

function keepUp(refresh, run, signal) {
  const watch = () => showAlerts(alerts, run, signal).catch(() => {});
  const [alertsSoon, alertsNow] = [ALERTS_MS, REFRESH_MS].map((interval_ms) => throttled(watch, interval_ms, signal));
  alertsSoon();
  const soon = throttled(async () => {
    try {
      await refresh?.();
    } catch (error) {
      if (!signal.aborted) connection.textContent = error.message;
    }
  }, REFRESH_MS, signal);
  follow(run ? { run } : {}, {
    signal,
    onState: (state) => {
      connection.className = `connection ${state}`;
      connection.textContent = { live: "live", lost: "not connected, trying again" }[state] ?? "";
    },
    onMessage: (name, { events }) => {
      soon();
      (events?.some(({ event }) => event === "alert") ? alertsNow : alertsSoon)();
    },
  });
  const timer = setInterval(soon, refresh?.interval_ms ?? 10_000); // ages, and what no stream tells of
  signal.addEventListener("abort", () => clearInterval(timer));
}

takeToken();
restoreTheme();
listen({ t: switchTheme, ...Object.fromEntries(PAGES.map(([id], index) => [String(index + 1), () => { location.hash = address(id, OF_A_RUN.has(id) && lastRun ? { run: lastRun } : {}); }])) }, () => current?.keys ?? []);
document.getElementById("theme").addEventListener("click", switchTheme);
document.getElementById("help").addEventListener("click", () => help(current?.keys ?? []));
document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
const recolour = () => document.querySelectorAll(".timeline").forEach((it) => it.update(it.model)); // a canvas keeps its colours
addEventListener("theme", recolour);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
addEventListener("hashchange", () => { takeToken(); open(); });
open();
