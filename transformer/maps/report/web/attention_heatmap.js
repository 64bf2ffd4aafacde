// One head, large: names on both axes, gold alignments, and what the row or the column under the pointer is.
// Positions are those of the sequences; cells are those of the plane that is drawn, which may be pooled.

import { context2d, createHtml, createSvg } from "../../../pages/dom.js";
import { axisTicks, cellCenter, LABEL_HEIGHT, loadSpectrogram, siteAxis, tickForCell } from "./axes.js";
import { paintPlane } from "./canvas_pixels.js";
import { columnMarginal, MARGINAL_SIZE, rowMarginal } from "./row_and_column_bars.js";
import { splitWordStart } from "./tokens.js";

/** @import { Attributes } from "../../../pages/types.js" */
/** @import { HeadMap } from "./map_data.js" */
/** @import { Axis, AxisPair, HeadView, Heatmap, HeatmapLayout, Hold, PointAt, Site, Tick, ViewState } from "./types.js" */

const MAX_CELL = 46;
const ROW_LABEL_SPACING = 15; // pixels from one row's label to the next
const SLANTED_LABEL_SPACING = 17; // pixels along the axis: so far apart slanted labels do not run into each other
const LABEL_ANGLE = 52; // degrees
const FEW_POSITIONS = 40; // positions that are worth more room than their cells would have as squares
const SPECTROGRAM_SIZE = 44; // a spectrogram along an axis
const FONT = "12.5px";
const MIN_SIGNED_DIFFERENCE = 0.02; // a smaller difference has no sign that matters
/** @type {Heatmap} What is drawn; nothing before the first map. */
export let heatmap = /** @type {any} */ (null);

/** Forget what is drawn, because something else has taken its place. */
export function clearHeatmap() {
  heatmap = /** @type {any} */ (null);
}

/**
 * Draw the head that `state` names into `place`.
 *
 * `look(query, key, event)` is called when the pointer moves to positions (nulls when it leaves), `hold(query, key)`
 * on a click, one of them null. Returns the function that highlights positions: (query, key) => nothing. The elements
 * are made anew only where sizes change: a step repaints them.
 * @param {HTMLElement} place
 * @param {HeadView} shown
 * @param {ViewState} state
 * @param {PointAt} look
 * @param {Hold} hold
 */
export function drawHeatmap(place, shown, state, look, hold) {
  const plane = shown.detail;
  const { queries, keys, queryBlock, keyBlock } = plane;
  const name = [state.site, state.example, queries, keys, queryBlock, keyBlock, state.goldAlignments];
  name.push(place.clientWidth, devicePixelRatio);
  if (heatmap?.name !== name.join(" ") || !place.contains(heatmap.svg)) {
    heatmap = buildHeatmap(place, shown, state, look, hold);
    heatmap.name = name.join(" ");
  }
  Object.assign(heatmap, { plane, signed: shown.signed, means: null, highest: marginalScale(plane) });
  paintCells(heatmap, shown.site.causal);
  const named = `attention weights: ${queries} × ${keys} cells`;
  if (heatmap.svg.getAttribute("aria-label") !== named) heatmap.svg.setAttribute("aria-label", named);
  return highlightCells;
}

/**
 * @param {HTMLElement} place
 * @param {HeadView} shown
 * @param {ViewState} state
 * @param {PointAt} look
 * @param {Hold} hold
 * @returns {any}
 */
function buildHeatmap(place, shown, state, look, hold) {
  const { site, detail: plane } = shown;
  const axes = {
    query: siteAxis(site, "query", state.example),
    key: siteAxis(site, "key", state.example),
  };
  const box = heatmapLayout(place, plane, axes);
  const ticks = {
    query: axisTicks(axes.query, plane.queries, plane.queryBlock, box.tall, ROW_LABEL_SPACING),
    key: axisTicks(
      axes.key,
      plane.keys,
      plane.keyBlock,
      box.wide,
      box.slanted ? SLANTED_LABEL_SPACING : LABEL_HEIGHT + 2,
    ),
  };
  const canvas = createHtml("canvas");
  canvas.style.cssText = `left:${box.left}px;top:${box.top}px;width:${box.across}px;height:${box.down}px`;
  const svg = createSvg("svg", { width: box.width, height: box.height, role: "img" });
  const labels = {
    query: new Map(ticks.query.map((tick) => [tick.cell, queryLabel(tick, box)])),
    key: new Map(ticks.key.map((tick) => [tick.cell, keyLabel(tick, box)])),
  };
  const [overlay, profile, highlight] = ["overlay", "profile", "lit-labels"].map((name) => createSvg("g", { class: name }));
  svg.append(axisNames(site, box), ...labels.query.values(), ...labels.key.values());
  if (plane.pooled && site.rows) svg.append(fullRowMarks(site.rows.positions, plane, box));
  const goldAlignments = state.goldAlignments && !plane.pooled ? site.goldAlignments?.[state.example] : null;
  if (goldAlignments) svg.append(goldAlignmentMarks(goldAlignments, box));
  svg.append(overlay, profile, highlight);
  const frame = createHtml("div", { class: "sheet" }, canvas, svg);
  frame.style.width = `${box.width}px`;
  frame.style.height = `${box.height}px`;
  // A wide map stays scrolled to where it was.
  const scrolled = [place.scrollLeft, place.scrollTop];
  place.replaceChildren(frame);
  [place.scrollLeft, place.scrollTop] = scrolled;
  addSpectrograms(frame, axes, plane, box);

  /**
   * @param {MouseEvent} event
   * @returns {[number | null, number | null]}
   */
  const positionAt = (event) => {
    const bounds = svg.getBoundingClientRect();
    const query = Math.floor((event.clientY - bounds.top - box.top) / box.tall);
    const key = Math.floor((event.clientX - bounds.left - box.left) / box.wide);
    if (query >= plane.queries || key >= plane.keys || (query < 0 && key < 0)) return [null, null];
    return [query < 0 ? null : query * plane.queryBlock, key < 0 ? null : key * plane.keyBlock];
  };
  svg.addEventListener("pointermove", (event) => look(...positionAt(event), event));
  svg.addEventListener("pointerleave", () => look(null, null));
  svg.addEventListener("click", (event) => {
    const [query, key] = positionAt(event);
    // Above the map only a column is meant; in it, shift asks for the column.
    if (key !== null && (query === null || event.shiftKey)) hold(null, key);
    else if (query !== null) hold(query, null);
  });
  return { site, axes, box, ticks, canvas, svg, labels, overlay, profile, highlight, goldAlignments };
}

/**
 * @param {HTMLElement} place
 * @param {HeadMap} plane
 * @param {AxisPair} axes
 */
function heatmapLayout(place, plane, axes) {
  const measure = context2d(createHtml("canvas"));
  measure.font = `${FONT} ${getComputedStyle(document.body).fontFamily}`;
  /** @param {string} text */
  const width = (text) => measure.measureText(text).width;
  /**
   * @param {Axis} axis
   * @param {number} cells
   * @param {number} block
   */
  const longest = (axis, cells, block) =>
    Math.max(
      20,
      ...axisTicks(axis, cells, block, MAX_CELL, 1)
        .filter((tick) => !tick.tick)
        .map((tick) => width(tick.text)),
    );
  const [asked, known] = [
    longest(axes.query, plane.queries, plane.queryBlock),
    longest(axes.key, plane.keys, plane.keyBlock),
  ];
  const slanted = axes.key.kind !== "frames" && plane.keyBlock === 1;
  const angle = (LABEL_ANGLE * Math.PI) / 180;
  const [above, strip] = [axes.key, axes.query].map((axis) => (axis.spectrogram ? SPECTROGRAM_SIZE + 4 : 0));
  // Beside rows that are kept whole stands a mark.
  const aside = strip + (plane.pooled ? 4 : 0);
  const left = Math.ceil(Math.max(92, asked + 16)) + aside;
  const top = Math.ceil(slanted ? known * Math.sin(angle) + 18 : 40) + above;
  const overhang = Math.ceil(Math.max(MARGINAL_SIZE + 26, slanted ? known * Math.cos(angle) + 4 : 0));
  const [wide, tall] = cellSize(plane, place.clientWidth - left - overhang);
  const [across, down] = [wide * plane.keys, tall * plane.queries];
  return {
    left,
    top,
    above,
    aside,
    slanted,
    wide,
    tall,
    gap: Math.min(wide, tall) >= 12 ? 1 : 0,
    across,
    down,
    width: left + across + overhang,
    height: top + down + MARGINAL_SIZE + 18,
  };
}

/**
 * Width and height of a cell: square, but a side of few positions beside a long one is drawn out.
 * @param {HeadMap} plane
 * @param {number} width
 */
function cellSize(plane, width) {
  const most = [width / Math.max(1, plane.keys), 620 / Math.max(1, plane.queries)];
  const smallest = plane.pooled || Math.max(plane.keys, plane.queries) > 200 ? 2 : 4;
  const cell = Math.max(smallest, Math.min(MAX_CELL, Math.floor(Math.min(...most))));
  /**
   * @param {number} count
   * @param {number} room
   */
  const drawn = (count, room) =>
    count <= FEW_POSITIONS && cell < 14 ? Math.max(cell, Math.min(24, Math.floor(Math.min(room, 420 / count)))) : cell;
  return [drawn(plane.keys, most[0]), drawn(plane.queries, most[1])];
}

/**
 * The largest value of the profiles: one, or a round number nearer to what a flat head holds.
 * @param {HeadMap} plane
 */
function marginalScale(plane) {
  let largest = 0;
  for (const value of plane.values) largest = Math.max(largest, Math.abs(value));
  return [0.01, 0.02, 0.05, 0.1, 0.2, 0.5].find((value) => value >= largest) ?? 1;
}

/**
 * @param {Heatmap} map
 * @param {boolean} causal
 */
function paintCells({ canvas, plane, box, signed }, causal) {
  const scale = Math.max(1, window.devicePixelRatio || 1);
  const [width, height] = [Math.round(box.across * scale), Math.round(box.down * scale)];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = context2d(canvas);
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, box.across, box.down);
  context.imageSmoothingEnabled = false;
  context.drawImage(paintPlane(createHtml("canvas"), plane, causal), 0, 0, box.across, box.down);
  if (box.gap) {
    for (let key = 1; key <= plane.keys; key++) context.clearRect(key * box.wide - 1, 0, 1, box.down);
    for (let query = 1; query <= plane.queries; query++) context.clearRect(0, query * box.tall - 1, box.across, 1);
  }
  if (!signed) return;
  for (const hole of negativeMarks(plane, box)) context.clearRect(...hole);
}

/**
 * The holes of cells whose value is negative: a difference is read without color too.
 * @param {HeadMap} plane
 * @param {HeatmapLayout} box
 */
export function negativeMarks(plane, box) {
  const inset = Math.max(1, Math.round(Math.min(box.wide, box.tall) / 4));
  const [width, height] = [box.wide, box.tall].map((side) => side - box.gap - 2 * inset);
  if (Math.min(width, height) < 1) return [];
  /** @type {[number, number, number, number][]} */
  const holes = [];
  plane.values.forEach((value, at) => {
    if (value > -MIN_SIGNED_DIFFERENCE) return;
    const [x, y] = [(at % plane.keys) * box.wide, Math.floor(at / plane.keys) * box.tall];
    holes.push([x + inset, y + inset, width, height]);
  });
  return holes;
}

/**
 * @param {Tick} tick
 * @param {HeatmapLayout} box
 */
function queryLabel(tick, box) {
  const [x, y] = [box.left - box.aside - 8, box.top + cellCenter(tick.cell, box.tall) + 4];
  return tickLabel(tick, { x, y, "text-anchor": "end" });
}

/**
 * @param {Tick} tick
 * @param {HeatmapLayout} box
 */
function keyLabel(tick, box) {
  const [x, y] = [box.left + cellCenter(tick.cell, box.wide), box.top - box.above - 7];
  if (tick.tick || !box.slanted) return tickLabel(tick, { x, y, "text-anchor": "middle" });
  return tickLabel(tick, { transform: `translate(${x + 2} ${y}) rotate(${-LABEL_ANGLE})` });
}

/**
 * @param {Tick} tick
 * @param {Attributes} attributes
 */
export function tickLabel(tick, attributes) {
  const special = /^<.*>$/s.test(tick.token ?? "") ? " special" : "";
  const element = createSvg("text", { class: `token${tick.tick ? " number" : ""}${special}`, ...attributes });
  element.append(...splitWordStart(tick.text, (start) => createSvg("tspan", { class: "word-start" }, start)));
  return element;
}

/**
 * @param {Site} site
 * @param {HeatmapLayout} box
 */
function axisNames(site, box) {
  const [x, y] = [box.left - 8, box.top - box.above];
  const high = box.slanted ? [24, 9] : [22, 7];
  return createSvg(
    "g",
    { class: "axis-name" },
    createSvg("text", { x, y: y - high[0], "text-anchor": "end" }, `${site.key.replaceAll("_", " ")} →`),
    createSvg("text", { x, y: y - high[1], "text-anchor": "end" }, `${site.query.replaceAll("_", " ")} ↓`),
  );
}

/**
 * Marks beside the rows that are kept whole.
 * @param {number[]} positions
 * @param {HeadMap} plane
 * @param {HeatmapLayout} box
 */
function fullRowMarks(positions, plane, box) {
  const marks = positions.map((position) => {
    const y = box.top + cellCenter(Math.floor(position / plane.queryBlock), box.tall);
    return createSvg("path", { d: `M${box.left - 6} ${y - 3}l5 3l-5 3z` });
  });
  return createSvg("g", { class: "whole-rows" }, ...marks);
}

/**
 * Spectrograms along the axes that were cut from sound, behind their leading positions.
 * @param {HTMLElement} frame
 * @param {AxisPair} axes
 * @param {HeadMap} plane
 * @param {HeatmapLayout} box
 */
function addSpectrograms(frame, axes, plane, box) {
  /**
   * @param {Axis} axis
   * @param {number} block
   * @param {number} cells
   * @param {number} size
   * @param {boolean} isKey
   */
  const place = async (axis, block, cells, size, isKey) => {
    const strip = await loadSpectrogram(axis).catch(() => null);
    if (!strip) return;
    const from = (axis.numLeadingPositions / block) * size;
    const long = Math.min(cells, axis.tokens.length / block) * size - from;
    strip.className = "strip";
    strip.style.cssText = isKey
      ? `left:${box.left + from}px;top:${box.top - SPECTROGRAM_SIZE - 2}px;width:${long}px;height:${SPECTROGRAM_SIZE}px`
      : // Turned upright: time runs down, low frequencies lie at the map.
        `left:${box.left - 2}px;top:${box.top + from}px;width:${long}px;height:${SPECTROGRAM_SIZE}px;` +
        "transform-origin:0 0;transform:rotate(90deg)";
    frame.prepend(strip);
  };
  place(axes.key, plane.keyBlock, plane.keys, box.wide, true);
  place(axes.query, plane.queryBlock, plane.queries, box.tall, false);
}

/**
 * @param {[number, number, boolean][]} goldAlignments
 * @param {HeatmapLayout} box
 */
function goldAlignmentMarks(goldAlignments, box) {
  const inset = box.gap ? 2.5 : 0.5;
  const [width, height] = [box.wide, box.tall].map((side) => Math.max(1, side - 2 * inset - box.gap));
  const rings = goldAlignments.flatMap(([query, key, sure]) => {
    const place = {
      x: box.left + key * box.wide + inset,
      y: box.top + query * box.tall + inset,
      width,
      height,
      rx: 2,
    };
    // Many possible links stay in the background; the halo keeps a sure one visible on any color beneath it.
    if (!sure) return [createSvg("rect", { class: "link possible", ...place })];
    return [createSvg("rect", { class: "halo", ...place }), createSvg("rect", { class: "link sure", ...place })];
  });
  return createSvg("g", { class: "gold-alignments" }, ...rings);
}

/**
 * The cell of a position, null for null.
 * @template {number | null} T
 * @param {T} position
 * @param {number} block
 * @returns {T}
 */
export const cellAt = (position, block) => /** @type {any} */ (position === null ? null : Math.floor(position / block));

/**
 * @param {number | null} queryPosition
 * @param {number | null} keyPosition
 */
function highlightCells(queryPosition, keyPosition) {
  const { plane, box, labels, axes } = heatmap;
  const [query, key] = [cellAt(queryPosition, plane.queryBlock), cellAt(keyPosition, plane.keyBlock)];
  heatmap.overlay.replaceChildren(...outlineCells(query, key, plane, box));
  for (const [cell, element] of labels.query) element.classList.toggle("lit", cell === query);
  for (const [cell, element] of labels.key) {
    element.classList.toggle("lit", cell === key);
    const faded = query !== null && cell !== key && !plane.pooled && !element.classList.contains("number");
    element.style.opacity = faded
      ? String(0.35 + 0.65 * Math.min(1, 1.6 * Math.sqrt(Math.abs(plane.at(query, cell)))))
      : "";
  }
  const highlighted = [];
  if (query !== null && !labels.query.has(query))
    highlighted.push(queryLabel(tickForCell(axes.query, query, plane.queryBlock), box));
  if (key !== null && !labels.key.has(key)) highlighted.push(keyLabel(tickForCell(axes.key, key, plane.keyBlock), box));
  for (const element of highlighted) element.classList.add("lit");
  hideOverlappingLabels(labels.query, query, box.tall, ROW_LABEL_SPACING);
  hideOverlappingLabels(labels.key, key, box.wide, box.slanted ? SLANTED_LABEL_SPACING : 4 * LABEL_HEIGHT);
  heatmap.highlight.replaceChildren(...highlighted);
  heatmap.profile.replaceChildren(...rowMarginal(heatmap, query), ...(key === null ? [] : columnMarginal(heatmap, key)));
}

/**
 * Hide the labels that the one of the lit cell would be written over.
 * @param {Map<number, SVGElement>} labels
 * @param {number | null} lit
 * @param {number} size
 * @param {number} room
 */
function hideOverlappingLabels(labels, lit, size, room) {
  for (const [cell, element] of labels) {
    const over = lit !== null && cell !== lit && !labels.has(lit) && Math.abs(cell - lit) * size < room;
    element.style.visibility = over ? "hidden" : "";
  }
}

/**
 * Veil the other rows, or without a row the other columns, and frame what is left.
 * @param {number | null} query
 * @param {number | null} key
 * @param {HeadMap} plane
 * @param {HeatmapLayout} box
 */
function outlineCells(query, key, plane, box) {
  const { left, top, wide, tall, gap, across, down } = box;
  /**
   * @param {number} x
   * @param {number} y
   * @param {number} width
   * @param {number} height
   */
  const veil = (x, y, width, height) => createSvg("rect", { class: "veil", x, y, width, height });
  const parts = [];
  if (query !== null) {
    parts.push(
      veil(left, top, across, query * tall),
      veil(left, top + (query + 1) * tall, across, (plane.queries - query - 1) * tall),
      createSvg("rect", {
        class: "frame",
        x: left - 1,
        y: top + query * tall - 1,
        width: across - gap + 2,
        height: tall - gap + 2,
        rx: 2,
      }),
    );
  } else if (key !== null) {
    parts.push(
      veil(left, top, key * wide, down),
      veil(left + (key + 1) * wide, top, (plane.keys - key - 1) * wide, down),
    );
  }
  if (key !== null)
    parts.push(
      createSvg("rect", {
        class: query === null ? "frame" : "frame column",
        x: left + key * wide - 1,
        y: top - 1,
        width: wide - gap + 2,
        height: down - gap + 2,
        rx: 2,
      }),
    );
  return parts;
}
