// The large head, or its lines, as files: a drawing of what is seen, its numbers as CSV.

import { css, themeColor } from "../../../pages/color_scale.js";
import { byId, draw, make } from "../../../pages/dom.js";
import { handOutDrawing, handOutTable, standalone } from "../../../pages/figure_export.js";
import { readable, shorten, visible } from "../../../pages/formatting.js";
import { label, rampBar } from "../../../pages/plot_marks.js";
import { hollows, sheet } from "./attention_heatmap.js";
import { strandHeads, strands, strandsDrawing } from "./attention_lines.js";
import { rangeOf } from "./axes.js";
import { hides, paintPlane, weightScale } from "./canvas_pixels.js";
import { poolingWords } from "./captions.js";
import { data } from "./page_data.js";
import { positionText } from "./token_highlights.js";
import { state } from "./view_state.js";

const RECTANGLES = 4096; // cells that a drawing holds as shapes; more go into it as one image
const LEGEND_ROOM = 34;

/** The large head as a drawing that needs no page: its labels and marks, its cells, the scale beneath. */
function drawingOf() {
  const { box, plane, signed } = sheet;
  const scale = weightScale(signed);
  const words = signed ? "difference; lower where a cell has a hole" : `${valueWord(signed)}, on a square-root scale`;
  const bottom = box.height + 4;
  const { drawing, body } = standalone(sheet.svg, {
    title: byId("detail-title").textContent,
    words: contextWords({ ...sheet, planes: [[state.head, plane]] }),
    parts: [
      ...rampBar(box.left, bottom, 160, scale.colorAt, scale.marks),
      label(words, box.left + 178, bottom + 9, { class: "tick" }),
    ],
    least: 460,
    below: LEGEND_ROOM,
  });
  body.prepend(cellsOf(sheet));
  return drawing;
}

/** What a cell's number is. */
export const valueWord = (signed) => (signed ? "difference" : state.view === "normed" ? "share" : "weight");

/** What a drawing is of, in small print: `planes` are its heads', [[head, plane], ...]. */
export function contextWords({ site, planes, signed }) {
  const steps = data.alone ? [] : [`step ${readable(data.steps[state.step])}`];
  const parts = [data.title, site.name, ...steps, visible(data.titles[state.example])];
  const pooled = poolingWords(planes[0][1], signed);
  return [...parts, ...(pooled ? [pooled] : [])].map((part) => shorten(part, 70)).join(" · ");
}

function cellsOf({ box, plane, signed, site }) {
  const { left, top, wide, tall, gap, across, down } = box;
  const { queries, keys } = plane;
  if (queries * keys > RECTANGLES) {
    const href = paintPlane(make("canvas"), plane, site.causal).toDataURL("image/png");
    const size = { x: left, y: top, width: across, height: down, preserveAspectRatio: "none" };
    return draw("g", {}, draw("image", { ...size, "image-rendering": "pixelated", href }));
  }
  const cells = [];
  for (let query = 0; query < queries; query++)
    for (let key = 0; key < keys; key++) {
      if (hides(plane, site.causal, query, key)) continue;
      const place = { x: left + key * wide, y: top + query * tall, width: wide - gap, height: tall - gap };
      cells.push(draw("rect", { ...place, fill: css(plane.at(query, key)) }));
    }
  const holes = signed ? hollows(plane, box) : [];
  for (const [x, y, width, height] of holes)
    cells.push(draw("rect", { x: left + x, y: top + y, width, height, fill: themeColor("panel") }));
  return draw("g", {}, ...cells);
}

/** The numbers of the large head, or of all whose lines are drawn, a row a cell; what a causal mask hides is left out. */
function cellRows() {
  const { axes, site, signed } = state.lines ? strands : sheet;
  const planes = state.lines ? strands.planes : [[state.head, sheet.plane]];
  const [, plane] = planes[0];
  const range = (side) => (plane.pooled ? [`${side}_first`, `${side}_last`] : [side]);
  const heads = state.lines ? ["head"] : [];
  const rows = [[...heads, ...range("query"), "query_token", ...range("key"), "key_token", valueWord(signed)]];
  const columns = (axis, cell, size) => {
    const [first, last] = rangeOf(axis, cell, size);
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
function headParts() {
  const { name, layers, heads } = data.sites[state.site];
  const drawn = state.lines ? strandHeads(state) : [state.head];
  return [
    name,
    `layer-${layers[state.layer]}`,
    `head-${drawn.map((head) => heads[head]).join("-")}`,
    ...(state.lines ? ["lines"] : []),
    ...(data.alone ? [] : [`step-${data.steps[state.step]}`]),
    `example-${state.example + 1}`,
  ];
}

const seenDrawing = () => (state.lines ? strandsDrawing() : drawingOf());
export const EXPORTS = {
  png: () => handOutDrawing(seenDrawing(), headParts(), "png"),
  svg: () => handOutDrawing(seenDrawing(), headParts(), "svg"),
  csv: () => handOutTable(cellRows(), headParts()),
};
