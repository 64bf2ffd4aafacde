// What the positions were cut from, beside the map: running tokens, and the keys of one long row.

import { colorForValue, cssColor } from "../../../pages/color_scale.js";
import { context2d, createHtml } from "../../../pages/dom.js";
import { formatNumber } from "../../../pages/formatting.js";
import { formatSeconds, isFrame, positionName, positionSeconds, siteAxis } from "./axes.js";
import { loadFullRows, loadTopWeights } from "./map_data.js";
import { tokenNodes } from "./tokens.js";

/** @import { Axis, AxisPair, HeadView, Highlight, Hold, PointAt, Side, ViewState } from "./types.js" */

const MAX_TOKENS = 240; // tokens that stand as chips; of more, those around the held one
const TOKEN_WINDOW = 24;
const MAX_LISTED_KEYS = 12; // keys of a held row of a pooled map
/** @type {{ name: string, parts: Highlight[], list: HTMLElement, shown: HeadView }} What is drawn. */
let tokenHighlights = /** @type {any} */ (null);

/**
 * Draw the example into `place` and return the function that highlights positions: (query, key) => nothing.
 * @param {HTMLElement} place
 * @param {HeadView} shown
 * @param {ViewState} state
 * @param {PointAt} look
 * @param {Hold} hold
 */
export function drawTokenHighlights(place, shown, state, look, hold) {
  const { site } = shown;
  const axes = {
    query: siteAxis(site, "query", state.example),
    key: siteAxis(site, "key", state.example),
  };
  const spans = {
    query: tokenRange(axes.query, state.row),
    key: tokenRange(axes.key, state.column),
  };
  const name = [state.site, state.example, place.clientWidth, ...spans.query, ...spans.key].join(" ");
  if (tokenHighlights?.name !== name) {
    tokenHighlights = { name, shown, parts: [], list: createHtml("div", { class: "top-keys" }) };
    /** @type {Side[]} */
    const sides = ["query", "key"];
    const lines = sides.flatMap((side) => tokenRow(axes, side, spans[side], look, hold));
    place.replaceChildren(tokenHighlights.list, ...lines);
  }
  tokenHighlights.shown = shown;
  drawTopKeys(tokenHighlights.list, shown, state, axes, hold);
  const parts = tokenHighlights.parts;
  /** @type {Highlight} */
  const highlight = (query, key) => parts.forEach((part) => part(query, key));
  return highlight;
}

/**
 * First and last position of the chips of an axis.
 * @param {Axis} axis
 * @param {number | null} anchor
 * @returns {[number, number]}
 */
function tokenRange(axis, anchor) {
  // An image and a time axis say more than the names of their positions: only what leads them stands as chips.
  const all = axis.kind === "frames" || (axis.kind === "grid" && axis.image) ? axis.numLeadingPositions : axis.tokens.length;
  if (all <= MAX_TOKENS) return [0, all];
  // In whole stretches, so that going from row to row moves few chips.
  const first = Math.max(0, Math.floor((anchor ?? 0) / TOKEN_WINDOW) * TOKEN_WINDOW - TOKEN_WINDOW);
  return [first, Math.min(all, first + 3 * TOKEN_WINDOW)];
}

/**
 * The weight between two positions, in the cells of what is drawn.
 * @param {number} query
 * @param {number} key
 */
function weightAt(query, key) {
  const plane = tokenHighlights.shown.detail;
  return plane.at(Math.floor(query / plane.queryBlock), Math.floor(key / plane.keyBlock));
}

/**
 * The tokens of one side: pick one, and the other side is shaded by what it reads or by what reads it.
 * @param {AxisPair} axes
 * @param {Side} side
 * @param {[number, number]} options
 * @param {PointAt} look
 * @param {Hold} hold
 */
function tokenRow(axes, side, [first, end], look, hold) {
  const axis = axes[side];
  if (end === first) return [];
  /**
   * @param {number} position
   * @returns {[number | null, number | null]}
   */
  const pair = (position) => (side === "query" ? [position, null] : [null, position]);
  const chips = axis.tokens.slice(first, end).map((token, index) => {
    const chip = createHtml("span", { class: `chip ${side}`, dir: "auto" }, ...tokenNodes(token, 40));
    chip.addEventListener("pointerenter", () => look(...pair(first + index)));
    chip.addEventListener("pointerleave", () => look(null, null));
    chip.addEventListener("click", () => hold(...pair(first + index)));
    return chip;
  });
  const total = axis.kind === "tokens" ? axis.tokens.length : end;
  /**
   * @param {number} count
   * @param {string} words
   */
  const more = (count, words) =>
    count > 0 ? [createHtml("span", { class: "more" }, `${formatNumber(count)} ${words}`)] : [];
  tokenHighlights.parts.push((query, key) => {
    const [own, other] = side === "query" ? [query, key] : [key, query];
    chips.forEach((chip, index) => {
      const at = first + index;
      chip.classList.toggle("lit", at === own);
      // A row shades the keys that it reads; a column without a row the queries that read it.
      const shaded = other !== null && (side === "key" || key !== null) && !(side === "query" && own !== null);
      shadeToken(chip, shaded ? (side === "key" ? weightAt(other, at) : weightAt(at, other)) : null);
    });
  });
  const body = createHtml("div", {}, ...more(first, "before … "), ...chips, ...more(total - end, "more"));
  const name = `${axis.name.replaceAll("_", " ")} ${side === "query" ? "↓" : "→"}`;
  return [createHtml("div", { class: "line-of-tokens" }, createHtml("span", { class: "axis" }, name), body)];
}

/**
 * @param {HTMLElement} chip
 * @param {number | null} value
 */
function shadeToken(chip, value) {
  const color = value === null ? null : colorForValue(value);
  chip.style.backgroundColor = value === null ? "" : cssColor(value);
  // The text takes the side of the ramp that is far from its ground.
  const bright = color && 0.2126 * color[0] + 0.7152 * color[1] + 0.0722 * color[2] > 140;
  chip.style.color = color ? (bright ? "#14161c" : "#ffffff") : "";
}

/**
 * The largest weights of a held row of a pooled map, exact where the row or its top is kept.
 * @param {HTMLElement} place
 * @param {HeadView} shown
 * @param {ViewState} state
 * @param {AxisPair} axes
 * @param {Hold} hold
 */
async function drawTopKeys(place, shown, state, axes, hold) {
  const wanted = [state.step, state.site, state.example, state.layer, state.head, state.row].join(" ");
  place.dataset.wanted = wanted;
  const { detail } = shown;
  if (!detail.pooled || shown.signed || state.view !== "weights") {
    place.replaceChildren();
    return;
  }
  const kept = await loadFullRows(state.step, state.site, state.example);
  const top = state.row === null ? null : await loadTopWeights(state.step, state.site, state.example, state.layer);
  if (place.dataset.wanted !== wanted) return;
  /** @type {HTMLElement[]} */
  const parts = kept ? [fullRowButtons(kept.positions, state, hold)] : [];
  const whole = kept?.positions.findIndex((each) => each === state.row) ?? -1;
  const largest = state.row === null ? null : top?.(state.head, state.row);
  if (kept && whole >= 0) {
    const row = kept.row(state.layer, state.head, whole).subarray(0, axes.key.tokens.length);
    const ranked = Array.from(row, (weight, key) => /** @type {[number, number]} */ ([key, weight])).sort(
      (a, b) => b[1] - a[1],
    );
    parts.push(fullRowBars(row, axes.key, place.clientWidth), ...topKeyList(ranked, axes, state, "over the full row"));
  } else if (largest) {
    parts.push(...topKeyList(largest, axes, state, "as stored by the run"));
  } else if (state.row !== null) {
    parts.push(createHtml("p", { class: "note" }, "This page has only the pooled cells of this row."));
  }
  place.replaceChildren(...parts);
}

/**
 * @param {number[]} positions
 * @param {ViewState} state
 * @param {Hold} hold
 */
function fullRowButtons(positions, state, hold) {
  const buttons = positions.map((position) => {
    const button = createHtml(
      "button",
      { type: "button", class: "small-button", "aria-pressed": position === state.row },
      formatNumber(position + 1),
    );
    button.addEventListener("click", () => hold(position, null));
    return button;
  });
  return createHtml("p", { class: "note whole-row-buttons" }, "Full rows: ", ...buttons);
}

/**
 * A whole row as bars as wide as the panel: of the keys that share a pixel the largest.
 * @param {Float32Array} row
 * @param {Axis} axis
 * @param {number} width
 */
function fullRowBars(row, axis, width) {
  const canvas = createHtml("canvas", { width, height: 48, class: "row-strip", role: "img" });
  canvas.setAttribute("aria-label", "the weights over the full row");
  const context = context2d(canvas);
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--ramp-3");
  const largest = row.reduce((a, b) => Math.max(a, b), 1e-9);
  row.forEach((weight, key) => {
    const height = 48 * Math.sqrt(weight / largest);
    context.fillRect((key * width) / row.length, 48 - height, Math.max(1, width / row.length), height);
  });
  return canvas;
}

/**
 * @param {[number, number][]} ranked
 * @param {AxisPair} axes
 * @param {ViewState} state
 * @param {string} words
 */
function topKeyList(ranked, axes, state, words) {
  const items = ranked
    .slice(0, MAX_LISTED_KEYS)
    .filter(([key, weight]) => weight > 0 && key < axes.key.tokens.length)
    .map(([key, weight]) => {
      const name = createHtml("span", { class: "chip", dir: "auto" }, ...tokenNodes(positionText(axes.key, key), 40));
      shadeToken(name, weight);
      return createHtml("li", {}, name, ` ${formatNumber(key + 1)} `, createHtml("b", {}, weight.toFixed(3)));
    });
  const row = state.row ?? 0;
  const title = `Largest keys of row ${formatNumber(row + 1)}, ${positionName(axes.query, row)}, ${words}`;
  return [createHtml("p", { class: "note" }, title), createHtml("ol", { class: "key-list" }, ...items)];
}

/**
 * @param {Axis} axis
 * @param {number} position
 */
export const positionText = (axis, position) =>
  isFrame(axis, position) ? formatSeconds(axis, positionSeconds(axis, position)) : axis.tokens[position];
