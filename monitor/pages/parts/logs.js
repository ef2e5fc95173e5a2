// Who works for a run, on which node, and the end of what each one wrote.

import { change } from "./address.js";
import { get, runPath } from "./api.js";
import { h } from "./dom.js";
import { ago, bytes, number } from "./format.js";
import { note, table } from "./table.js";
import { textBlock } from "./texts.js";

const MAX_BYTES = 65_536;

/** Return the table of processes, and the log that the address names. */
export async function actorLogs(run, file, signal) {
  const [{ actors }, log] = await Promise.all([get(runPath(run, "/actors"), {}, signal), file ? read(run, file, signal) : null]);
  return [actorTable(actors, file), log];
}

function actorTable(actors, file) {
  const open = (row) => h("button", { type: "button", "data-key": `log-${row.file}`, "aria-pressed": String(row.file === file),
    "aria-label": `log of ${row.actor}`, onclick: () => change({ log: row.file === file ? null : row.file }) }, row.file === file ? "close" : "read");
  return table([
    { title: "Process", cell: (row) => row.actor },
    { title: "Node", cell: (row) => row.node || "this machine" },
    { title: "Process id", numeric: true, cell: (row) => (row.pid === null ? "–" : String(row.pid)) },
    { title: "Starts", numeric: true, cell: (row) => number(row.num_starts) },
    { title: "Log", numeric: true, cell: (row) => (row.file ? bytes(row.size_bytes) : "none") },
    { title: "Written", numeric: true, cell: (row) => (row.file ? ago(row.written_at) : "–") },
    { title: "", grow: true, cell: (row) => (row.file ? open(row) : null) },
  ], actors, { caption: "Engines, learner ranks and environments", key: (row) => row.actor, chosen: (row) => Boolean(file) && row.file === file,
    empty: "No process of this run has left a log: it ran in one process, or has not begun." });
}

async function read(run, file, signal) {
  try {
    const { text, start, size_bytes: size } = await get(runPath(run, `/logs/${encodeURIComponent(file)}`), { max_bytes: MAX_BYTES }, signal);
    return h("div", { class: "log" }, h("h3", {}, file), h("p", { class: "quiet" }, start ? `The last ${bytes(size - start)} of ${bytes(size)}.` : `${bytes(size)}, the newest lines last.`),
      text ? textBlock(text, { label: `end of ${file}` }) : note("Nothing has been written yet."));
  } catch (error) {
    if (error.status !== 404) throw error;
    return note(`There is no log ${file} any more. Choose another one.`);
  }
}
