// Who was busy when: a canvas with a row for each track. However many spans there are, it is one element.
//
// figure.model = {first, last, tracks: [{name, spans: [{name, start_s, end_s, num, busy_s}]} or {name, strip: {at_s, value}}]}

import { h } from "./dom.js";
import { clock, duration, number } from "./format.js";
import { clockTicks, linear, nearest } from "./scale.js";

const ROW = 24;
const LONGEST_LABEL = 150;
const BOTTOM = 20;
const COLOURS = { train: 0, wait: 7, publish: 1, generate: 2, decode: 2, prefill: 4, reset: 3, step: 2, acquire: 7, load: 5, paused: 6, stopped: 6, idle: 7 };

/** Make the timeline; `figure.update(model)` shows another one. onMove(from_s, to_s) is told where the reader wants to look. */
export function timelineChart(title, model, onMove) {
  const readout = h("span", { class: "readout", "aria-live": "polite" });
  const canvas = h("canvas", { tabindex: 0, role: "img" });
  const figure = h("figure", { class: "chart timeline" }, h("figcaption", {}, h("b", {}, title), readout), canvas);
  const legend = h("div", { class: "legend" });
  figure.append(legend);
  const draw = () => paint(figure, canvas, legend, title);
  figure.update = (next) => {
    figure.model = next;
    requestAnimationFrame(draw);
    return figure;
  };
  new ResizeObserver(draw).observe(figure);
  canvas.addEventListener("pointermove", (event) => { readout.textContent = spoken(figure, canvas, event); });
  canvas.addEventListener("pointerleave", () => { readout.textContent = ""; });
  canvas.addEventListener("keydown", (event) => {
    const { first, last } = figure.model;
    const width = last - first;
    const moves = { ArrowLeft: [-0.25, -0.25], ArrowRight: [0.25, 0.25], "+": [0.25, -0.25], "-": [-0.5, 0.5] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    onMove(first + move[0] * width, last + move[1] * width);
  });
  drag(canvas, figure, onMove);
  return figure.update(model);
}

function drag(canvas, figure, onMove) {
  let from = null;
  canvas.addEventListener("pointerdown", (event) => { from = event.offsetX; });
  canvas.addEventListener("pointerup", (event) => {
    if (from === null || Math.abs(event.offsetX - from) < 8) return;
    const { first, last } = figure.model;
    const time = linear([figure.left, canvas.clientWidth], [first, last]);
    onMove(...[time(from), time(event.offsetX)].sort((a, b) => a - b));
    from = null;
  });
}

function paint(figure, canvas, legend, title) {
  const { first, last, tracks } = figure.model;
  const width = Math.max(200, legend.clientWidth);
  const height = tracks.length * ROW + BOTTOM;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const style = getComputedStyle(figure);
  const colour = (index) => style.getPropertyValue(`--c${index}`);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const left = figure.left = Math.ceil(Math.min(LONGEST_LABEL, 0.4 * width, 10 + Math.max(0, ...tracks.map(({ name }) => pen.measureText(name).width))));
  const x = linear([first, last], [left, width]);
  const names = new Map();
  tracks.forEach((track, row) => {
    const top = row * ROW;
    pen.fillStyle = style.getPropertyValue("--text");
    pen.fillText(track.name, 0, top + ROW / 2, left - 8);
    pen.fillStyle = style.getPropertyValue("--soft");
    pen.fillRect(left, top + 3, width - left, ROW - 6);
    if (track.strip) paintStrip(pen, track.strip, x, left, top, colour(2));
    for (const span of track.spans ?? []) {
      const index = COLOURS[span.name] ?? 3 + ([...span.name].reduce((sum, letter) => sum + letter.charCodeAt(0), 0) % 4);
      names.set(span.name, index);
      pen.fillStyle = colour(index);
      const from = Math.max(left, x(span.start_s));
      // Where several pieces of work became one span, its height is the share of the time in which there was any.
      const share = Math.max(0.15, Math.min(1, span.busy_s / Math.max(1e-9, span.end_s - span.start_s)));
      const tall = (ROW - 6) * share;
      pen.fillRect(from, top + ROW - 3 - tall, Math.max(0.7, Math.min(width, x(span.end_s)) - from), tall);
    }
  });
  pen.fillStyle = style.getPropertyValue("--quiet");
  pen.textAlign = "center";
  const { zero } = figure.model;
  for (const at of clockTicks(first - zero, last - zero, Math.max(2, Math.floor(width / 130))))
    pen.fillText(clock(at), Math.min(width - 16, Math.max(left + 12, x(at + zero))), height - BOTTOM / 2);
  pen.textAlign = "left";
  legend.replaceChildren(...[...names].map(([name, index]) => h("span", {}, h("i", { class: `c${index}` }), name)));
  canvas.setAttribute("aria-label", `${title}: ${tracks.map((track) => track.name).join(", ")}; ${duration(last - first)}. Arrow keys move, + and - zoom.`);
}

function paintStrip(pen, { at_s, value }, x, left, top, colour) {
  const greatest = Math.max(...value.filter((it) => it !== null), 1e-9);
  pen.fillStyle = colour;
  for (let index = 0; index < at_s.length - 1; index += 1) {
    const tall = ((ROW - 6) * (value[index] ?? 0)) / greatest;
    const from = Math.max(left, x(at_s[index]));
    const to = x(at_s[index + 1]);
    if (to > left) pen.fillRect(from, top + ROW - 3 - tall, Math.max(0.7, to - from), tall);
  }
}

function spoken({ left, model: { first, last, tracks, zero } }, canvas, event) {
  const track = tracks[Math.floor(event.offsetY / ROW)];
  const at = linear([left, canvas.clientWidth], [first, last])(event.offsetX);
  if (!track || event.offsetX < left) return "";
  const when = clock(at - zero);
  if (track.strip) return `${when}: ${track.name} ${number(track.strip.value[nearest(track.strip.at_s, at)])}`;
  const span = track.spans.find((it) => it.start_s <= at && at <= it.end_s);
  if (!span) return `${when}: ${track.name}, nothing`;
  return `${when}: ${track.name} ${span.name}, ${duration(span.busy_s)}${span.num === 1 ? "" : ` of ${duration(span.end_s - span.start_s)}, ${number(span.num)} ended`}`;
}
