// The weights of one row and of one column of the large head, as bars beside it.

import { createSvg } from "../../../pages/dom.js";
import { withMinusSign } from "../../../pages/formatting.js";
import { cellCenter, tickForCell } from "./axes.js";

/** @import { HeadMap } from "./map_data.js" */
/** @import { Heatmap } from "./types.js" */

export const MARGINAL_SIZE = 58; // pixels of the bars and their labels

/**
 * The mean of each column over the rows, which stands where no row is asked for.
 * @param {HeadMap} plane
 */
export function columnMeans(plane) {
  const means = new Float32Array(plane.keys);
  for (let query = 0; query < plane.queries; query++)
    for (let key = 0; key < plane.keys; key++) means[key] += plane.at(query, key) / plane.queries;
  return means;
}

/**
 * The weights of one row as bars under their columns; without a row, the mean over all rows.
 * @param {Heatmap} heatmap
 * @param {number | null} query
 */
export function rowMarginal(heatmap, query) {
  const { plane, box, axes, highest, signed } = heatmap;
  heatmap.means ??= columnMeans(plane);
  const values = query === null ? heatmap.means : plane.values.subarray(query * plane.keys, (query + 1) * plane.keys);
  const base = box.top + box.down + MARGINAL_SIZE;
  const depth = MARGINAL_SIZE - 10;
  const zero = signed ? base - depth / 2 : base;
  const unit = (signed ? depth / 2 : depth) / highest;
  const parts = [];
  for (const value of signed ? [-highest, 0, highest] : [0, highest / 2, highest]) {
    const y = zero - unit * value;
    parts.push(
      createSvg("line", { class: "grid", x1: box.left, x2: box.left + box.across, y1: y, y2: y }),
      createSvg("text", { class: "tick", x: box.left + box.across + 5, y: y + 3.5 }, withMinusSign(String(value))),
    );
  }
  const bars = barPaths(values, box.wide, (at, width, size) => {
    const height = unit * Math.min(highest, Math.abs(size));
    const y = size < 0 ? zero : zero - height;
    return `M${box.left + at - box.gap / 2} ${y.toFixed(1)}h${width}v${height.toFixed(1)}h${-width}z`;
  });
  const name = query === null ? "mean of rows" : tickForCell(axes.query, query, plane.queryBlock).text;
  const place = { x: box.left - 8, y: base - depth / 2 + 4, "text-anchor": "end" };
  const title = createSvg("text", { class: query === null ? "axis-name" : "token lit", ...place }, name);
  return [...parts, ...bars, title];
}

/**
 * The weights of one column as bars beside their rows: which queries read this key.
 * @param {Heatmap} heatmap
 * @param {number} key
 */
export function columnMarginal(heatmap, key) {
  const { plane, box, highest, signed } = heatmap;
  const values = Float32Array.from({ length: plane.queries }, (_, query) => plane.at(query, key));
  const depth = MARGINAL_SIZE - 4;
  const from = box.left + box.across + 8;
  const zero = signed ? from + depth / 2 : from;
  const unit = (signed ? depth / 2 : depth) / highest;
  const ends = { y1: box.top, y2: box.top + box.down };
  const lines = [0, highest].map((value) =>
    createSvg("line", { class: "grid", x1: zero + unit * value, x2: zero + unit * value, ...ends }),
  );
  const bars = barPaths(values, box.tall, (at, height, size) => {
    const width = unit * Math.min(highest, Math.abs(size));
    const x = size < 0 ? zero - width : zero;
    const y = box.top + at - box.gap / 2;
    return `M${x.toFixed(1)} ${y}h${width.toFixed(1)}v${height}h${(-width).toFixed(1)}z`;
  });
  return [...lines, ...bars];
}

/**
 * All bars of a profile as two paths, of positive and of negative values: one element however many they are.
 * @param {Float32Array} values
 * @param {number} size
 * @param {(at: number, thickness: number, value: number) => string} outline
 */
function barPaths(values, size, outline) {
  const thick = Math.max(1, size - (size >= 12 ? 5 : size > 3 ? 1 : 0));
  /** @param {number} cell */
  const at = (cell) => cellCenter(cell, size) - thick / 2;
  /** @type {{ bar: string[], "bar less": string[] }} */
  const path = { bar: [], "bar less": [] };
  values.forEach((value, cell) => {
    if (value !== 0) path[value < 0 ? "bar less" : "bar"].push(outline(at(cell), thick, value));
  });
  return Object.entries(path)
    .filter(([, outlines]) => outlines.length)
    .map(([name, outlines]) => createSvg("path", { class: name, d: outlines.join("") }));
}
