// Line charts in SVG, with bands.
//
// Why no plotting library: measured on the two-core machine, in headless Chromium, twelve charts of two lines with 500
// points each, begun after the first paint, took plotly.js 7.1 (4.8 MB) 1.5 to 2.0 s and BokehJS 3.9 (1.4 MB) 1.3 to
// 1.7 s until they stood (on a busy machine 4 and 2.6 s, where these took 0.3 to 0.8 s); and both set styles in ways that
// the pages' Content-Security-Policy refuses. See benchmarks/results/monitor.md.
//
// A chart is drawn when it comes into view, and at most once a frame. What it shows can be read from the element:
// figure.model = {title, lines: [{name, x, y, low, high}]}.

import { fill, h, s } from "./dom.js";
import { clock, number } from "./format.js";
import { clockTicks, extent, linear, nearest, roomy, ticks } from "./scale.js";

const TALL = 200;
const MARGIN = { top: 8, right: 10, bottom: 22, label: 14 };
const LETTER = 6.6; // pixels of a digit, about
const NUM_COLOURS = 8;

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) entry.target.chart?.see(entry.isIntersecting);
}, { rootMargin: "200px" });

/**
 * Make a chart; `figure.update(lines)` gives it other lines.
 *
 * lines: [{name, x, y, low, high}], x ascending, nulls in y are gaps, low and high (optional) bound a band.
 * options: height (pixels), x (what x is), whole (x is counted), seconds (x is a time), formatY(value), xLimits: [from, to], dots (draw points, not lines only).
 */
export function lineChart(title, lines, options = {}) {
  const readout = h("span", { class: "readout", "aria-live": "polite" });
  const legend = h("div", { class: "legend" });
  const svg = s("svg", { role: "img", tabindex: 0, height: options.height ?? TALL });
  const figure = h("figure", { class: "chart" }, h("figcaption", {}, h("b", {}, title), readout), svg, legend);
  figure.chart = new LineChart(figure, svg, legend, readout, options);
  figure.model = { title, lines };
  figure.update = (next) => {
    figure.model = { title, lines: next };
    figure.chart.draw();
    return figure;
  };
  figure.chart.label();
  seen.observe(figure);
  new ResizeObserver(() => figure.chart.draw()).observe(figure); // its own, so that it goes with the figure
  return figure;
}

class LineChart {
  constructor(figure, svg, legend, readout, options) {
    Object.assign(this, { figure, svg, legend, readout, options, hidden: new Set(), at: null, visible: false, frame: 0 });
    svg.addEventListener("pointermove", (event) => this.point(event));
    svg.addEventListener("pointerleave", () => this.read(null));
    svg.addEventListener("blur", () => this.read(null));
    svg.addEventListener("keydown", (event) => this.key(event));
  }

  see(visible) {
    this.visible = visible;
    if (visible) this.draw();
  }

  draw() {
    if (!this.visible || this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.paint();
    });
  }

  /** Say to those who do not see it what it shows. */
  label() {
    const { title, lines } = this.figure.model;
    const last = lines.map(({ name, y }) => `${name} ${this.formatY(y.findLast((value) => value !== null))}`);
    this.svg.setAttribute("aria-label", `${title}. ${last.length ? `Last: ${last.slice(0, NUM_COLOURS).join(", ")}.` : "No data."} Arrow keys read the values.`);
    if (this.at === null) this.readout.textContent = lines.length === 1 && lines[0].y.length ? last[0].slice(lines[0].name.length + 1) : "";
  }

  paint() {
    const lines = this.figure.model.lines.map((line, index) => ({ ...line, colour: `c${index % NUM_COLOURS}` }));
    const shown = lines.filter((line) => !this.hidden.has(line.name));
    const width = Math.max(160, this.legend.clientWidth);
    const height = this.options.height ?? TALL;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.label();
    this.paintLegend(lines);
    const across = this.options.xLimits ?? extent(shown.map((line) => line.x));
    const up = extent(shown.flatMap((line) => [line.y, line.low, line.high]));
    this.scale = null;
    if (!across || !up) {
      fill(this.svg, s("text", { x: width / 2, y: height / 2, class: "nothing" }, "no data yet"));
      return;
    }
    const limits = roomy(up);
    const marks = ticks(...limits, height < 150 ? 3 : 4);
    const left = 12 + LETTER * Math.max(...marks.map((value) => this.formatY(value).length));
    const bottom = height - MARGIN.bottom - (this.options.x ? MARGIN.label : 0);
    const x = linear(across, [left, width - MARGIN.right]);
    const y = linear(limits, [bottom, MARGIN.top]);
    this.scale = { x, y, across, left, width, shown };
    this.cursor = s("line", { class: "cursor", y1: MARGIN.top, y2: bottom, visibility: "hidden" });
    fill(this.svg, this.axes(x, y, across, marks, left, width, bottom),
      shown.filter((line) => line.low).map((line) => s("path", { class: `band ${line.colour}`, d: band(line, x, y) })),
      shown.map((line) => s("path", { class: `line ${line.colour}`, d: path(line.x, line.y, x, y) })),
      shown.map((line) => (this.options.dots || line.x.length < 2) && line.x.map((at, index) => line.y[index] !== null && s("circle", { class: `dot ${line.colour}`, cx: x(at), cy: y(line.y[index]), r: 2.5 }))),
      this.cursor);
    if (this.at !== null) this.read(this.at);
  }

  axes(x, y, across, marks, left, width, bottom) {
    const { seconds, whole } = this.options;
    return s("g", { class: "axes" },
      marks.map((value) => [
        s("line", { x1: left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }),
        s("text", { x: left - 6, y: y(value) + 4, class: "end" }, this.formatY(value)),
      ]),
      (seconds ? clockTicks : ticks)(...across, Math.max(2, Math.floor(width / 110)), whole).map((value) =>
        s("text", { x: Math.min(width - LETTER * this.formatX(value).length / 2, x(value)), y: bottom + 15, class: "middle" }, this.formatX(value))),
      this.options.x ? s("text", { x: (left + width - MARGIN.right) / 2, y: bottom + 15 + MARGIN.label, class: "middle" }, this.options.x) : null);
  }

  paintLegend(lines) {
    if (lines.length < 2) return fill(this.legend);
    return fill(this.legend, lines.slice(0, 16).map((line) => h("button", {
      type: "button", class: "plain", "data-key": `legend-${line.name}`, "aria-pressed": String(!this.hidden.has(line.name)),
      onclick: () => {
        if (!this.hidden.delete(line.name)) this.hidden.add(line.name);
        this.draw();
      },
    }, h("i", { class: line.colour }), line.name)));
  }

  formatX(value) {
    return this.options.seconds ? clock(value) : number(value);
  }

  formatY(value) {
    return (this.options.formatY ?? number)(value);
  }

  point(event) {
    if (!this.scale) return;
    const box = this.svg.getBoundingClientRect();
    const { across, left, width } = this.scale;
    this.read(linear([left, width - MARGIN.right], across)(((event.clientX - box.left) * width) / box.width));
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!step || !this.scale?.shown.length) return;
    event.preventDefault();
    const { x } = this.scale.shown[0];
    const now = this.at === null ? x.length - (step < 0 ? 0 : 1) : nearest(x, this.at);
    this.read(x[Math.min(x.length - 1, Math.max(0, now + step))]);
  }

  /** Show the values at one x; null is none. */
  read(at) {
    this.at = at;
    if (at === null || !this.scale) {
      this.cursor?.setAttribute("visibility", "hidden");
      return this.label();
    }
    const parts = [];
    let place = at;
    for (const { name, x, y } of this.scale.shown) {
      if (!x.length) continue;
      const index = nearest(x, at);
      place = x[index];
      parts.push(`${this.scale.shown.length > 1 ? `${name} ` : ""}${this.formatY(y[index])}`);
    }
    this.cursor.setAttribute("visibility", "visible");
    this.cursor.setAttribute("x1", this.scale.x(place));
    this.cursor.setAttribute("x2", this.scale.x(place));
    this.readout.textContent = `${this.formatX(place)}: ${parts.slice(0, NUM_COLOURS).join(", ")}`;
  }
}

function path(xs, ys, x, y) {
  let text = "";
  let pen = "M";
  for (let index = 0; index < xs.length; index += 1) {
    if (ys[index] === null || ys[index] === undefined) pen = "M";
    else {
      text += `${pen}${x(xs[index]).toFixed(1)} ${y(ys[index]).toFixed(1)}`;
      pen = "L";
    }
  }
  return text;
}

function band({ x: xs, low, high }, x, y) {
  const known = xs.map((_, index) => index).filter((index) => low[index] !== null && high[index] !== null);
  if (!known.length) return "";
  const top = known.map((index) => `${x(xs[index]).toFixed(1)} ${y(high[index]).toFixed(1)}`);
  const bottom = known.reverse().map((index) => `${x(xs[index]).toFixed(1)} ${y(low[index]).toFixed(1)}`);
  return `M${[...top, ...bottom].join("L")}Z`;
}
