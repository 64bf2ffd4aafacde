// The line view: queries on the left, keys on the right, a line for each weight, colored by its head.
//
// `state.lines` says that it is drawn in place of the map, `state.also` which heads stand beside the chosen one, and
// `state.tokens` which queries are summed up: lines of the others are left out, and the bars are the sum.

import { darkScheme, oklabToRgb } from "../../../pages/color_scale.js";
import { byId, context2d, createHtml, createSvg, focusChild, focusedChild, smallButton } from "../../../pages/dom.js";
import { standaloneSvg } from "../../../pages/figure_export.js";
import { truncate } from "../../../pages/formatting.js";
import { labelWidth, svgText } from "../../../pages/markers_and_legends.js";
import { cellAt, clearHeatmap, tickLabel } from "./attention_heatmap.js";
import { axisTicks, cellCenter, cellName, siteAxis } from "./axes.js";
import { contextText, largestWeights } from "./captions.js";
import { numberedName } from "./head_grid.js";
import { data } from "./page_data.js";
import { currentView } from "./head_views.js";

/** @import { HeadMap } from "./map_data.js" */
/** @import { AttentionLines, Choose, HeadView, Highlight, Hold, LineGroup, LinesLayout, PointAt, Side, Site, ViewState } from "./types.js" */

const MIN_LINE_WEIGHT = 0.02; // a lighter line would not be seen
const MAX_LINES = 700; // at once: a browser without a graphics card strokes them in some 20 milliseconds
const WEIGHT_BINS = 512;
const WEIGHT_GROUPS = 12; // lines of a head are stroked in so many groups of like weight
const LINES_LAYOUT = { highest: 24, depth: 660, label: 13, bars: 64, gap: 8 };
const BAR_OPACITY = 0.85;
const HUE_STEP = 137.5; // degrees between the hues of neighboring heads: never alike
/** @type {AttentionLines} What is drawn; nothing before the first lines. */
export let attentionLines = /** @type {any} */ (null);

/**
 * The heads whose lines are drawn, in their order.
 * @param {ViewState} state
 */
export function lineHeads({ head, also, site, view }) {
  if (view === "rollout") return [head];
  const many = data.sites[site].heads.length;
  return [...new Set([head, ...also])].filter((each) => each < many).sort((a, b) => a - b);
}

/**
 * A color that a head keeps whatever else is drawn, as drawings alone can hold it too.
 * @param {number} head
 * @param {number} [alpha]
 */
function headColor(head, alpha = 1) {
  const hue = ((255 + HUE_STEP * head) * Math.PI) / 180;
  const parts = oklabToRgb([darkScheme.matches ? 0.76 : 0.56, 0.15 * Math.cos(hue), 0.15 * Math.sin(hue)]).join(", ");
  return alpha === 1 ? `rgb(${parts})` : `rgba(${parts}, ${alpha})`;
}

/**
 * What `shown` has of every head that is drawn: [[head, plane], ...].
 * @param {ViewState} state
 * @param {HeadView} shown
 * @returns {Promise<[number, HeadMap][]>}
 */
export const loadLineMaps = (state, shown) =>
  Promise.all(
    lineHeads(state).map(async (head) => [
      head,
      head === state.head ? shown.detail : (await currentView({ ...state, head })).detail,
    ]),
  );

/**
 * The queries that are summed: those that were added, and the held one.
 * @param {ViewState} state
 * @param {HeadMap} plane
 */
function summedQueries({ tokens, row }, plane) {
  const cells = [...tokens, ...(row === null ? [] : [row])].map((query) => cellAt(query, plane.queryBlock));
  return [...new Set(cells)].filter((cell) => cell < plane.queries).sort((a, b) => a - b);
}

/**
 * With the head added to those that are drawn, or taken from them; one at least stays.
 * @param {ViewState} state
 * @param {number} head
 * @returns {Partial<ViewState>}
 */
function toggleHead(state, head) {
  const heads = lineHeads(state);
  const others = heads.includes(head) ? heads.filter((each) => each !== head) : [...heads, head];
  if (!others.length) return {};
  const main = others.includes(state.head) ? state.head : others[0];
  return { head: main, also: others.filter((each) => each !== main) };
}

/**
 * All heads of the layer, or the chosen one alone where all are drawn.
 * @param {ViewState} state
 */
export function toggleAllHeads(state) {
  const { heads } = data.sites[state.site];
  const all = lineHeads(state).length === heads.length;
  return { lines: true, also: all ? [] : heads.map((_, head) => head).filter((head) => head !== state.head) };
}

/**
 * With the query added to the sum, or taken from it.
 * @param {ViewState} state
 * @param {number} query
 */
export const toggleToken = ({ tokens }, query) => ({
  tokens: tokens.includes(query) ? tokens.filter((each) => each !== query) : [...tokens, query],
});

/**
 * Draw the lines of `shown.planes` into `place`; `look` and `hold` as in `drawDetail`, `choose(changes)` where a head or
 * a token is picked. Returns the function that highlights positions. The elements are made anew only where sizes change.
 * @param {HTMLElement} place
 * @param {HeadView} shown
 * @param {ViewState} state
 * @param {PointAt} look
 * @param {Hold} hold
 * @param {(query: number) => void} choose
 */
export function drawAttentionLines(place, shown, state, look, hold, choose) {
  const { queries, keys, queryBlock, keyBlock } = shown.detail;
  const name = [
    state.site,
    state.example,
    queries,
    keys,
    queryBlock,
    keyBlock,
    place.clientWidth,
    darkScheme.matches,
    devicePixelRatio,
  ].join(" ");
  if (attentionLines?.name !== name || !place.contains(attentionLines.svg)) {
    attentionLines = { name, ...buildAttentionLines(place, shown, state, look, hold, choose) };
    clearHeatmap();
  }
  Object.assign(attentionLines, {
    planes: shown.planes,
    signed: shown.signed,
    summed: summedQueries(state, shown.detail),
  });
  attentionLines.causal = shown.site.causal;
  /** @type {Highlight} */
  const highlight = (query, key) => {
    // The held row is one of the summed; another one is pointed at, and stands alone meanwhile.
    const queries = query === null || query === state.row ? attentionLines.summed : [cellAt(query, queryBlock)];
    const selection = [queries.join(","), key].join(" ");
    // A pointer that moves within one token draws nothing anew.
    if (attentionLines.drawnSelection === selection && attentionLines.drawnPlanes === shown.planes) return;
    Object.assign(attentionLines, { drawnSelection: selection, drawnPlanes: shown.planes });
    paintAttentionLines(attentionLines, queries, cellAt(key, keyBlock));
  };
  return highlight;
}

/**
 * @param {HTMLElement} place
 * @param {HeadView} shown
 * @param {ViewState} state
 * @param {PointAt} look
 * @param {Hold} hold
 * @param {(query: number) => void} choose
 * @returns {any}
 */
function buildAttentionLines(place, shown, state, look, hold, choose) {
  const { site, detail: plane } = shown;
  const axes = { query: siteAxis(site, "query", state.example), key: siteAxis(site, "key", state.example) };
  const width = Math.max(260, place.clientWidth);
  const cells = Math.max(plane.queries, plane.keys);
  const tall = Math.max(3, Math.min(LINES_LAYOUT.highest, Math.floor(LINES_LAYOUT.depth / cells)));
  const side = Math.min(130, Math.floor((width - LINES_LAYOUT.bars) * 0.3));
  const height = 26 + cells * tall + 8;
  const box = { width, height, tall, top: 26, left: side, right: width - LINES_LAYOUT.bars - side, across: side };
  const svg = createSvg("svg", { width, height: box.height, role: "img" });
  svg.setAttribute("aria-label", "lines from each query, left, to the keys that it reads, right");
  const labels = { query: new Map(), key: new Map() };
  /** @type {[Side, number, number, number, string][]} */
  const sides = [
    ["query", plane.queries, plane.queryBlock, box.left - LINES_LAYOUT.gap, "end"],
    ["key", plane.keys, plane.keyBlock, box.right + LINES_LAYOUT.gap, "start"],
  ];
  for (const [at, count, block, x, anchor] of sides) {
    const named = createSvg(
      "text",
      { class: "axis-name", x, y: 14, "text-anchor": anchor },
      site[at].replaceAll("_", " "),
    );
    svg.append(named);
    for (const tick of axisTicks(axes[at], count, block, tall, LINES_LAYOUT.label)) {
      const text = truncate(tick.text, Math.max(4, Math.floor(side / 7.5)));
      const label = tickLabel(
        { ...tick, text },
        { x, y: box.top + cellCenter(tick.cell, tall) + 4, "text-anchor": anchor },
      );
      labels[at].set(tick.cell, label);
      svg.append(label);
    }
  }
  const scale = Math.max(1, window.devicePixelRatio || 1);
  const canvas = createHtml("canvas", { width: Math.round(width * scale), height: Math.round(box.height * scale) });
  canvas.style.cssText = `left:0;top:0;width:${width}px;height:${box.height}px`;
  const frame = createHtml("div", { class: "sheet strands" }, canvas, svg);
  frame.style.width = `${width}px`;
  frame.style.height = `${box.height}px`;
  place.replaceChildren(frame);
  /**
   * @param {MouseEvent} event
   * @returns {[number | null, number | null]}
   */
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

/**
 * Draw the lines of some queries (all, where none is given) to one key or to all, and the bars beside the keys.
 * @param {AttentionLines} strands
 * @param {number[]} selected
 * @param {number | null} key
 */
function paintAttentionLines(strands, selected, key) {
  const { canvas, box, planes, scale, labels, signed } = strands;
  const context = context2d(canvas);
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, box.width, box.height);
  const { queries } = planes[0][1];
  const rows = selected.length ? selected : Array.from({ length: queries }, (_, at) => at);
  const minWeight = minDrawnWeight(planes, rows, key);
  strands.sums = { rows, queries: selected, key, signed, minWeight };
  for (const [head, shades] of lineGroupsByHead(strands)) {
    context.strokeStyle = headColor(head);
    strokeLines(context, shades, box);
  }
  context.globalAlpha = BAR_OPACITY;
  for (const { head, ...place } of sumBars(strands)) {
    context.fillStyle = headColor(head);
    context.fillRect(place.x, place.y, place.width, place.height);
  }
  for (const [cell, label] of labels.query) label.classList.toggle("lit", selected.includes(cell));
  for (const [cell, label] of labels.key) label.classList.toggle("lit", cell === key);
}

/**
 * The least weight that is drawn: `MIN_LINE_WEIGHT`, or more where more than `MAX_LINES` lines would be.
 * @param {[number, HeadMap][]} planes
 * @param {number[]} rows
 * @param {number | null} key
 */
function minDrawnWeight(planes, rows, key) {
  const counts = new Uint32Array(WEIGHT_BINS + 1);
  for (const [, plane] of planes)
    forEachWeight(
      plane,
      rows,
      key,
      (row, at, value) => counts[Math.min(WEIGHT_BINS, Math.floor(WEIGHT_BINS * Math.abs(value)))]++,
    );
  const lowest = Math.ceil(WEIGHT_BINS * MIN_LINE_WEIGHT);
  let [bin, total] = [WEIGHT_BINS, 0];
  while (bin >= lowest && total + counts[bin] <= MAX_LINES) total += counts[bin--];
  return bin < lowest ? MIN_LINE_WEIGHT : (bin + 1) / WEIGHT_BINS;
}

/**
 * Call `act(row, key, weight)` for some rows of a plane, and for one key or for all.
 * @param {HeadMap} plane
 * @param {number[]} rows
 * @param {number | null} key
 * @param {(weight: number, row: number, key: number) => void} act
 */
function forEachWeight(plane, rows, key, act) {
  const [from, to] = key === null ? [0, plane.keys] : [key, key + 1];
  for (const row of rows) for (let at = from; at < to; at++) act(row, at, plane.values[row * plane.keys + at]);
}

/**
 * The lines of every head that are drawn now, those of like weight together, light ones first.
 * @param {AttentionLines} lines
 * @returns {[number, LineGroup[]][]}
 */
const lineGroupsByHead = ({ planes, sums: { rows, key, minWeight } }) =>
  planes.map(([head, plane]) => [head, lineGroups(plane, rows, key, minWeight)]);

/**
 * [{ ink, width, dash, ends: [query, key, query, key, ...] }, ...]
 * @param {HeadMap} plane
 * @param {number[]} rows
 * @param {number | null} key
 * @param {number} least
 */
function lineGroups(plane, rows, key, least) {
  const shades = new Map();
  forEachWeight(plane, rows, key, (row, at, value) => {
    if (Math.abs(value) < least) return;
    const shade = Math.sign(value) * Math.ceil(WEIGHT_GROUPS * Math.abs(value));
    if (!shades.has(shade)) shades.set(shade, []);
    shades.get(shade).push(row, at);
  });
  return [...shades]
    .sort(([a], [b]) => Math.abs(a) - Math.abs(b))
    .map(([shade, ends]) => {
      const size = Math.min(1, Math.abs(shade) / WEIGHT_GROUPS);
      return { ink: 0.06 + 0.84 * size, width: 0.7 + 2.6 * size, dash: shade < 0 ? [3, 3] : [], ends };
    });
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {LineGroup[]} shades
 * @param {LinesLayout} layout
 */
function strokeLines(context, shades, { left, right, top, tall }) {
  for (const { ink, width, dash, ends } of shades) {
    context.globalAlpha = ink;
    context.lineWidth = width;
    context.setLineDash(dash);
    // A stroke a line: one path of many crossing lines takes the browser several times as long.
    for (let at = 0; at < ends.length; at += 2) {
      context.beginPath();
      context.moveTo(left, top + cellCenter(ends[at], tall));
      context.lineTo(right, top + cellCenter(ends[at + 1], tall));
      context.stroke();
    }
  }
}

/**
 * The weight of each key, summed over some queries, a mean of the heads: an array a head.
 * @param {[number, HeadMap][]} planes
 * @param {number[]} rows
 * @returns {[number, Float32Array][]}
 */
function summedWeights(planes, rows) {
  return planes.map(([head, plane]) => {
    const sums = new Float32Array(plane.keys);
    for (const row of rows)
      for (let key = 0; key < plane.keys; key++) sums[key] += plane.values[row * plane.keys + key] / planes.length;
    return [head, sums];
  });
}

/**
 * Bars behind the keys, a piece a head: the sum over the queries.
 * @param {AttentionLines} lines
 */
function sumBars({ planes, box, sums: { rows } }) {
  const sums = summedWeights(planes, rows);
  const totals = sums[0][1].map((_, key) => sums.reduce((sum, [, each]) => sum + Math.abs(each[key]), 0));
  const unit = (LINES_LAYOUT.bars - 6) / Math.max(1e-9, ...totals);
  const from = box.width - LINES_LAYOUT.bars + 2;
  const thick = Math.max(1, Math.min(box.tall - 2, 12));
  /** @type {{ head: number, x: number, y: number, width: number, height: number }[]} */
  const bars = [];
  totals.forEach((_, key) => {
    let x = from;
    for (const [head, each] of sums) {
      const width = unit * Math.abs(each[key]);
      if (width >= 0.3)
        bars.push({ head, x, y: box.top + cellCenter(key, box.tall) - thick / 2, width, height: thick });
      x += width;
    }
  });
  return bars;
}

/** The lines that are seen as a drawing that needs no page: names, lines, bars, and the colors of its heads. */
export function attentionLinesSvg() {
  const { box, planes, site, svg } = attentionLines;
  const key = planes.length > 1 ? headColorLegend(planes, site, box) : { parts: [], below: 0 };
  const { drawing, body } = standaloneSvg(svg, {
    title: byId("detail-title").textContent ?? "",
    words: contextText(attentionLines),
    parts: key.parts,
    below: key.below,
  });
  /** @param {number} value */
  const rounded = (value) => Number(value.toFixed(2));
  const lines = lineGroupsByHead(attentionLines).map(([head, shades]) =>
    createSvg("g", { stroke: headColor(head) }, ...shades.map((shade) => lineGroupSvg(shade, box))),
  );
  const bars = sumBars(attentionLines).map(({ head, ...place }) =>
    createSvg("rect", {
      ...Object.fromEntries(Object.entries(place).map(([name, value]) => [name, rounded(value)])),
      fill: headColor(head),
      "fill-opacity": BAR_OPACITY,
    }),
  );
  body.prepend(...lines, createSvg("g", {}, ...bars));
  return drawing;
}

/**
 * @param {LineGroup} group
 * @param {LinesLayout} layout
 */
function lineGroupSvg({ ink, width, dash, ends }, { left, right, top, tall }) {
  const lines = [];
  for (let at = 0; at < ends.length; at += 2) {
    const [y1, y2] = [ends[at], ends[at + 1]].map((cell) => top + cellCenter(cell, tall));
    lines.push(createSvg("line", { x1: left, x2: right, y1, y2 }));
  }
  const look = { "stroke-opacity": ink.toFixed(3), "stroke-width": width.toFixed(2) };
  return createSvg("g", { ...look, ...(dash.length ? { "stroke-dasharray": dash.join(" ") } : {}) }, ...lines);
}

/**
 * Which color is which head, in as many rows as it takes, beneath the lines.
 * @param {[number, HeadMap][]} planes
 * @param {Site} site
 * @param {LinesLayout} box
 */
function headColorLegend(planes, site, box) {
  const parts = [];
  let [x, y] = [0, box.height + 6];
  for (const [head] of planes) {
    const words = truncate(numberedName("head", site.heads[head]), 20);
    const wide = 18 + labelWidth(words) + 14;
    if (x && x + wide > box.width) [x, y] = [0, y + 17];
    parts.push(createSvg("rect", { x, y, width: 12, height: 9, fill: headColor(head) }));
    parts.push(svgText(words, x + 18, y + 9, { class: "tick" }));
    x += wide;
  }
  return { parts, below: y + 17 - box.height };
}

/** What the lines say, in words. */
export function describeAttentionLines() {
  const { axes, planes, sums } = attentionLines;
  const { queries, key, rows, signed, minWeight } = sums;
  const plane = planes[0][1];
  /** @param {number} cell */
  const queryName = (cell) => cellName(axes.query, cell, plane.queryBlock);
  /** @param {number} cell */
  const keyName = (cell) => cellName(axes.key, cell, plane.keyBlock);
  const over = planes.length > 1 ? `, mean of ${planes.length} heads` : "";
  /** @param {[number, Float32Array][]} values */
  const total = (values) => values[0][1].map((_, at) => values.reduce((sum, [, each]) => sum + each[at], 0));
  if (queries.length) {
    const many = queries.length > 1;
    const names = truncate(queries.map(queryName).join(" + "), 120);
    const most = largestWeights(total(summedWeights(planes, rows)), keyName, signed) || "nothing";
    const verb = signed ? "changes most toward" : many ? "together read" : "attends to";
    return `${names} ${verb} ${most}${many ? " (summed" : over && " (alone"}${over}${many || over ? ")" : ""}`;
  }
  if (key !== null) {
    const column = Float32Array.from({ length: plane.queries }, (_, query) =>
      planes.reduce((sum, [, each]) => sum + each.at(query, key) / planes.length, 0),
    );
    return `${keyName(key)} ${signed ? "changes most for" : "is read by"} ${largestWeights(column, queryName, signed) || "nothing"}${over && ` (${over.slice(2)})`}`;
  }
  const cut =
    minWeight > MIN_LINE_WEIGHT
      ? `Weights below ${minWeight.toFixed(2)} are left out; point at a token for all of its own. `
      : "";
  return `${cut}Thick lines are large weights; click tokens on the left to sum them up.`;
}

/**
 * The buttons of the heads, each in its color.
 * @param {HTMLElement} place
 * @param {ViewState} state
 * @param {Choose} choose
 */
export function drawHeadButtons(place, state, choose) {
  place.hidden = !state.lines || state.view === "rollout";
  if (place.hidden) return;
  const site = data.sites[state.site];
  const drawn = lineHeads(state);
  // A step changes none of them.
  const name = [state.site, drawn, darkScheme.matches].join(" ");
  if (place.dataset.name === name) return;
  place.dataset.name = name;
  const focused = focusedChild(place);
  const buttons = site.heads.map((name, head) => {
    const pressed = drawn.includes(head);
    const words = `lines of ${numberedName("head", name)}`;
    const button = createHtml(
      "button",
      { type: "button", class: "line-head", "aria-pressed": String(pressed), "aria-label": words },
      truncate(name, 8),
    );
    button.style.borderColor = headColor(head);
    if (pressed) button.style.background = headColor(head, 0.3);
    button.addEventListener("click", () => choose(toggleHead(state, head)));
    return button;
  });
  const all = drawn.length === site.heads.length && drawn.length > 1;
  if (site.heads.length > 1)
    buttons.push(smallButton(all ? "one head" : "all heads", () => choose(toggleAllHeads(state))));
  place.replaceChildren(...buttons);
  focusChild(place, focused);
}
