// The tuned values: how much an arm depends on each, the map of two of them, and how often it diverged.

import { createHtml, createSvg, ownValue } from "../../pages/dom.js";
import { addFigure } from "../../pages/figure.js";
import {
  formatOrDash,
  formatValue,
  isNumber,
  pluralize,
  showInvisible,
  truncate,
  withSpaces,
} from "../../pages/formatting.js";
import { addLineChart } from "../../pages/line_chart.js";
import { marker, svgText, tooltipTitle } from "../../pages/markers_and_legends.js";
import { isSameValue, linearScale, logScale, PLOT_MARGIN } from "../../pages/scales.js";
import { armSeries, armStyle, armTooltipRow, visibleArms } from "./arms.js";
import { ablation } from "./page_data.js";
import { intervalBar } from "./paired_seeds.js";
import { addPanel, formatPercent, formatTunedValue, shortKey } from "./panels_and_tables.js";

/** @import { Scale, Stop } from "../../pages/types.js" */
/** @import { Arm } from "./types.js" */

export function showSensitivity() {
  const keys = [...new Set(ablation.arms.flatMap((arm) => (arm.sensitivity ?? []).map(({ key }) => key)))];
  const tried = keys.filter((key) => ablation.arms.some((arm) => (findSensitivity(arm, key)?.points.length ?? 0) > 1));
  const place = createHtml("div", { class: tried.length > 1 ? "trio" : "pair" });
  const note =
    tried.length === 0
      ? ""
      : "Mean over the seeds and their band, the other values as chosen; a cross counts the runs that diverged. " +
        "Sensitivity is what is lost against the best value, mean over the values tried, a diverged run counting as " +
        "one that learned nothing (Wortsman et al. 2023).";
  addPanel("sensitivity", tried.length ? "Tuned values and divergence" : "Divergence", note, place);
  for (const [number, key] of tried.entries()) {
    const values = ownValue(ablation.hyperparameter_values, key) ?? [];
    addLineChart(place, {
      id: `sensitivity-${number}`,
      title: `${withSpaces(ablation.selection_metric)} by ${shortKey(key)}`,
      note: sensitivityText(key),
      tell: (value) => `${shortKey(key)} ${formatTunedValue(value)}`,
      look: () => ({
        series: visibleArms().map((arm) => {
          const points = findSensitivity(arm, key)?.points ?? [];
          return armSeries(
            arm.name,
            points.map(({ value, mean, ...more }) => ({ x: value, middle: mean, ...more })),
          );
        }),
        xScale: (tried) => tunedScale(values.length ? values : [...new Set(tried)]),
        xName: shortKey(key),
        yName: withSpaces(ablation.selection_metric),
        logarithmic: "auto",
      }),
    });
  }
  addFigure(place, {
    id: "divergence",
    title: "Runs that diverged",
    note: "of all completed runs of an arm; the bar is the 95% Wilson interval",
    paint: paintDivergence,
  });
}

/**
 * @param {Arm} arm
 * @param {string} key
 */
const findSensitivity = (arm, key) => (arm.sensitivity ?? []).find((each) => each.key === key);

/** @param {string} key */
function sensitivityText(key) {
  const said = ablation.arms.flatMap((arm) => {
    const value = findSensitivity(arm, key)?.sensitivity;
    return isNumber(value) ? [`${truncate(showInvisible(arm.name), 24)} ${formatOrDash(value)}`] : [];
  });
  return said.length ? `sensitivity: ${said.join(", ")}` : "";
}

/** @param {number} width */
function paintDivergence(width) {
  const arms = visibleArms();
  const box = { left: 12, right: width - PLOT_MARGIN.right - 8, top: PLOT_MARGIN.top };
  /** @param {number} share */
  const atX = (share) => box.left + (box.right - box.left) * share;
  /** @type {Node[]} */
  const parts = [];
  /** @type {Stop[]} */
  const stops = [];
  let y = box.top;
  for (const { name, run_counts: runs } of arms) {
    y += 18;
    parts.push(svgText(truncate(showInvisible(name), 30), box.left, y, { class: "facet-name" }));
    parts.push(
      svgText(`${runs.diverged} of ${runs.ended}${runs.failed ? `, ${runs.failed} failed` : ""}`, box.right, y, {
        class: "tick",
        "text-anchor": "end",
      }),
    );
    const middle = y + 13;
    if (runs.interval) {
      parts.push(intervalBar(name, atX(runs.interval[0]), atX(runs.interval[1]), middle));
    }
    if (isNumber(runs.rate)) {
      parts.push(marker(armStyle(name), atX(runs.rate), middle, 4.4));
      const ends = runs.interval ? `${formatPercent(runs.interval[0])} to ${formatPercent(runs.interval[1])}` : "";
      stops.push({
        x: atX(runs.rate),
        y: middle,
        reach: 24,
        words: () => [
          tooltipTitle(`${runs.diverged} of ${pluralize(runs.ended, "run")}`),
          armTooltipRow(name, formatPercent(runs.rate), ends),
        ],
      });
    }
    y += 22;
  }
  const bottom = y + 6;
  const frame = [0, 0.25, 0.5, 0.75, 1].flatMap((share) => [
    createSvg("line", { class: "grid", x1: atX(share), x2: atX(share), y1: box.top, y2: bottom }),
    svgText(`${100 * share}%`, Math.min(atX(share), width - 18), bottom + 15, {
      class: "tick",
      "text-anchor": share ? "middle" : "start",
    }),
  ]);
  const said = arms.map(({ name, run_counts: runs }) => `${showInvisible(name)} ${runs.diverged} of ${runs.ended}`).join("; ");
  return {
    height: bottom + 26,
    parts: [...frame, ...parts],
    stops,
    description: `Runs that diverged: ${said}.`,
  };
}

/**
 * Places side by side for values that are no numbers, or that stand for themselves.
 * @param {any[]} values
 * @returns {Scale}
 */
function categoricalScale(values) {
  /** @param {any} value */
  const share = (value) => (values.findIndex((other) => isSameValue(other, value)) + 0.5) / values.length;
  return { ticks: values.map((value) => [value, truncate(formatValue(value), 14)]), share };
}

/**
 * Whether values that were tried lie evenly by their logarithms rather than by themselves.
 * @param {any[]} values
 */
function isLogSpaced(values) {
  if (values.length < 2 || !values.every((value) => isNumber(value) && value > 0)) return false;
  const sorted = [...values].sort((a, b) => a - b);
  if (sorted.length === 2) return sorted[1] / sorted[0] >= 2;
  /** @param {number[]} places */
  const uneven = (places) => {
    const gaps = places.slice(1).map((place, at) => place - places[at]);
    const mean = gaps.reduce((sum, gap) => sum + gap, 0) / gaps.length;
    return Math.max(...gaps.map((gap) => Math.abs(gap - mean))) / mean;
  };
  return uneven(sorted.map(Math.log)) < uneven(sorted);
}

/**
 * The scale of one tuned key: its very values are the ticks.
 * @param {any[]} values
 * @returns {Scale}
 */
function tunedScale(values) {
  if (!values.every(isNumber)) return categoricalScale(values);
  const scale = isLogSpaced(values) ? logScale(values) : linearScale(values);
  return { ...scale, ticks: values.map((value) => [value, formatTunedValue(value)]) };
}
