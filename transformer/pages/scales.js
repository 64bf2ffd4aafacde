// Scales { ticks: [[value, words]], share(value): where a value lies, 0 to 1 }, and the axes that show them.

import { createSvg } from "./dom.js";
import { formatCompact, withMinusSign } from "./formatting.js";
import { labelWidth, svgText } from "./markers_and_legends.js";

/** @import { Axes, Box, Scale } from "./types.js" */

export const PLOT_MARGIN = { right: 14, top: 12, bottom: 36 };
const LOG_SCALE_RATIO = 40; // largest over smallest value from which on a logarithmic scale shows more

/**
 * About `count` round values that reach from `low` to `high` or a little beyond.
 * @param {number} low
 * @param {number} high
 * @param {number} count
 */
export function niceTicks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 2.5, 5].find((factor) => factor * power >= rough * 0.999) ?? 10) * power;
  const first = Math.floor(low / step + 1e-9);
  const last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

/**
 * Values with their words on an axis, in as many digits as it takes to tell one from the next.
 * @param {number[]} values
 * @returns {[number, string][]}
 */
export function tickLabels(values) {
  for (let digits = 3; ; digits++) {
    const words = values.map((value) => withMinusSign(formatCompact(value, digits)));
    if (digits === 15 || new Set(words).size === new Set(values).size) return values.map((v, at) => [v, words[at]]);
  }
}

/**
 * The least and the greatest of some values; there may be more of them than a call takes arguments.
 * @param {number[]} values
 * @returns {[number, number]}
 */
export function valueRange(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

/**
 * A linear scale with round ticks; it ends at a tick, or `tight` at the largest value.
 * @param {number[]} values
 * @param {number} [count]
 * @param {{ tight?: boolean }} [options]
 * @returns {Scale}
 */
export function linearScale(values, count = 4, { tight = false } = {}) {
  let [low, high] = valueRange(values);
  if (low >= 0 && low < 0.35 * high) low = 0;
  if (low === high) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 20, high + Math.abs(high) / 20];
  const every = niceTicks(low, high, count);
  const ticks = tight ? every.filter((value) => value >= low && value <= high) : every;
  const [first, last] = [Math.min(low, ticks[0]), Math.max(high, ticks[ticks.length - 1])];
  return {
    ticks: tickLabels(ticks),
    share: (value) => (value - first) / (last - first),
  };
}

/**
 * Whether a logarithmic scale shows more of these values.
 * @param {number[]} values
 * @param {number} [ratio]
 */
export function needsLogScale(values, ratio = LOG_SCALE_RATIO) {
  const [low, high] = valueRange(values);
  return low > 0 && high > ratio * low;
}

/**
 * A logarithmic scale over positive values: ticks at 1, 2, 5 where it is short, at powers of ten where it is long.
 * @param {number[]} values
 * @returns {Scale}
 */
export function logScale(values) {
  let [low, high] = valueRange(values.filter((value) => value > 0)).map(Math.log10);
  if (high - low < 0.3) [low, high] = [low - 0.15, high + 0.15];
  const finest = high - low > 0.9 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7];
  const factors = high - low > 3 ? [1] : high - low > 1.4 ? [1, 3] : finest;
  const all = [];
  for (let power = Math.floor(low) - 1; power <= Math.ceil(high); power++)
    for (const factor of factors) all.push(Math.log10(factor) + power);
  const inside = all.filter((tick) => tick >= low - 0.02 && tick <= high + 0.02);
  const every = Math.ceil(inside.length / 7);
  const ticks = inside.filter((_, at) => at % every === 0);
  [low, high] = [low - 0.02 * (high - low), high + 0.02 * (high - low)];
  return {
    ticks: tickLabels(ticks.map((tick) => Number((10 ** tick).toPrecision(3)))),
    share: (value) => (Math.log10(Math.max(value, 10 ** low)) - low) / (high - low),
  };
}

/**
 * Whether two values are equal as JSON.
 * @param {any} a
 * @param {any} b
 */
export const isSameValue = (a, b) => a === b || JSON.stringify(a) === JSON.stringify(b);

/**
 * Room on the left for the labels of a vertical axis and its name.
 * @param {[any, string][]} ticks
 */
export const verticalAxisWidth = (ticks) =>
  Math.ceil(Math.max(18, ...ticks.map(([, words]) => labelWidth(words)))) + 26;

/**
 * Grid, labels and names of two axes around a box { left, right, top, bottom }, and where values lie in it.
 * @param {Box} box
 * @param {Scale} x
 * @param {Scale} y
 * @param {(string | undefined)[]} names
 * @returns {Axes}
 */
export function drawAxes(box, x, y, names) {
  /** @param {number} value */
  const atX = (value) => box.left + (box.right - box.left) * x.share(value);
  /** @param {number} value */
  const atY = (value) => box.bottom - (box.bottom - box.top) * y.share(value);
  const parts = [...horizontalGrid(box, y, atY), ...horizontalTicks(box, x, atX)];
  parts.push(svgText(names[0], box.right, box.bottom + 31, { class: "axis-name", "text-anchor": "end" }));
  if (names[1]) parts.push(verticalAxisName(names[1], 12, (box.top + box.bottom) / 2));
  return { box, parts, atX, atY };
}

/**
 * The name of a vertical axis.
 * @param {string} words
 * @param {number} x
 * @param {number} y
 */
export const verticalAxisName = (words, x, y) =>
  svgText(words, x, y, { class: "axis-name", "text-anchor": "middle", transform: `rotate(-90 ${x} ${y})` });

/**
 * @param {Box} box
 * @param {Scale} scale
 * @param {(value: any) => number} atY
 */
function horizontalGrid(box, { ticks }, atY) {
  const inside = ticks.filter(([value]) => atY(value) >= box.top - 1 && atY(value) <= box.bottom + 1);
  return inside.flatMap(([value, words]) => [
    createSvg("line", { class: "grid", x1: box.left, x2: box.right, y1: atY(value), y2: atY(value) }),
    svgText(words, box.left - 7, atY(value) + 3.5, { class: "tick", "text-anchor": "end" }),
  ]);
}

/**
 * Ticks beneath, those left out that have no room beside the one before.
 * @param {Box} box
 * @param {Scale} scale
 * @param {(value: any) => number} atX
 */
function horizontalTicks(box, { ticks }, atX) {
  let free = -Infinity;
  return ticks
    .map(([value, words]) => ({ place: atX(value), words }))
    .sort((a, b) => a.place - b.place)
    .flatMap(({ place, words }) => {
      const half = labelWidth(words) / 2;
      if (place - half < free || place < box.left - 1 || place > box.right + 1) return [];
      free = place + half + 5;
      const most = box.right + PLOT_MARGIN.right;
      const anchor = place + half > most ? { x: most, "text-anchor": "end" } : { "text-anchor": "middle" };
      return [
        createSvg("line", { class: "grid", x1: place, x2: place, y1: box.bottom, y2: box.bottom + 4 }),
        svgText(words, place, box.bottom + 16, { class: "tick", ...anchor }),
      ];
    });
}
