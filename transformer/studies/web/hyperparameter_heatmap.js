// The map of two tuned keys: a heat map an arm, on one scale for all of them.

import { cssColor } from "../../pages/color_scale.js";
import { createHtml, createSvg, ownValue } from "../../pages/dom.js";
import { addFigure } from "../../pages/figure.js";
import {
  formatCompact,
  formatOrDash,
  isNumber,
  showInvisible,
  truncate,
  withMinusSign,
  withSpaces,
} from "../../pages/formatting.js";
import { seedCountText } from "../../pages/line_chart.js";
import { colorBarParts, labelWidth, marker, svgText, tooltipTitle } from "../../pages/markers_and_legends.js";
import { isSameValue, tickLabels, verticalAxisName } from "../../pages/scales.js";
import { armStyle, armTooltipRow, visibleArms } from "./arms.js";
import { ablation } from "./page_data.js";
import { addPanel, formatTunedValue, lowerIsBetter, shortKey, tunedKeys } from "./panels_and_tables.js";

/** @import { Stop } from "../../pages/types.js" */
/** @import { Arm, ArmHeatmap, HeatmapCell } from "./types.js" */

export function showHyperparameterHeatmap() {
  const maps = ablation.arms.flatMap(({ heatmap }) => heatmap ?? []);
  if (!maps.length) return;
  const { x_key, y_key } = maps[0];
  const note =
    `Mean of ${withSpaces(ablation.selection_metric)} over the seeds, one scale for all arms; a cross counts the runs that ` +
    "diverged, over the whole cell where none was left. The frame is what the arm chose.";
  const place = createHtml("div", {});
  addPanel("map", `${shortKey(x_key)} × ${shortKey(y_key)}`, note, place);
  addFigure(place, { id: "maps", title: `${withSpaces(ablation.selection_metric)} by arm`, paint: paintArmHeatmaps });
}

/** @param {number} width */
function paintArmHeatmaps(width) {
  const arms = visibleArms().flatMap(({ name, heatmap, selected_hyperparameters: selected }) => (heatmap ? [{ name, heatmap, selected }] : []));
  if (!arms.length) return null;
  const every = ablation.arms.flatMap(({ heatmap }) => heatmap?.cells.flat() ?? []);
  const means = every.map(({ mean }) => mean).filter(isNumber);
  const scale = means.length ? meanColorScale(means) : null;
  const { x: xs, y: ys } = arms[0].heatmap;
  const left = maxLabelWidth(ys) + 30;
  const cell = { wide: Math.max(30, Math.min(64, (width - left - 12) / xs.length)), tall: 32 };
  const across = left + cell.wide * xs.length + 26;
  const columns = Math.max(1, Math.floor((width + 26) / across));
  const down = ys.length * cell.tall + 76;
  /** @type {Node[]} */
  const parts = [];
  /** @type {Stop[]} */
  const stops = [];
  arms.forEach((arm, index) => {
    const [x, y] = [(index % columns) * across + left, Math.floor(index / columns) * down + 30];
    drawArmHeatmap(arm, x, y, cell, scale, parts, stops);
  });
  const rows = Math.ceil(arms.length / columns);
  if (scale) parts.push(...drawScaleBar(scale, left, rows * down + 6, Math.min(260, width - left - 20)));
  /** @param {{ heatmap: ArmHeatmap }} arm */
  const crossed = ({ heatmap }) => heatmap.cells.flat().filter(({ diverged }) => diverged > 0).length;
  const said = arms.map((arm) => `${showInvisible(arm.name)} has diverged runs in ${crossed(arm)} cells`);
  return {
    height: rows * down + 44,
    parts,
    stops,
    description:
      `Maps of ${withSpaces(ablation.selection_metric)} over ${tunedKeys().map(shortKey).join(" and ")}, ` +
      `${xs.length * ys.length} cells each: ${said.join("; ")}.`,
  };
}

/**
 * Where a mean stands between the least and the most of all arms, by its logarithm where they lie far apart.
 * @param {number[]} means
 */
function meanColorScale(means) {
  const [low, high] = [Math.min(...means), Math.max(...means)];
  const logarithmic = low > 0 && high > 8 * low;
  /** @param {number} value */
  const turn = (value) => (logarithmic ? Math.log(value) : value);
  /** @param {number} value */
  const share = (value) => (high > low ? (turn(value) - turn(low)) / (turn(high) - turn(low)) : 0);
  /** @param {number} part */
  const value = (part) => (logarithmic ? low * (high / low) ** part : low + (high - low) * part);
  return { share, value, logarithmic, low, high };
}

// The ramp takes square roots: a share's square runs evenly along it.
/** @param {number} share */
const shareColor = (share) => cssColor(share ** 2);

/**
 * @param {{ name: string, heatmap: ArmHeatmap, selected: Arm["selected_hyperparameters"] }} arm
 * @param {number} left
 * @param {number} top
 * @param {{ wide: number, tall: number }} cell
 * @param {ReturnType<typeof meanColorScale> | null} scale
 * @param {Node[]} parts
 * @param {Stop[]} stops
 */
function drawArmHeatmap({ name, heatmap, selected }, left, top, cell, scale, parts, stops) {
  const { x: xs, y: ys, x_key: xKey, y_key: yKey } = heatmap;
  parts.push(marker(armStyle(name), left + 5, top - 13, 4.2));
  parts.push(svgText(truncate(showInvisible(name), 26), left + 15, top - 9, { class: "facet-name" }));
  /**
   * @param {any} xValue
   * @param {any} yValue
   */
  const isTaken = (xValue, yValue) =>
    Object.values(selected ?? {}).some(
      (values) => isSameValue(ownValue(values, xKey), xValue) && isSameValue(ownValue(values, yKey), yValue),
    );
  ys.forEach((yValue, row) => {
    // The largest value stands at the top, as on any axis.
    const y = top + (ys.length - 1 - row) * cell.tall;
    xs.forEach((xValue, column) => {
      const cellFacts = heatmap.cells[row][column];
      const x = left + column * cell.wide;
      const words = () => heatmapTooltip(name, cellFacts, [xKey, xValue], [yKey, yValue]);
      parts.push(...drawHeatmapCell(cellFacts, x, y, cell, scale));
      stops.push({ x: x + cell.wide / 2, y: y + cell.tall / 2, reach: cell.wide, words });
      const box = { x: x + 1.5, y: y + 1.5, width: cell.wide - 4, height: cell.tall - 4, rx: 2 };
      if (isTaken(xValue, yValue)) parts.push(createSvg("rect", { class: "taken", ...box }));
    });
  });
  parts.push(...drawHeatmapAxes(heatmap, left, top, cell));
}

/**
 * @param {ArmHeatmap} heatmap
 * @param {number} left
 * @param {number} top
 * @param {{ wide: number, tall: number }} cell
 */
function drawHeatmapAxes({ x: xs, y: ys, x_key: xKey, y_key: yKey }, left, top, cell) {
  const [middle, end] = [{ "text-anchor": "middle" }, { "text-anchor": "end" }];
  const bottom = top + ys.length * cell.tall;
  const rows = ys.map((value, row) =>
    svgText(formatTunedValue(value), left - 7, bottom - (row + 0.5) * cell.tall + 4, { class: "tick", ...end }),
  );
  const columns = xs.map((value, column) =>
    svgText(formatTunedValue(value), left + (column + 0.5) * cell.wide, bottom + 14, { class: "tick", ...middle }),
  );
  const after = { class: "axis-name", ...end };
  const xName = svgText(shortKey(xKey), left + xs.length * cell.wide, bottom + 29, after);
  return [
    ...rows,
    ...columns,
    xName,
    verticalAxisName(shortKey(yKey), left - maxLabelWidth(ys) - 16, (top + bottom) / 2),
  ];
}

/** @param {any[]} values */
const maxLabelWidth = (values) => Math.ceil(Math.max(...values.map((value) => labelWidth(formatTunedValue(value)))));

/**
 * A mean in its color and in figures; the runs that diverged crossed out, or counted beside those that did not.
 * @param {HeatmapCell} cell
 * @param {number} x
 * @param {number} y
 * @param {{ wide: number, tall: number }} options
 * @param {ReturnType<typeof meanColorScale> | null} scale
 */
function drawHeatmapCell({ mean, diverged }, x, y, { wide, tall }, scale) {
  const [width, height] = [wide - 1, tall - 1];
  const share = isNumber(mean) && scale ? scale.share(mean) : null;
  const ground = share === null ? { class: "no-value" } : { fill: shareColor(share) };
  /** @type {Node[]} */
  const parts = [createSvg("rect", { ...ground, x, y, width, height, rx: 2 })];
  const ink = share !== null && share > 0.5 ? "ink light" : "ink";
  const words = share !== null && wide >= 34 ? withMinusSign(formatCompact(Number(mean.toPrecision(3)))) : "";
  const attributes = { class: `cell-value ${ink}`, "text-anchor": "middle" };
  if (words) parts.push(svgText(words, x + width / 2, y + tall / 2 + (diverged > 0 ? -2 : 4), attributes));
  if (!(diverged > 0)) return parts;
  const [right, foot] = [x + width - 5, y + height - 5];
  const d =
    share === null
      ? `M${x + 5} ${y + 5}L${right} ${foot}M${x + 5} ${foot}L${right} ${y + 5}`
      : `M${x + width / 2 - 8} ${foot - 7}l6 6m0 -6l-6 6`;
  parts.push(createSvg("path", { class: `cell-cross ${ink}`, d }));
  if (share !== null) parts.push(svgText(diverged, x + width / 2 + 1, foot, { class: `cell-count ${ink}` }));
  return parts;
}

/**
 * @param {string} name
 * @param {HeatmapCell} cell
 * @param {...[string, any]} hyperparameters
 */
const heatmapTooltip = (name, { mean, diverged, n }, ...hyperparameters) => [
  tooltipTitle(hyperparameters.map(([key, value]) => `${shortKey(key)} ${formatTunedValue(value)}`).join(", ")),
  armTooltipRow(name, isNumber(mean) ? formatOrDash(mean) : "no value", seedCountText(diverged, n)),
];

/**
 * The scale of all maps, and which of its ends is the better one.
 * @param {ReturnType<typeof meanColorScale>} scale
 * @param {number} left
 * @param {number} top
 * @param {number} width
 */
function drawScaleBar(scale, left, top, width) {
  /** @type {[number, string][]} */
  const marks = tickLabels([0, 0.5, 1].map(scale.value)).map(([, words], at) => [at / 2, words]);
  const ends = [lowerIsBetter ? "← better" : "", lowerIsBetter ? "" : "better →"];
  if (scale.logarithmic) ends[lowerIsBetter ? 1 : 0] = "log scale";
  const names = ends.map((words, at) =>
    svgText(words || " ", left + width * at, top + 35, { class: "axis-name", "text-anchor": at ? "end" : "start" }),
  );
  return [...colorBarParts(left, top, width, shareColor, marks), ...names.filter((_, at) => ends[at])];
}
