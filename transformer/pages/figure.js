// Figures: one SVG each, drawn anew whenever a choice, the width or the color scheme changes. What can be read off a
// figure are its stops: places with words, reached with the pointer or with the arrow keys.

import { createHtml, createSvg, exportDefaults, hideTooltip, setAttributes, showTooltip, smallButton } from "./dom.js";
import { downloadCsv, downloadDrawing, standaloneSvg } from "./figure_export.js";
import { PLOT_MARGIN } from "./scales.js";

/** @import { Figure, FigureOptions, Stop } from "./types.js" */

/** @type {Figure[]} */
const figures = [];
/** @type {Figure | null} The figure that the arrow keys read. */
let figureReadByKeys = null;

/**
 * Add a figure to a place; see `FigureOptions` and `Painting` in types.d.ts.
 * @param {HTMLElement} place
 * @param {FigureOptions} options
 */
export function addFigure(place, { id, title, note = "", legend = null, table = null, act = null, paint }) {
  const name = createHtml("strong", { id: `${id}-name` }, title);
  const kinds = table ? ["png", "svg", "csv"] : ["png", "svg"];
  const saving = kinds.map((kind) => {
    const attributes = { "data-save": kind, "aria-label": `Save ${title} as ${kind.toUpperCase()}` };
    return smallButton(kind.toUpperCase(), () => saveFigure(figure, kind), attributes);
  });
  const head = createHtml("span", { class: "figure-head" }, name, createHtml("span", { class: "exports" }, ...saving));
  const caption = createHtml("figcaption", {}, head, createHtml("span", { class: "at" }, note));
  if (legend) caption.append(createHtml("span", { class: "entries" }, ...legend));
  const names = { "aria-labelledby": `${id}-name`, "aria-describedby": `${id}-description` };
  const svg = createSvg("svg", { role: "img", tabindex: 0, ...names });
  const element = createHtml("figure", { id, class: "chart" }, caption, svg);
  place.append(element);
  /** @type {Figure} */
  const figure = {
    ...{ id, title, element, svg, paint, table, act },
    ...{ stops: [], along: false, at: null, marked: null, height: 0, frame: null, pointer: null, now: null },
  };
  figures.push(figure);
  addFigureListeners(figure);
  return figure;
}

/**
 * @param {Figure} figure
 * @param {string} kind
 */
function saveFigure(figure, kind) {
  const { id, title, svg, file = id, legend = exportDefaults.legend() } = figure;
  if (kind === "csv") return downloadCsv(figure.table?.() ?? [], [file]);
  highlightStop(figure, null);
  return downloadDrawing(standaloneSvg(svg, { title, words: exportDefaults.words, legend }).drawing, [file], kind);
}

/**
 * @param {Figure} figure
 * @param {number} [width]
 */
export function redrawFigure(figure, width = figure.element.clientWidth) {
  // In a closed fold it has no width; it is drawn once that is opened.
  if (!width) return;
  const painted = figure.paint(width);
  figure.element.classList.toggle("empty", !painted);
  if (!painted) return;
  const { height, parts, description, stops = [], along = false, frame = null } = painted;
  const [pointer, now] = [createSvg("g", { class: "pointer" }), createSvg("line", { class: "now" })];
  setAttributes(figure.svg, { width, height, viewBox: `0 0 ${width} ${height}` }, []);
  const words = createSvg("desc", { id: `${figure.id}-description` }, description);
  figure.svg.replaceChildren(words, ...parts, ...(frame && figure.marked !== null ? [now] : []), pointer);
  Object.assign(figure, { stops, along, pointer, now, frame, height, at: null });
  if (figure.marked !== null) markFigure(figure, figure.marked);
}

/** All widths are read before anything is drawn: in turns the page would be laid out once a figure. */
export function redrawAllFigures() {
  const widths = figures.map(({ element }) => element.clientWidth);
  figures.forEach((figure, index) => redrawFigure(figure, widths[index]));
}

/**
 * Mark a value of the horizontal axis by a line.
 * @param {Figure} figure
 * @param {number} value
 */
export function markFigure(figure, value) {
  figure.marked = value;
  if (!figure.frame || !figure.now) return;
  const { atX, box } = figure.frame;
  setAttributes(figure.now, { x1: atX(value), x2: atX(value), y1: box.top, y2: box.bottom }, []);
}

/** @param {Figure} figure */
function addFigureListeners(figure) {
  const { svg } = figure;
  const leave = () => {
    figureReadByKeys = null;
    highlightStop(figure, null);
  };
  svg.addEventListener("pointermove", (event) => {
    figureReadByKeys = null;
    highlightStop(figure, stopAtPointer(figure, event), event);
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  /** @param {number | null} at */
  const choose = (at) => figure.act && at !== null && figure.act(figure.stops[at].value);
  svg.addEventListener("click", (event) => choose(stopAtPointer(figure, event)));
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
    figureReadByKeys = figure;
    highlightStop(figure, Math.min(last, Math.max(0, from + by)));
  });
}

/**
 * The stop that the pointer is at, by its index; null where none is near.
 * @param {Figure} figure
 * @param {MouseEvent} event
 */
function stopAtPointer(figure, event) {
  const box = figure.svg.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  /** @param {Stop} stop */
  const distance = (stop) => (figure.along ? Math.abs(stop.x - x) : Math.hypot(stop.x - x, stop.y - y));
  /** @type {number | null} */
  let best = null;
  for (const [at, stop] of figure.stops.entries())
    if (best === null || distance(stop) < distance(figure.stops[best])) best = at;
  if (best === null) return null;
  const reach = figure.along ? Infinity : (figure.stops[best].reach ?? 18);
  return distance(figure.stops[best]) <= reach ? best : null;
}

/**
 * Mark a stop and say its words; null marks none.
 * @param {Figure} figure
 * @param {number | null} at
 * @param {PointerEvent | null} [event]
 */
export function highlightStop(figure, at, event = null) {
  figure.at = at;
  if (!figure.pointer) return;
  if (at === null) {
    figure.pointer.replaceChildren();
    hideTooltip();
    return;
  }
  const { x, y, from = PLOT_MARGIN.top, to = figure.height - PLOT_MARGIN.bottom, words } = figure.stops[at];
  const hair = () => createSvg("line", { class: "hair", x1: x, x2: x, y1: from, y2: to });
  figure.pointer.replaceChildren(figure.along ? hair() : createSvg("circle", { class: "ring", cx: x, cy: y, r: 8 }));
  const box = figure.svg.getBoundingClientRect();
  const [left, top] = [event?.clientX ?? box.left + x, event?.clientY ?? box.top + (figure.along ? 60 : y)];
  showTooltip(left, top, createHtml("div", { class: "tip-rows" }, ...words()));
}

/** What the keys read goes with its figure; what the pointer read is no longer under it. */
addEventListener(
  "scroll",
  () => (figureReadByKeys ? highlightStop(figureReadByKeys, figureReadByKeys.at) : hideTooltip()),
  { passive: true },
);
