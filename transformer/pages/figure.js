// Figures: one SVG each, drawn anew whenever a choice, the width or the color scheme changes. What can be read off a
// figure are its stops: places with words, reached with the pointer or with the arrow keys.

import { draw, furnish, hideTip, make, showTip, smallButton } from "./dom.js";
import { saveFigure } from "./figure_export.js";
import { PLOT } from "./scales.js";

const figures = [];
let keyed = null; // the figure that the arrow keys read

/**
 * Add a figure to a place. `paint(width)` returns
 *   { height, parts, description, stops: [{ x, y, value, words() }], along: true where a stop is a whole column,
 *     frame: as frameOf returns it, where `markFigure` is used }
 * or null, where nothing of it is to be seen now. `legend` is nodes under the title, `table()` its numbers as rows,
 * `act(value)` is called where a stop is clicked or Enter is pressed on it.
 */
export function addFigure(place, { id, title, note = "", legend = null, table = null, act = null, paint }) {
  const name = make("strong", { id: `${id}-name` }, title);
  const kinds = table ? ["png", "svg", "csv"] : ["png", "svg"];
  const saving = kinds.map((kind) => {
    const attributes = { "data-save": kind, "aria-label": `Save ${title} as ${kind.toUpperCase()}` };
    return smallButton(kind.toUpperCase(), () => saveFigure(figure, kind), attributes);
  });
  const head = make("span", { class: "figure-head" }, name, make("span", { class: "exports" }, ...saving));
  const caption = make("figcaption", {}, head, make("span", { class: "at" }, note));
  if (legend) caption.append(make("span", { class: "entries" }, ...legend));
  const names = { "aria-labeledby": `${id}-name`, "aria-describedby": `${id}-description` };
  const svg = draw("svg", { role: "img", tabindex: 0, ...names });
  const element = make("figure", { id, class: "chart" }, caption, svg);
  place.append(element);
  const figure = { id, title, element, svg, paint, table, act, stops: [], along: false, at: null, marked: null };
  figures.push(figure);
  listenTo(figure);
  return figure;
}

export function redraw(figure, width = figure.element.clientWidth) {
  // In a closed fold it has no width; it is drawn once that is opened.
  if (!width) return;
  const painted = figure.paint(width);
  figure.element.classList.toggle("empty", !painted);
  if (!painted) return;
  const { height, parts, description, stops = [], along = false, frame = null } = painted;
  const [pointer, now] = [draw("g", { class: "pointer" }), draw("line", { class: "now" })];
  furnish(figure.svg, { width, height, viewBox: `0 0 ${width} ${height}` }, []);
  const words = draw("desc", { id: `${figure.id}-description` }, description);
  figure.svg.replaceChildren(words, ...parts, ...(frame && figure.marked !== null ? [now] : []), pointer);
  Object.assign(figure, { stops, along, pointer, now, frame, height, at: null });
  if (figure.marked !== null) markFigure(figure, figure.marked);
}

/** All widths are read before anything is drawn: in turns the page would be laid out once a figure. */
export function redrawAll() {
  const widths = figures.map(({ element }) => element.clientWidth);
  figures.forEach((figure, index) => redraw(figure, widths[index]));
}

/** Mark a value of the horizontal axis by a line. */
export function markFigure(figure, value) {
  figure.marked = value;
  if (!figure.frame) return;
  const { atX, box } = figure.frame;
  furnish(figure.now, { x1: atX(value), x2: atX(value), y1: box.top, y2: box.bottom }, []);
}

function listenTo(figure) {
  const { svg } = figure;
  const leave = () => {
    keyed = null;
    point(figure, null);
  };
  svg.addEventListener("pointermove", (event) => {
    keyed = null;
    point(figure, stopUnder(figure, event), event);
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  const choose = (at) => figure.act && at !== null && figure.act(figure.stops[at].value);
  svg.addEventListener("click", (event) => choose(stopUnder(figure, event)));
  svg.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") leave();
    if (event.key === "Enter") choose(figure.at);
    if (!by || !figure.stops.length) return;
    event.preventDefault();
    // A page may have arrow keys of its own.
    event.stopPropagation();
    const last = figure.stops.length - 1;
    const from = figure.at ?? (by > 0 ? -1 : last + 1);
    keyed = figure;
    point(figure, Math.min(last, Math.max(0, from + by)));
  });
}

/** The stop that the pointer is at, by its index; null where none is near. */
function stopUnder(figure, event) {
  const box = figure.svg.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  const distance = (stop) => (figure.along ? Math.abs(stop.x - x) : Math.hypot(stop.x - x, stop.y - y));
  let best = null;
  figure.stops.forEach((stop, at) => {
    if (best === null || distance(stop) < distance(figure.stops[best])) best = at;
  });
  const reach = figure.along ? Infinity : (figure.stops[best]?.reach ?? 18);
  return best !== null && distance(figure.stops[best]) <= reach ? best : null;
}

/** Mark a stop and say its words; null marks none. */
export function point(figure, at, event = null) {
  figure.at = at;
  if (!figure.pointer) return;
  if (at === null) {
    figure.pointer.replaceChildren();
    hideTip();
    return;
  }
  const { x, y, from = PLOT.top, to = figure.height - PLOT.bottom, words } = figure.stops[at];
  const hair = () => draw("line", { class: "hair", x1: x, x2: x, y1: from, y2: to });
  figure.pointer.replaceChildren(figure.along ? hair() : draw("circle", { class: "ring", cx: x, cy: y, r: 8 }));
  const box = figure.svg.getBoundingClientRect();
  const [left, top] = [event?.clientX ?? box.left + x, event?.clientY ?? box.top + (figure.along ? 60 : y)];
  showTip(left, top, make("div", { class: "tip-rows" }, ...words()));
}

/** What the keys read goes with its figure; what the pointer read is no longer under it. */
addEventListener("scroll", () => (keyed ? point(keyed, keyed.at) : hideTip()), { passive: true });
