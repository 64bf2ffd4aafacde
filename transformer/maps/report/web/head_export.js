// The large head, or its lines, as files: a drawing of what is seen, its numbers as CSV.

import { cssColor, themeColor } from "../../../pages/color_scale.js";
import { byId, createHtml, createSvg } from "../../../pages/dom.js";
import { downloadCsv, downloadDrawing, standaloneSvg } from "../../../pages/figure_export.js";
import { colorBarParts, svgText } from "../../../pages/markers_and_legends.js";
import { heatmap, negativeMarks } from "./attention_heatmap.js";
import { attentionLines, attentionLinesSvg, lineHeads } from "./attention_lines.js";
import { cellRange } from "./axes.js";
import { hides, paintPlane, weightScale } from "./canvas_pixels.js";
import { contextText } from "./captions.js";
import { data } from "./page_data.js";
import { positionText } from "./token_highlights.js";
import { state } from "./view_state.js";

/** @import { CellValue } from "../../../pages/types.js" */
/** @import { HeadMap } from "./map_data.js" */
/** @import { Axis, Heatmap, Side, Site } from "./types.js" */

const MAX_RECTANGLES = 4096; // cells that a drawing holds as shapes; more go into it as one image
const LEGEND_HEIGHT = 34;

/** The large head as a drawing that needs no page: its labels and marks, its cells, the scale beneath. */
function heatmapSvg() {
  const { box, plane, signed } = heatmap;
  const scale = weightScale(signed);
  const words = signed ? "difference; lower where a cell has a hole" : `${valueName(signed)}, on a square-root scale`;
  const bottom = box.height + 4;
  const { drawing, body } = standaloneSvg(heatmap.svg, {
    title: byId("detail-title").textContent ?? "",
    words: contextText({ ...heatmap, planes: [[state.head, plane]] }),
    parts: [
      ...colorBarParts(box.left, bottom, 160, scale.colorAt, scale.marks),
      svgText(words, box.left + 178, bottom + 9, { class: "tick" }),
    ],
    least: 460,
    below: LEGEND_HEIGHT,
  });
  body.prepend(heatmapCells(heatmap));
  return drawing;
}

/**
 * What a cell's number is.
 * @param {boolean} signed
 */
export const valueName = (signed) => (signed ? "difference" : state.view === "value_weighted" ? "share" : "weight");

/** @param {Heatmap} map */
function heatmapCells({ box, plane, signed, site }) {
  const { left, top, wide, tall, gap, across, down } = box;
  const { queries, keys } = plane;
  if (queries * keys > MAX_RECTANGLES) {
    const href = paintPlane(createHtml("canvas"), plane, site.causal).toDataURL("image/png");
    const size = { x: left, y: top, width: across, height: down, preserveAspectRatio: "none" };
    return createSvg("g", {}, createSvg("image", { ...size, "image-rendering": "pixelated", href }));
  }
  const cells = [];
  for (let query = 0; query < queries; query++)
    for (let key = 0; key < keys; key++) {
      if (hides(plane, site.causal, query, key)) continue;
      const place = { x: left + key * wide, y: top + query * tall, width: wide - gap, height: tall - gap };
      cells.push(createSvg("rect", { ...place, fill: cssColor(plane.at(query, key)) }));
    }
  const holes = signed ? negativeMarks(plane, box) : [];
  for (const [x, y, width, height] of holes)
    cells.push(createSvg("rect", { x: left + x, y: top + y, width, height, fill: themeColor("panel") }));
  return createSvg("g", {}, ...cells);
}

/** The numbers of the large head, or of all whose lines are drawn, a row a cell; what a causal mask hides is left out. */
function weightTable() {
  const { axes, site, signed } = state.lines ? attentionLines : heatmap;
  /** @type {[number, HeadMap][]} */
  const planes = state.lines ? attentionLines.planes : [[state.head, heatmap.plane]];
  const [, plane] = planes[0];
  /** @param {Side} side */
  const range = (side) => (plane.pooled ? [`${side}_first`, `${side}_last`] : [side]);
  const heads = state.lines ? ["head"] : [];
  /** @type {CellValue[][]} */
  const rows = [[...heads, ...range("query"), "query_token", ...range("key"), "key_token", valueName(signed)]];
  /**
   * @param {Axis} axis
   * @param {number} cell
   * @param {number} size
   */
  const columns = (axis, cell, size) => {
    const [first, last] = cellRange(axis, cell, size);
    return [first + 1, ...(plane.pooled ? [last + 1] : []), positionText(axis, first)];
  };
  for (const [head, own] of planes)
    for (let query = 0; query < own.queries; query++) {
      const row = [...heads.map(() => site.heads[head]), ...columns(axes.query, query, own.queryBlock)];
      for (let key = 0; key < own.keys; key++) {
        if (hides(own, site.causal, query, key)) continue;
        rows.push([...row, ...columns(axes.key, key, own.keyBlock), Number(own.at(query, key).toPrecision(6))]);
      }
    }
  return rows;
}

/** What names a file of the large head, or of its lines. */
function fileNameParts() {
  const { name, layers, heads } = data.sites[state.site];
  const drawn = state.lines ? lineHeads(state) : [state.head];
  return [
    name,
    `layer-${layers[state.layer]}`,
    `head-${drawn.map((head) => heads[head]).join("-")}`,
    ...(state.lines ? ["lines"] : []),
    ...(data.singleText ? [] : [`step-${data.steps[state.step]}`]),
    `example-${state.example + 1}`,
  ];
}

const currentSvg = () => (state.lines ? attentionLinesSvg() : heatmapSvg());
export const EXPORT_ACTIONS = {
  png: () => downloadDrawing(currentSvg(), fileNameParts(), "png"),
  svg: () => downloadDrawing(currentSvg(), fileNameParts(), "svg"),
  csv: () => downloadCsv(weightTable(), fileNameParts()),
};
