// The line view: queries on the left, keys on the right, a line for each weight, colored by its head.
//
// `state.lines` says that it is drawn in place of the map, `state.also` which heads stand beside the chosen one, and
// `state.tokens` which queries are summed up: lines of the others are left out, and the bars are the sum.

import { dark, fromLab } from "../../../pages/color_scale.js";
import { byId, draw, make, smallButton } from "../../../pages/dom.js";
import { standalone } from "../../../pages/figure_export.js";
import { shorten } from "../../../pages/formatting.js";
import { label, widthOf } from "../../../pages/plot_marks.js";
import { cellOf, clearHeatmap, middle, tickLabel } from "./attention_heatmap.js";
import { axisOf, cellName, ticksOf } from "./axes.js";
import { strongest } from "./captions.js";
import { contextWords } from "./head_export.js";
import { named } from "./head_grid.js";
import { mapsShown } from "./map_data.js";
import { data } from "./page_data.js";

const LEAST_LINE = 0.02; // a lighter line would not be seen
const MOST_LINES = 700; // at once: a browser without a graphics card strokes them in some 20 milliseconds
const BINS = 512;
const SHADES = 12; // lines of a head are stroked in so many groups of like weight
const STRAND = { highest: 24, depth: 660, label: 13, bars: 64, gap: 8 };
const BAR_INK = 0.85;
const GOLDEN = 137.5; // degrees between the hues of neighboring heads: never alike
export let strands = null;

/** The heads whose lines are drawn, in their order. */
export function strandHeads({ head, also, site, view }) {
  if (view === "rollout") return [head];
  const many = data.sites[site].heads.length;
  return [...new Set([head, ...also])].filter((each) => each < many).sort((a, b) => a - b);
}

/** A color that a head keeps whatever else is drawn, as drawings alone can hold it too. */
function headColor(head, alpha = 1) {
  const hue = ((255 + GOLDEN * head) * Math.PI) / 180;
  const parts = fromLab([dark.matches ? 0.76 : 0.56, 0.15 * Math.cos(hue), 0.15 * Math.sin(hue)]).join(", ");
  return alpha === 1 ? `rgb(${parts})` : `rgba(${parts}, ${alpha})`;
}

/** What `shown` has of every head that is drawn: [[head, plane], ...]. */
export const strandPlanes = (state, shown) =>
  Promise.all(
    strandHeads(state).map(async (head) => [
      head,
      head === state.head ? shown.detail : (await mapsShown({ ...state, head })).detail,
    ]),
  );

/** The queries that are summed: those that were added, and the held one. */
function summedQueries({ tokens, row }, plane) {
  const cells = [...tokens, ...(row === null ? [] : [row])].map((query) => cellOf(query, plane.queryBlock));
  return [...new Set(cells)].filter((cell) => cell < plane.queries).sort((a, b) => a - b);
}

/** With the head added to those that are drawn, or taken from them; one at least stays. */
function toggledHead(state, head) {
  const heads = strandHeads(state);
  const others = heads.includes(head) ? heads.filter((each) => each !== head) : [...heads, head];
  if (!others.length) return {};
  const main = others.includes(state.head) ? state.head : others[0];
  return { head: main, also: others.filter((each) => each !== main) };
}

/** All heads of the layer, or the chosen one alone where all are drawn. */
export function toggledAll(state) {
  const { heads } = data.sites[state.site];
  const all = strandHeads(state).length === heads.length;
  return { lines: true, also: all ? [] : heads.map((_, head) => head).filter((head) => head !== state.head) };
}

/** With the query added to the sum, or taken from it. */
export const toggledToken = ({ tokens }, query) => ({
  tokens: tokens.includes(query) ? tokens.filter((each) => each !== query) : [...tokens, query],
});

/**
 * Draw the lines of `shown.planes` into `place`; `look` and `hold` as in `drawDetail`, `choose(changes)` where a head or
 * a token is picked. Returns the function that highlights positions. The elements are made anew only where sizes change.
 */
export function drawStrands(place, shown, state, look, hold, choose) {
  const { queries, keys, queryBlock, keyBlock } = shown.detail;
  const name = [
    state.site,
    state.example,
    queries,
    keys,
    queryBlock,
    keyBlock,
    place.clientWidth,
    dark.matches,
    devicePixelRatio,
  ].join(" ");
  if (strands?.name !== name || !place.contains(strands.svg)) {
    strands = { name, ...buildStrands(place, shown, state, look, hold, choose) };
    clearHeatmap();
  }
  Object.assign(strands, { planes: shown.planes, signed: shown.signed, summed: summedQueries(state, shown.detail) });
  strands.causal = shown.site.causal;
  return (query, key) => {
    // The held row is one of the summed; another one is pointed at, and stands alone meanwhile.
    const asked = query === null || query === state.row ? strands.summed : [cellOf(query, queryBlock)];
    const drawn = [asked.join(","), key].join(" ");
    // A pointer that moves within one token draws nothing anew.
    if (strands.drawn === drawn && strands.painted === shown.planes) return;
    Object.assign(strands, { drawn, painted: shown.planes });
    paintStrands(strands, asked, cellOf(key, keyBlock));
  };
}

function buildStrands(place, shown, state, look, hold, choose) {
  const { site, detail: plane } = shown;
  const axes = { query: axisOf(site, "query", state.example), key: axisOf(site, "key", state.example) };
  const width = Math.max(260, place.clientWidth);
  const cells = Math.max(plane.queries, plane.keys);
  const tall = Math.max(3, Math.min(STRAND.highest, Math.floor(STRAND.depth / cells)));
  const side = Math.min(130, Math.floor((width - STRAND.bars) * 0.3));
  const box = { width, tall, top: 26, left: side, right: width - STRAND.bars - side, across: side };
  box.height = box.top + cells * tall + 8;
  const svg = draw("svg", { width, height: box.height, role: "img" });
  svg.setAttribute("aria-label", "lines from each query, left, to the keys that it reads, right");
  const labels = { query: new Map(), key: new Map() };
  for (const [at, count, block, x, anchor] of [
    ["query", plane.queries, plane.queryBlock, box.left - STRAND.gap, "end"],
    ["key", plane.keys, plane.keyBlock, box.right + STRAND.gap, "start"],
  ]) {
    const named = draw("text", { class: "axis-name", x, y: 14, "text-anchor": anchor }, site[at].replaceAll("_", " "));
    svg.append(named);
    for (const tick of ticksOf(axes[at], count, block, tall, STRAND.label)) {
      const text = shorten(tick.text, Math.max(4, Math.floor(side / 7.5)));
      const label = tickLabel(
        { ...tick, text },
        { x, y: box.top + middle(tick.cell, tall) + 4, "text-anchor": anchor },
      );
      labels[at].set(tick.cell, label);
      svg.append(label);
    }
  }
  const scale = Math.max(1, window.devicePixelRatio || 1);
  const canvas = make("canvas", { width: Math.round(width * scale), height: Math.round(box.height * scale) });
  canvas.style.cssText = `left:0;top:0;width:${width}px;height:${box.height}px`;
  const frame = make("div", { class: "sheet strands" }, canvas, svg);
  frame.style.width = `${width}px`;
  frame.style.height = `${box.height}px`;
  place.replaceChildren(frame);
  const positionAt = (event) => {
    const bounds = svg.getBoundingClientRect();
    const cell = Math.floor((event.clientY - bounds.top - box.top) / tall);
    const asks = event.clientX - bounds.left < (box.left + box.right) / 2;
    if (cell < 0 || cell >= (asks ? plane.queries : plane.keys)) return [null, null];
    return asks ? [cell * plane.queryBlock, null] : [null, cell * plane.keyBlock];
  };
  svg.addEventListener("pointermove", (event) => look(...positionAt(event)));
  svg.addEventListener("pointerleave", () => look(null, null));
  svg.addEventListener("click", (event) => {
    const [query, key] = positionAt(event);
    if (query !== null) choose(query);
    else if (key !== null) hold(null, key);
  });
  return { site, axes, box, canvas, svg, labels, scale };
}

/** Draw the lines of some queries (all, where none is given) to one key or to all, and the bars beside the keys. */
function paintStrands(strands, asked, key) {
  const { canvas, box, planes, scale, labels, signed } = strands;
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, box.width, box.height);
  const { queries } = planes[0][1];
  const rows = asked.length ? asked : Array.from({ length: queries }, (_, at) => at);
  const least = leastDrawn(planes, rows, key);
  strands.sums = { rows, asked, key, signed, least };
  for (const [head, shades] of shadesOfHeads(strands)) {
    context.strokeStyle = headColor(head);
    strokeLines(context, shades, box);
  }
  context.globalAlpha = BAR_INK;
  for (const { head, ...place } of barsOf(strands)) {
    context.fillStyle = headColor(head);
    context.fillRect(place.x, place.y, place.width, place.height);
  }
  for (const [cell, label] of labels.query) label.classList.toggle("lit", asked.includes(cell));
  for (const [cell, label] of labels.key) label.classList.toggle("lit", cell === key);
}

/** The least weight that is drawn: `LEAST_LINE`, or more where more than `MOST_LINES` lines would be. */
function leastDrawn(planes, rows, key) {
  const counts = new Uint32Array(BINS + 1);
  for (const [, plane] of planes)
    eachWeight(plane, rows, key, (row, at, value) => counts[Math.min(BINS, Math.floor(BINS * Math.abs(value)))]++);
  const lowest = Math.ceil(BINS * LEAST_LINE);
  let [bin, total] = [BINS, 0];
  while (bin >= lowest && total + counts[bin] <= MOST_LINES) total += counts[bin--];
  return bin < lowest ? LEAST_LINE : (bin + 1) / BINS;
}

/** Call `act(row, key, weight)` for some rows of a plane, and for one key or for all. */
function eachWeight(plane, rows, key, act) {
  const [from, to] = key === null ? [0, plane.keys] : [key, key + 1];
  for (const row of rows) for (let at = from; at < to; at++) act(row, at, plane.values[row * plane.keys + at]);
}

/** The lines of every head that are drawn now, those of like weight together, light ones first. */
const shadesOfHeads = ({ planes, sums: { rows, key, least } }) =>
  planes.map(([head, plane]) => [head, shadesOf(plane, rows, key, least)]);

/** [{ ink, width, dash, ends: [query, key, query, key, ...] }, ...] */
function shadesOf(plane, rows, key, least) {
  const shades = new Map();
  eachWeight(plane, rows, key, (row, at, value) => {
    if (Math.abs(value) < least) return;
    const shade = Math.sign(value) * Math.ceil(SHADES * Math.abs(value));
    if (!shades.has(shade)) shades.set(shade, []);
    shades.get(shade).push(row, at);
  });
  return [...shades]
    .sort(([a], [b]) => Math.abs(a) - Math.abs(b))
    .map(([shade, ends]) => {
      const size = Math.min(1, Math.abs(shade) / SHADES);
      return { ink: 0.06 + 0.84 * size, width: 0.7 + 2.6 * size, dash: shade < 0 ? [3, 3] : [], ends };
    });
}

function strokeLines(context, shades, { left, right, top, tall }) {
  for (const { ink, width, dash, ends } of shades) {
    context.globalAlpha = ink;
    context.lineWidth = width;
    context.setLineDash(dash);
    // A stroke a line: one path of many crossing lines takes the browser several times as long.
    for (let at = 0; at < ends.length; at += 2) {
      context.beginPath();
      context.moveTo(left, top + middle(ends[at], tall));
      context.lineTo(right, top + middle(ends[at + 1], tall));
      context.stroke();
    }
  }
}

/** The weight of each key, summed over some queries, a mean of the heads: an array a head. */
function strandSums(planes, rows) {
  return planes.map(([head, plane]) => {
    const sums = new Float32Array(plane.keys);
    for (const row of rows)
      for (let key = 0; key < plane.keys; key++) sums[key] += plane.values[row * plane.keys + key] / planes.length;
    return [head, sums];
  });
}

/** Bars behind the keys, a piece a head: the sum over the queries. */
function barsOf({ planes, box, sums: { rows } }) {
  const sums = strandSums(planes, rows);
  const totals = sums[0][1].map((_, key) => sums.reduce((sum, [, each]) => sum + Math.abs(each[key]), 0));
  const unit = (STRAND.bars - 6) / Math.max(1e-9, ...totals);
  const from = box.width - STRAND.bars + 2;
  const thick = Math.max(1, Math.min(box.tall - 2, 12));
  const bars = [];
  totals.forEach((_, key) => {
    let x = from;
    for (const [head, each] of sums) {
      const width = unit * Math.abs(each[key]);
      if (width >= 0.3) bars.push({ head, x, y: box.top + middle(key, box.tall) - thick / 2, width, height: thick });
      x += width;
    }
  });
  return bars;
}

/** The lines that are seen as a drawing that needs no page: names, lines, bars, and the colors of its heads. */
export function strandsDrawing() {
  const { box, planes, site, svg } = strands;
  const key = planes.length > 1 ? headKey(planes, site, box) : { parts: [], below: 0 };
  const { drawing, body } = standalone(svg, {
    title: byId("detail-title").textContent,
    words: contextWords(strands),
    parts: key.parts,
    below: key.below,
  });
  const rounded = (value) => Number(value.toFixed(2));
  const lines = shadesOfHeads(strands).map(([head, shades]) =>
    draw("g", { stroke: headColor(head) }, ...shades.map((shade) => linesOf(shade, box))),
  );
  const bars = barsOf(strands).map(({ head, ...place }) =>
    draw("rect", {
      ...Object.fromEntries(Object.entries(place).map(([name, value]) => [name, rounded(value)])),
      fill: headColor(head),
      "fill-opacity": BAR_INK,
    }),
  );
  body.prepend(...lines, draw("g", {}, ...bars));
  return drawing;
}

function linesOf({ ink, width, dash, ends }, { left, right, top, tall }) {
  const lines = [];
  for (let at = 0; at < ends.length; at += 2) {
    const [y1, y2] = [ends[at], ends[at + 1]].map((cell) => top + middle(cell, tall));
    lines.push(draw("line", { x1: left, x2: right, y1, y2 }));
  }
  const look = { "stroke-opacity": ink.toFixed(3), "stroke-width": width.toFixed(2) };
  return draw("g", { ...look, ...(dash.length ? { "stroke-dasharray": dash.join(" ") } : {}) }, ...lines);
}

/** Which color is which head, in as many rows as it takes, beneath the lines. */
function headKey(planes, site, box) {
  const parts = [];
  let [x, y] = [0, box.height + 6];
  for (const [head] of planes) {
    const words = shorten(named("head", site.heads[head]), 20);
    const wide = 18 + widthOf(words) + 14;
    if (x && x + wide > box.width) [x, y] = [0, y + 17];
    parts.push(draw("rect", { x, y, width: 12, height: 9, fill: headColor(head) }));
    parts.push(label(words, x + 18, y + 9, { class: "tick" }));
    x += wide;
  }
  return { parts, below: y + 17 - box.height };
}

/** What the lines say, in words. */
export function readStrands() {
  const { axes, planes, sums } = strands;
  const { asked, key, rows, signed, least } = sums;
  const plane = planes[0][1];
  const queryName = (cell) => cellName(axes.query, cell, plane.queryBlock);
  const keyName = (cell) => cellName(axes.key, cell, plane.keyBlock);
  const over = planes.length > 1 ? `, mean of ${planes.length} heads` : "";
  const total = (values) => values[0][1].map((_, at) => values.reduce((sum, [, each]) => sum + each[at], 0));
  if (asked.length) {
    const many = asked.length > 1;
    const names = shorten(asked.map(queryName).join(" + "), 120);
    const most = strongest(total(strandSums(planes, rows)), keyName, signed) || "nothing";
    const verb = signed ? "changes most toward" : many ? "together read" : "attends to";
    return `${names} ${verb} ${most}${many ? " (summed" : over && " (alone"}${over}${many || over ? ")" : ""}`;
  }
  if (key !== null) {
    const column = Float32Array.from({ length: plane.queries }, (_, query) =>
      planes.reduce((sum, [, each]) => sum + each.at(query, key) / planes.length, 0),
    );
    return `${keyName(key)} ${signed ? "changes most for" : "is read by"} ${strongest(column, queryName, signed) || "nothing"}${over && ` (${over.slice(2)})`}`;
  }
  const cut =
    least > LEAST_LINE ? `Weights below ${least.toFixed(2)} are left out; point at a token for all of its own. ` : "";
  return `${cut}Thick lines are large weights; click tokens on the left to sum them up.`;
}

/** The buttons of the heads, each in its color. */
export function drawStrandHeads(place, state, choose) {
  place.hidden = !state.lines || state.view === "rollout";
  if (place.hidden) return;
  const site = data.sites[state.site];
  const drawn = strandHeads(state);
  // A step changes none of them.
  const name = [state.site, drawn, dark.matches].join(" ");
  if (place.dataset.name === name) return;
  place.dataset.name = name;
  const focused = [...place.children].indexOf(document.activeElement);
  const buttons = site.heads.map((name, head) => {
    const pressed = drawn.includes(head);
    const words = `lines of ${named("head", name)}`;
    const button = make(
      "button",
      { type: "button", class: "strand-head", "aria-pressed": String(pressed), "aria-label": words },
      shorten(name, 8),
    );
    button.style.borderColor = headColor(head);
    if (pressed) button.style.background = headColor(head, 0.3);
    button.addEventListener("click", () => choose(toggledHead(state, head)));
    return button;
  });
  const all = drawn.length === site.heads.length && drawn.length > 1;
  if (site.heads.length > 1) buttons.push(smallButton(all ? "one head" : "all heads", () => choose(toggledAll(state))));
  place.replaceChildren(...buttons);
  if (focused >= 0) place.children[focused]?.focus({ preventScroll: true });
}
