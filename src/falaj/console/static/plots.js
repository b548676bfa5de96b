// Plots: curves answer to pointer and keys, axes take brushes, graphs and the map can be walked.
//
// Everything listens at the document, so plots that come later (a live page renews itself) need no setting up. What a
// person did to a plot is kept by the plot's key and done again after `falaj:morphed`.

import { refresh } from "./live.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDE = 1000;
const kept = new Map();
let held = null; // the drag under way: {move(event), done(event, moved), x, y}

const plotOf = (node, kind) => node.closest?.(`figure[data-plot${kind ? `="${kind}"` : ""}]`);
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

function state(figure) {
  const same = [...document.querySelectorAll("figure[data-plot]")].filter((one) => one.dataset.key === figure.dataset.key);
  const key = `${figure.dataset.key} ${same.indexOf(figure)}`;
  if (!kept.has(key)) kept.set(key, { hidden: new Set(), range: null, brushes: new Map(), zoom: 1, box: null, at: -1 });
  return kept.get(key);
}

function set(node, attributes) {
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

function make(name, attributes, ...children) {
  const node = set(document.createElementNS(SVG, name), attributes);
  node.append(...children);
  return node;
}

function part(parent, name, kind) {
  return parent.querySelector(`:scope > .${kind}`) ?? parent.appendChild(make(name, { class: kind }));
}

function tell(figure, pieces, aloud) {
  const out = figure.querySelector(".plot-out");
  if (!out) return;
  // A pointer that passes over a thousand points would talk without end; keys speak.
  out.setAttribute("aria-live", aloud ? "polite" : "off");
  out.replaceChildren(...pieces.map(([text, kind]) => {
    const piece = document.createElement(kind ? "bdi" : "span");
    piece.className = kind;
    piece.textContent = text;
    return piece;
  }));
}

// Numbers and moments, as plots/scale.py writes them.

function digits(figure, written) {
  if (written.includes("e") || !/[٠-٩]/.test(figure.querySelector(".side")?.textContent ?? "")) return written;
  return written.replace(/[0-9.,]/g, (letter) => "٠١٢٣٤٥٦٧٨٩٫٬"["0123456789.,".indexOf(letter)]);
}

function number(value, step = 0, top = 0) {
  const size = Math.max(Math.abs(value), step, top);
  if (value === 0 || size === 0) return "0";
  if (size >= 1e15 || size < 1e-4) return value.toExponential(2).replace(/\.?0*e\+?/, "e");
  const [power, unit] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"], [0, ""]].find(([least]) => size >= least);
  const by = unit === "k" ? 1e3 : power || 1;
  const places = step ? 1 - Math.floor(Math.log10(step / by) + 1e-9) : 3 - Math.floor(Math.log10(Math.abs(value) / by));
  return (value / by).toLocaleString("en", { maximumFractionDigits: clamp(places, 0, 9) }) + unit;
}

function moment(seconds, span) {
  const two = (n) => String(n).padStart(2, "0");
  const at = new Date((seconds + 4 * 3600) * 1000); // Gulf time has no summer time
  const [day, clock] = [`${two(at.getUTCDate())}/${two(at.getUTCMonth() + 1)}`, `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}`];
  if (span < 600) return `${clock}:${two(at.getUTCSeconds())}`;
  if (span < 86400) return clock;
  return span < 3 * 86400 ? `${day} ${clock}` : span < 300 * 86400 ? day : `${day.slice(3)}/${at.getUTCFullYear()}`;
}

function nice(low, high, wanted) {
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((times) => power * times >= rough * 0.999);
  const [first, last] = [Math.ceil(low / step - 1e-9), Math.floor(high / step + 1e-9)];
  return Array.from({ length: clamp(last - first + 1, 0, 40) }, (_, n) => (first + n) * step);
}

const SECONDS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200];
const STEPS = [...SECONDS, ...[1, 2, 7, 14, 30, 91, 182, 365, 730, 1825, 3650, 36500].map((days) => days * 86400)];

function clocked(low, high, wanted) {
  const step = STEPS.find((one) => one >= (high - low) / wanted);
  if (!step || high - low < wanted) return nice(low, high, wanted);
  const first = Math.ceil((low + 14400) / step);
  return Array.from({ length: Math.floor((high + 14400) / step) - first + 1 }, (_, n) => (first + n) * step - 14400);
}

// Curves.

const parsed = new WeakMap();

function points(path) {
  // Steps that are the first curve's are sent once.
  const [x, y] = [path.dataset.x ?? path.closest(".plane").querySelector("[data-x]").dataset.x, path.dataset.y];
  const known = parsed.get(path);
  if (known?.x === x && known.y === y) return known;
  const numbers = (text) => text.split(",").map((one) => (one === "" ? NaN : Number(one)));
  const made = { x, y, xs: numbers(x), ys: numbers(y) };
  parsed.set(path, made);
  return made;
}

function lineOf(figure) {
  const box = figure.querySelector(".plot-box");
  const [left, right, low, high] = box.dataset.scale.split(" ").map(Number);
  const now = state(figure);
  const curves = [...figure.querySelectorAll(".plane > g[data-series]")].filter((one) => !now.hidden.has(one.dataset.series));
  return {
    box, left, right, low, high, now, curves, area: box.querySelector(".area"), plane: box.querySelector(".plane"),
    tall: Number(box.dataset.tall), log: "log" in box.dataset, time: "time" in box.dataset, range: now.range ?? [left, right],
  };
}

function level(plot, value) {
  const way = plot.log ? Math.log10 : (same) => same;
  return plot.tall * (1 - (way(value) - way(plot.low)) / (way(plot.high) - way(plot.low)));
}

function draw(figure) {
  const plot = lineOf(figure);
  const { left, right, tall, range } = plot;
  const [low, high] = plot.now.range && !plot.log ? visible(plot) : [plot.low, plot.high];
  const [x, wide] = [WIDE * (range[0] - left) / (right - left), WIDE * (range[1] - range[0]) / (right - left)];
  const [top, foot] = [level(plot, high), level(plot, low)];
  plot.plane.setAttribute("viewBox", `${x} ${top} ${wide} ${foot - top}`);
  const marks = plot.time ? clocked(...range, 6) : nice(...range, 6);
  const write = (m) => digits(figure, plot.time ? moment(m, range[1] - range[0]) : number(m, marks[1] - marks[0] || 0, Math.max(...marks.map(Math.abs))));
  plot.area.querySelector(".ticks").replaceChildren(...marks.map((m, n) => make("text", {
    x: `${100 * (m - range[0]) / (range[1] - range[0])}%`, y: tall + 22, "text-anchor": "middle", class: n % 2 ? "odd" : "",
  }, write(m))));
  if (!plot.log) rows(figure, plot, low, high);
  plot.box.classList.toggle("zoomed", Boolean(plot.now.range));
}

function rows(figure, plot, low, high) {
  const marks = nice(low, high, 5);
  const at = (m) => 6 + plot.tall * (high - m) / (high - low);
  const top = Math.max(...marks.map(Math.abs));
  const labels = marks.map((m) => digits(figure, number(m, marks[1] - marks[0], top)));
  const texts = marks.map((m, n) => make("text", { x: "100%", dx: -8, y: at(m), dy: ".32em", "text-anchor": "end" }, labels[n]));
  const side = plot.box.querySelector(".side");
  side.replaceChildren(...texts);
  side.setAttribute("width", 14 + 7 * Math.max(...labels.map((one) => one.length)));
  plot.area.querySelector(".grid").replaceChildren(...marks.map((m) => make("line", { x1: 0, x2: "100%", y1: at(m), y2: at(m) })));
}

function visible(plot) {
  let [low, high] = [Infinity, -Infinity];
  for (const curve of plot.curves) {
    const { xs, ys } = points(curve.querySelector(".stroke"));
    xs.forEach((x, n) => {
      if (x + plot.left < plot.range[0] || x + plot.left > plot.range[1] || Number.isNaN(ys[n])) return;
      [low, high] = [Math.min(low, ys[n]), Math.max(high, ys[n])];
    });
  }
  if (!(high > low)) return [plot.low, plot.high];
  const step = nice(low, high, 5);
  const by = step[1] - step[0] || (high - low) / 5;
  return [Math.floor(low / by) * by, Math.ceil(high / by) * by];
}

function nearest(sorted, wanted) {
  let [low, high] = [0, sorted.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < wanted) low = middle; else high = middle;
  }
  return wanted - sorted[low] <= sorted[high] - wanted ? low : high;
}

function point(figure, wanted, aloud) {
  const plot = lineOf(figure);
  const cursor = part(plot.area, "g", "cursor");
  const [, top, , deep] = plot.plane.getAttribute("viewBox").split(" ").map(Number);
  const pieces = [];
  const dots = [];
  let where = wanted;
  plot.curves.forEach((curve, order) => {
    const { xs, ys } = points(curve.querySelector(".stroke"));
    if (!xs.length) return;
    const n = nearest(xs, wanted - plot.left);
    if (order === 0) where = xs[n] + plot.left;
    if (Number.isNaN(ys[n])) return;
    const x = `${100 * (xs[n] + plot.left - plot.range[0]) / (plot.range[1] - plot.range[0])}%`;
    dots.push(make("circle", { cx: x, cy: 6 + plot.tall * (level(plot, ys[n]) - top) / deep, r: 3.5, class: curve.getAttribute("class") }));
    pieces.push([`${curve.dataset.name ?? ""} ${digits(figure, number(ys[n]))}`.trim(), `of ${curve.getAttribute("class")}`]);
  });
  const x = `${100 * (where - plot.range[0]) / (plot.range[1] - plot.range[0])}%`;
  cursor.replaceChildren(make("line", { x1: x, x2: x, y1: 6, y2: 6 + plot.tall }), ...dots);
  const said = plot.time ? moment(where, 1) : number(where, 0.01 * (plot.range[1] - plot.range[0]));
  tell(figure, [[digits(figure, plot.time ? `${moment(where, 86400 * 4)} ${said}` : said), "where"], ...pieces], aloud);
  plot.now.where = where;
}

function valueAt(figure, event) {
  const { area, range } = lineOf(figure);
  const rect = area.getBoundingClientRect();
  return range[0] + (range[1] - range[0]) * clamp((event.clientX - rect.left) / rect.width, 0, 1);
}

function zoom(figure, range) {
  const plot = lineOf(figure);
  const share = range ? (range[1] - range[0]) / (plot.right - plot.left) : 1;
  if (share < 1e-6) return; // nothing is finer
  const whole = share >= 1;
  plot.now.range = whole ? null : [Math.max(range[0], plot.left), Math.min(range[1], plot.right)];
  draw(figure);
  part(plot.area, "g", "cursor").replaceChildren();
  if (figure.closest("[data-refetch]")) refetch(plot.now);
}

// A finer look at the range: the server folds fewer points into one. The address has it, so that links and "back" do.
function refetch(now) {
  const here = new URL(location.href);
  const [from, to] = now.range ?? [null, null];
  for (const [name, value] of [["from", from], ["to", to]]) {
    if (value === null) here.searchParams.delete(name); else here.searchParams.set(name, String(Number(value.toPrecision(12))));
  }
  if (here.href === location.href) return;
  now.range = null; // what comes is the range
  history.pushState(null, "", here);
  refresh();
}

function brushLine(figure, event) {
  const start = valueAt(figure, event);
  const { area, tall } = lineOf(figure);
  const rect = area.getBoundingClientRect();
  const from = event.clientX - rect.left;
  const brush = part(area, "rect", "brush");
  const move = (next) => {
    const to = clamp(next.clientX - rect.left, 0, rect.width);
    set(brush, { x: Math.min(from, to), width: Math.abs(to - from), y: 6, height: tall });
  };
  const done = (next, moved) => {
    brush.remove();
    const end = valueAt(figure, next);
    if (moved) zoom(figure, [Math.min(start, end), Math.max(start, end)]);
    else point(figure, end, false); // a finger does not hover
  };
  hold(event, move, done);
}

function keyLine(figure, event) {
  const plot = lineOf(figure);
  const first = plot.curves[0] && points(plot.curves[0].querySelector(".stroke"));
  if (!first) return false;
  const shown = first.xs.map((x) => x + plot.left).filter((x) => x >= plot.range[0] && x <= plot.range[1]);
  const at = plot.now.where === undefined ? -1 : nearest(shown, plot.now.where);
  const step = event.shiftKey ? 10 : 1;
  const to = { ArrowRight: at + step, ArrowLeft: at - step, Home: 0, End: shown.length - 1 }[event.key];
  if (to !== undefined && shown.length) point(figure, shown[clamp(to, 0, shown.length - 1)], true);
  else if (event.key === "Escape") zoom(figure, null);
  else if (event.key === "+" || event.key === "-") zoom(figure, around(plot, event.key === "+" ? 0.5 : 2));
  else return false;
  return true;
}

function around(plot, times) {
  const [low, high] = plot.range;
  const middle = clamp(plot.now.where ?? (low + high) / 2, low, high);
  return [middle - (middle - low) * times, middle + (high - middle) * times];
}

function toggle(figure, button) {
  const now = state(figure);
  const key = button.dataset.series;
  if (!now.hidden.delete(key)) now.hidden.add(key);
  hide(figure);
  if (now.range) draw(figure);
}

function hide(figure) {
  const { hidden } = state(figure);
  for (const one of figure.querySelectorAll("[data-series]")) {
    const off = hidden.has(one.dataset.series);
    if (one.localName === "button") one.setAttribute("aria-pressed", String(!off));
    else one.classList.toggle("off", off);
  }
}

// Parallel coordinates.

function uprightAt(figure, event) {
  const rect = figure.querySelector(".area").getBoundingClientRect();
  return [...figure.querySelectorAll(".upright")].find((one) => Math.abs(event.clientX - rect.left - Number(one.dataset.x) * rect.width) < 14);
}

function plane(figure) {
  const [top, tall] = ["y", "height"].map((name) => Number(figure.querySelector(".plane").getAttribute(name)));
  return { top, tall, above: figure.querySelector(".area").getBoundingClientRect().top + top };
}

function brushAxis(figure, upright, event) {
  const { above, tall } = plane(figure);
  const at = (next) => clamp(1 - (next.clientY - above) / tall, 0, 1);
  const start = at(event);
  const mark = (next, moved = true) => {
    const span = [Math.min(start, at(next)), Math.max(start, at(next))];
    if (moved) state(figure).brushes.set(upright.dataset.axis, span); else state(figure).brushes.delete(upright.dataset.axis);
    fade(figure);
  };
  hold(event, mark, (next, moved) => { mark(next, moved); chosen(figure); });
}

function keyAxis(figure, upright, event) {
  const { brushes } = state(figure);
  const [low, high] = brushes.get(upright.dataset.axis) ?? [0, 1];
  const by = { ArrowUp: 0.05, ArrowDown: -0.05 }[event.key];
  if (event.key === "Escape") brushes.delete(upright.dataset.axis);
  else if (by) brushes.set(upright.dataset.axis, event.shiftKey ? [low, clamp(high + by, low, 1)] : [clamp(low + by, 0, high), high]);
  else return false;
  fade(figure);
  chosen(figure);
  return true;
}

function fade(figure) {
  const { brushes } = state(figure);
  for (const run of figure.querySelectorAll(".run")) {
    const levels = run.dataset.at.split(",");
    const within = ([axis, [low, high]]) => levels[axis] && Number(levels[axis]) >= low - 1e-3 && Number(levels[axis]) <= high + 1e-3;
    run.classList.toggle("faded", ![...brushes].every(within));
  }
  const left = brushes.size ? [...figure.querySelectorAll(".run:not(.faded)")] : [];
  figure.querySelector("input[name=brushed]").value = left.map((run) => run.dataset.id).join(" ");
  const { top, tall } = plane(figure);
  for (const upright of figure.querySelectorAll(".upright")) {
    const brush = part(upright, "rect", "brush");
    const [low, high] = brushes.get(upright.dataset.axis) ?? [0, 0];
    const x = `${100 * Number(upright.dataset.x)}%`;
    set(brush, { x, y: top + tall * (1 - high), width: 12, height: tall * (high - low), transform: "translate(-6 0)" });
  }
}

function chosen(figure) {
  const runs = [...figure.querySelectorAll(".run")];
  const some = state(figure).brushes.size ? runs.filter((run) => !run.classList.contains("faded")) : [];
  const ids = some.map((run) => run.dataset.id);
  const words = figure.querySelector(".plot-out").dataset.chosen ?? "{some} / {all}";
  tell(figure, ids.length || state(figure).brushes.size ? [[words.replace("{some}", ids.length).replace("{all}", runs.length), ""]] : [], true);
  figure.dispatchEvent(new CustomEvent("falaj:brushed", { bubbles: true, detail: { ids } }));
}

// Graphs and the map.

function light(figure, node) {
  const drawing = figure.querySelector(".drawing");
  for (const one of drawing.querySelectorAll(".lit")) one.classList.remove("lit");
  drawing.classList.toggle("dim", Boolean(node));
  if (!node) return;
  const edges = [...drawing.querySelectorAll(".edge")];
  const found = new Set([node.dataset.node]);
  for (const [near, far] of [["from", "to"], ["to", "from"]]) {
    const walk = [node.dataset.node];
    const seen = new Set(walk);
    while (walk.length) {
      const here = walk.pop();
      for (const edge of edges) {
        if (edge.dataset[near] !== here) continue;
        edge.classList.add("lit");
        if (!seen.has(edge.dataset[far])) walk.push(edge.dataset[far]);
        seen.add(edge.dataset[far]);
        found.add(edge.dataset[far]);
      }
    }
  }
  for (const one of found) drawing.querySelector(`[data-node="${one}"]`)?.classList.add("lit");
}

function scaleGraph(figure, times, event) {
  const [drawing, box, now] = [figure.querySelector(".drawing"), figure.querySelector(".plot-scroll"), state(figure)];
  const [, , wide, tall] = drawing.getAttribute("viewBox").split(" ").map(Number);
  const before = now.zoom;
  // From right to left, scrolling counts down from nought at the right edge.
  const hidden = () => (getComputedStyle(box).direction === "rtl" ? box.scrollWidth - box.clientWidth : 0);
  const [left, above] = [box.scrollLeft + hidden(), box.scrollTop];
  now.zoom = times ? clamp(before * times, 0.15, 3) : Math.min(1, box.clientWidth / wide);
  drawing.setAttribute("width", wide * now.zoom);
  drawing.setAttribute("height", tall * now.zoom);
  const rect = box.getBoundingClientRect();
  const [x, y] = event ? [event.clientX - rect.left, event.clientY - rect.top] : [box.clientWidth / 2, box.clientHeight / 2];
  box.scrollLeft = (left + x) * now.zoom / before - x - hidden();
  box.scrollTop = (above + y) * now.zoom / before - y;
}

function boxes(figure) {
  const drawing = figure.querySelector(".drawing");
  const [whole, home] = [drawing.dataset.whole, drawing.dataset.home].map((one) => one.split(" ").map(Number));
  return { drawing, whole, home, now: state(figure).box ?? home };
}

function show(figure, [x, y, wide, tall]) {
  const { drawing, whole, home } = boxes(figure);
  const size = clamp(wide, 2, whole[2]);
  const deep = size * tall / wide;
  const box = [clamp(x, whole[0], whole[0] + whole[2] - size), clamp(y, whole[1], whole[1] + whole[3] - deep), size, deep];
  state(figure).box = box;
  drawing.querySelector(".earth").setAttribute("viewBox", box.join(" "));
  drawing.classList.toggle("near", size < home[2] * 0.6);
  drawing.classList.toggle("far", size > home[2] * 1.8);
  for (const place of drawing.querySelectorAll(".place")) {
    const [east, south] = place.dataset.at.split(" ").map(Number);
    place.setAttribute("x", `${100 * (east - box[0]) / box[2]}%`);
    place.setAttribute("y", `${100 * (south - box[1]) / box[3]}%`);
  }
}

function scaleMap(figure, times, event) {
  const { drawing, whole, home, now } = boxes(figure);
  if (!times) return show(figure, now[2] < whole[2] ? whole : home);
  const rect = drawing.getBoundingClientRect();
  const [u, v] = event ? [(event.clientX - rect.left) / rect.width, (event.clientY - rect.top) / rect.height] : [0.5, 0.5];
  const size = clamp(now[2] / times, 2, whole[2]) / now[2];
  return show(figure, [now[0] + now[2] * u * (1 - size), now[1] + now[3] * v * (1 - size), now[2] * size, now[3] * size]);
}

function drag(figure, event) {
  const { clientX: x, clientY: y } = event;
  if (figure.dataset.plot === "world") {
    const { drawing, now } = boxes(figure);
    const rect = drawing.getBoundingClientRect();
    const move = (next) => show(figure, [now[0] - (next.clientX - x) * now[2] / rect.width, now[1] - (next.clientY - y) * now[3] / rect.height, now[2], now[3]]);
    return hold(event, move, () => {});
  }
  const box = figure.querySelector(".plot-scroll");
  const [left, top] = [box.scrollLeft, box.scrollTop];
  return hold(event, (next) => box.scrollTo(left - next.clientX + x, top - next.clientY + y), () => {});
}

const scaled = (figure, times, event) => (figure.dataset.plot === "world" ? scaleMap : scaleGraph)(figure, times, event);

// Listening.

function hold(event, move, done) {
  held = { move, done, x: event.clientX, y: event.clientY, moved: false };
}

function down(event) {
  const figure = plotOf(event.target);
  if (!figure || event.button || !event.target.closest("svg")) return;
  const kind = figure.dataset.plot;
  if (kind === "line" && event.target.closest(".area")) brushLine(figure, event);
  else if (kind === "parallel") {
    const upright = uprightAt(figure, event);
    if (upright) brushAxis(figure, upright, event);
  } else if (["graph", "world"].includes(kind) && event.pointerType === "mouse" && !event.target.closest("a")) drag(figure, event);
}

function moves(event) {
  if (held) {
    held.moved ||= Math.hypot(event.clientX - held.x, event.clientY - held.y) > 5;
    if (held.moved) held.move(event);
    return;
  }
  const line = event.target.closest?.(".area") && plotOf(event.target, "line");
  if (line) point(line, valueAt(line, event), false);
  const run = event.target.closest?.(".run");
  if (run) tell(plotOf(run), [[run.dataset.name, "where"]], false);
}

function up(event) {
  const now = held;
  held = null;
  now?.done(event, now.moved);
}

function click(event) {
  const figure = plotOf(event.target);
  const [entry, button, run] = [".plot-legend [data-series]", "[data-zoom]", ".run[data-link]"].map((one) => event.target.closest?.(one));
  if (!figure) return;
  if (entry) toggle(figure, entry);
  if (button) scaled(figure, { in: 1.4, out: 1 / 1.4, all: 0 }[button.dataset.zoom]);
  // Links are the server's own; the check holds whatever else may come to write this attribute.
  if (run && /^\/(?![/\\])/.test(run.dataset.link) && !uprightAt(figure, event)) location.assign(run.dataset.link);
}

function keys(event) {
  const figure = plotOf(event.target);
  if (!figure) return;
  const upright = event.target.closest(".upright");
  const used = upright ? keyAxis(figure, upright, event) : event.target.closest(".area") && figure.dataset.plot === "line" && keyLine(figure, event);
  if (used) event.preventDefault();
}

function leaves(event) {
  const line = plotOf(event.target, "line");
  if (line && event.target.matches(".area")) line.querySelector(".cursor")?.replaceChildren();
}

function wheel(event) {
  const figure = event.ctrlKey && event.target.closest?.(".drawing") && plotOf(event.target);
  if (!figure) return;
  event.preventDefault();
  scaled(figure, event.deltaY < 0 ? 1.2 : 1 / 1.2, event);
}

function lights(event) {
  const figure = plotOf(event.target, "graph");
  if (figure) light(figure, event.type === "pointerout" || event.type === "focusout" ? null : event.target.closest(".node"));
}

function again() {
  for (const figure of document.querySelectorAll("figure[data-plot]")) {
    const now = state(figure);
    const kind = figure.dataset.plot;
    if (kind === "line" && now.hidden.size) hide(figure);
    if (kind === "line" && now.range) draw(figure);
    if (kind === "parallel" && now.brushes.size) fade(figure);
    if (kind === "graph" && now.zoom !== 1) scaleGraph(figure, 1);
    if (kind === "world" && now.box) show(figure, now.box);
  }
}

const LISTENERS = {
  pointerdown: down, pointermove: moves, pointerup: up, pointercancel: () => { held = null; }, click, keydown: keys,
  pointerover: lights, pointerout: lights, focusin: lights, focusout: lights, "falaj:morphed": again,
  dblclick: (event) => { const line = event.target.closest?.(".area") && plotOf(event.target, "line"); if (line) zoom(line, null); },
};

// A module runs once, however often a page asks for it.
for (const [name, act] of Object.entries(LISTENERS)) document.addEventListener(name, act);
document.addEventListener("pointerleave", leaves, true);
document.addEventListener("wheel", wheel, { passive: false });
addEventListener("popstate", () => { if (document.querySelector("[data-refetch]")) refresh(); });
