// What stands on a figure: text, markers, crosses, the bar of a ramp. A series is told from others by its look,
//   { ink: classes that give its color and dash, shape: the number of its marker, null for a line alone }

import { createHtml, createSvg } from "./dom.js";
import { showInvisible, truncate } from "./formatting.js";

/** @import { Attributes, Child, SeriesStyle } from "./types.js" */

/**
 * Text in a figure, as it can be seen and as any XML can hold it.
 * @param {unknown} words
 */
export const xmlText = (words) =>
  showInvisible(String(words))
    .toWellFormed()
    .replace(/[\ufffe\uffff]/g, "\ufffd");
/**
 * @param {unknown} words
 * @param {number} x
 * @param {number} y
 * @param {Attributes} [attributes]
 */
export const svgText = (words, x, y, attributes = {}) =>
  createSvg("text", { x: x.toFixed(1), y: y.toFixed(1), ...attributes }, xmlText(words));

/**
 * About how wide a label of the axes is.
 * @param {unknown} words
 */
export const labelWidth = (words) => 6.4 * Array.from(String(words)).length;

/** @param {number[][]} points */
const polygon = (points) => `M${points.map(([x, y]) => `${x.toFixed(2)} ${y.toFixed(2)}`).join("L")}Z`;

// By the number of a look's shape; of an upright cross the corners of one quarter, turned four times.
/** @type {((x: number, y: number, r: number) => string)[]} */
export const MARKER_SHAPES = [
  (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
  (x, y, r) => regularPolygon(x, y, 1.2 * r, 4, 45),
  (x, y, r) => regularPolygon(x, y, 1.35 * r, 3, 0),
  (x, y, r) => regularPolygon(x, y, 1.3 * r, 4, 0),
  (x, y, r) => regularPolygon(x, y, 1.35 * r, 3, 180),
  (x, y, r) => {
    const quarter = [[-0.42, -1.15], [0.42, -1.15], [0.42, -0.42]]; // prettier-ignore
    const turned = [0, 1, 2, 3].flatMap(
      (turns) =>
      quarter.map(([a, b]) => [[a, b], [-b, a], [-a, -b], [b, -a]][turns]), // prettier-ignore
    );
    return polygon(turned.map(([a, b]) => [x + a * r, y + b * r]));
  },
  (x, y, r) => regularPolygon(x, y, 1.2 * r, 6, 0),
  (x, y, r) => regularPolygon(x, y, 1.25 * r, 5, 180),
];

/**
 * @param {number} x
 * @param {number} y
 * @param {number} size
 * @param {number} count
 * @param {number} turn
 */
function regularPolygon(x, y, size, count, turn) {
  const angles = Array.from({ length: count }, (_, at) => ((turn + (360 * at) / count) * Math.PI) / 180);
  return polygon(angles.map((angle) => [x + size * Math.sin(angle), y - size * Math.cos(angle)]));
}

/**
 * Color, dash and marker of a series by its number: 0 is drawn in ink, and the eighth after it has the color of the
 * first and the shape of the second.
 * @param {number} slot
 * @returns {SeriesStyle}
 */
export function seriesStyle(slot) {
  const round = Math.floor((slot - 1) / (MARKER_SHAPES.length - 1));
  /** @param {number} number */
  const turned = (number) => (slot === 0 ? 0 : 1 + ((number - 1) % (MARKER_SHAPES.length - 1)));
  const [color, shape] = [turned(slot), turned(slot + round)];
  return { ink: `series-${color} dash-${shape}`, shape };
}

/**
 * The marker of a look, about 2 r wide.
 * @param {SeriesStyle} style
 * @param {number} x
 * @param {number} y
 * @param {number} [r]
 */
export const marker = ({ ink, shape }, x, y, r = 3.6) =>
  createSvg("path", { class: `marker ${ink}`, d: MARKER_SHAPES[shape ?? 0](x, y, r) });

/**
 * A cross where a run diverged.
 * @param {number} x
 * @param {number} y
 * @param {number} [r]
 * @param {Attributes} [attributes]
 */
export const cross = (x, y, r = 3.6, attributes = {}) =>
  createSvg("path", {
    class: "cross",
    d: `M${x - r} ${y - r}L${x + r} ${y + r}M${x - r} ${y + r}L${x + r} ${y - r}`,
    ...attributes,
  });

/**
 * The line and the marker of a look, for a drawing.
 * @param {SeriesStyle} look
 */
export function legendKeyParts(look) {
  const line = createSvg("line", { class: `stroke ${look.ink}`, x1: 0, x2: 30, y1: 6, y2: 6 });
  return look.shape === null ? [line] : [line, marker(look, 15, 6)];
}

/**
 * The same beside a name.
 * @param {SeriesStyle} look
 */
export function legendKey(look) {
  const size = { class: "sample", width: 30, height: 12, "aria-hidden": "true", focusable: "false" };
  return createSvg("svg", size, ...legendKeyParts(look));
}

/**
 * The bar that says which color is which value; marks are [share of its width, words].
 * @param {number} left
 * @param {number} top
 * @param {number} width
 * @param {(share: number) => string} colorAt
 * @param {[number, string][]} marks
 */
export function colorBarParts(left, top, width, colorAt, marks) {
  const parts = 66;
  const step = width / parts;
  // Each lies over the edge of the one before: seams would show as stripes.
  const bar = Array.from({ length: parts }, (_, part) => {
    const place = { x: left + part * step, y: top, width: part < parts - 1 ? step + 1 : step, height: 9 };
    return createSvg("rect", { ...place, fill: colorAt(part / (parts - 1)) });
  });
  const words = marks.map(([share, text]) =>
    svgText(text, left + width * share, top + 21, { class: "tick", "text-anchor": "middle" }),
  );
  return [...bar, ...words];
}

/**
 * The same as a legend beside a heading, under its name.
 * @param {HTMLElement} place
 * @param {string} name
 * @param {(share: number) => string} colorAt
 * @param {[number, string][]} marks
 */
export function renderColorBar(place, name, colorAt, marks) {
  const size = { class: "ramp", width: 132, height: 24, role: "img", "aria-label": `scale: ${name}` };
  const bar = createSvg("svg", size, ...colorBarParts(0, 0, size.width, colorAt, marks));
  place.replaceChildren(createHtml("span", { class: "ramp-name" }, name), bar);
}

/**
 * The first line of a tip.
 * @param {string} words
 */
export const tooltipTitle = (words) => createHtml("div", { class: "tip-head" }, words);

/**
 * A row of a tip: a series' sample and name, then what it has.
 * @param {SeriesStyle} look
 * @param {string} name
 * @param {Child} value
 * @param {string} [more]
 */
export function tooltipRow(look, name, value, more = "") {
  const title = createHtml("span", { class: "arm-name" }, truncate(showInvisible(name), 28));
  return createHtml(
    "div",
    { class: "tip-row" },
    legendKey(look),
    title,
    createHtml("b", {}, value),
    createHtml("i", {}, more),
  );
}
