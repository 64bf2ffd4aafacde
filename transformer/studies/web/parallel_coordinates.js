// Parallel coordinates (Inselberg 1985): an upright axis a key and one for the metric, a line a trial. An axis is
// { name, ticks: [[share of its height, words]], at(trial): the trial's share, or null }.

import { createHtml, createSvg, ownValue } from "../../pages/dom.js";
import { addFigure } from "../../pages/figure.js";
import { isNumber, pluralize, truncate, withSpaces } from "../../pages/formatting.js";
import { labelWidth, svgText } from "../../pages/markers_and_legends.js";
import { isSameValue, linearScale, logScale, needsLogScale } from "../../pages/scales.js";
import { sweep } from "./page_data.js";
import { addPanel, formatTunedValue, shortKey, tunedKeys } from "./panels_and_tables.js";
import { metricValues, trialLines, trialRanks } from "./trials.js";

/** @import { Scale } from "../../pages/types.js" */
/** @import { ParallelAxis, Trial } from "./types.js" */

export function showParallelCoordinates() {
  if (!tunedKeys().length) return;
  const note =
    "Each line is a trial: it crosses each axis at its value of that hyperparameter and ends at its metric. The " +
    "stronger the color, the better the trial; the best are thick.";
  const place = createHtml("div", {});
  addPanel("parallel", "Hyperparameters and results", note, place);
  addFigure(place, { id: "coordinates", title: "Parallel coordinates", paint: paintParallelCoordinates });
}

/**
 * An axis of a scale, on which a trial has a number or nothing.
 * @param {string} name
 * @param {Scale} scale
 * @param {(trial: Trial) => any} valueOf
 * @returns {ParallelAxis}
 */
const numberAxis = (name, scale, valueOf) => ({
  name,
  ticks: scale.ticks.map(([value, words]) => [scale.share(value), words]),
  at: (trial) => (isNumber(valueOf(trial)) ? scale.share(valueOf(trial)) : null),
});

/**
 * The axis of a key: numbers by size, everything else in the order of its values.
 * @param {string} key
 * @returns {ParallelAxis}
 */
function keyAxis(key) {
  /** @type {any[]} */
  const values = ownValue(sweep.hyperparameter_values, key) ?? [];
  /** @param {Trial} trial */
  const valueOf = (trial) => ownValue(trial.overrides, key);
  if (values.every(isNumber)) {
    const scale = needsLogScale(values, 20) ? logScale(values) : linearScale(values, 4);
    return numberAxis(shortKey(key), scale, valueOf);
  }
  /** @param {number} index */
  const share = (index) => index / (values.length - 1);
  return {
    name: shortKey(key),
    ticks: values.map((value, index) => [share(index), truncate(formatTunedValue(value), 14)]),
    at: (trial) => share(values.findIndex((value) => isSameValue(value, valueOf(trial)))),
  };
}

function metricAxis() {
  const scale = needsLogScale(metricValues) ? logScale(metricValues) : linearScale(metricValues, 5);
  return numberAxis(withSpaces(sweep.metric), scale, ({ name, value }) => (trialRanks.has(name) ? value : null));
}

/** @param {number} width */
function paintParallelCoordinates(width) {
  const axes = [...tunedKeys().map(keyAxis), ...(metricValues.length ? [metricAxis()] : [])];
  // The words of an axis stand on its left, those of the last on its right, where no line is.
  const words = Math.max(12, ...axes[0].ticks.map(([, text]) => labelWidth(text)));
  const lastWords = Math.max(...(axes.at(-1)?.ticks ?? []).map(([, text]) => labelWidth(text)));
  const [left, right] = [Math.min(words, 0.3 * width) + 12, width - Math.min(lastWords, 0.2 * width) - 12];
  const [top, tall] = [34, 260];
  const between = (right - left) / Math.max(1, axes.length - 1);
  /**
   * @param {number} index
   * @param {number} share
   * @returns {[number, number]}
   */
  const at = (index, share) => [left + between * index, top + tall * (1 - share)];
  const { lines, stops } = trialLines(sweep.trials, 12, (trial) =>
    axes.flatMap((axis, index) => {
      const share = axis.at(trial);
      return share === null ? [] : [at(index, share)];
    }),
  );
  return {
    height: top + tall + 16,
    parts: [...lines, ...axes.flatMap((axis, index) => axisParts(axis, index))],
    stops,
    description:
      `Parallel coordinates of ${pluralize(sweep.trials.length, "trial")} over ${tunedKeys().map(shortKey).join(", ")} ` +
      `and ${withSpaces(sweep.metric)}.`,
  };

  /**
   * @param {ParallelAxis} axis
   * @param {number} index
   */
  function axisParts({ name, ticks }, index) {
    const [x] = at(index, 0);
    const last = index === axes.length - 1;
    const anchor = index === 0 ? "start" : last ? "end" : "middle";
    const room = Math.max(6, Math.floor(between / 6.6));
    return [
      createSvg("line", { class: "axis", x1: x, x2: x, y1: top, y2: top + tall }),
      svgText(truncate(name, room), index === 0 ? 0 : last ? width : x, 14, {
        class: "axis-name",
        "text-anchor": anchor,
      }),
      ...ticks.flatMap(([share, text]) => tickParts(text, x, at(index, share)[1], index > 0, index > 0 && last)),
    ];
  }
}

/**
 * The words at a tick; where lines may run through them, on a ground that covers the lines.
 * @param {string} text
 * @param {number} x
 * @param {number} y
 * @param {boolean} covers
 * @param {boolean} onRight
 */
function tickParts(text, x, y, covers, onRight) {
  if (onRight) return [svgText(text, x + 6, y + 3.5, { class: "tick" })];
  const words = svgText(text, x - 6, y + 3.5, { class: "tick", "text-anchor": "end" });
  const wide = labelWidth(text) + 6;
  const ground = createSvg("rect", { class: "label-ground", x: x - 3 - wide, y: y - 7, width: wide, height: 14, rx: 3 });
  return covers ? [ground, words] : [words];
}
