// Curves of the metrics over the steps: one figure a metric, all its splits in it, the maps' step marked.

import { byId, createHtml, find, ownValue } from "../../../pages/dom.js";
import { redrawFigure } from "../../../pages/figure.js";
import { formatNumber, showInvisible, truncate, withSpaces } from "../../../pages/formatting.js";
import { addLineChart } from "../../../pages/line_chart.js";
import { legendKey, MARKER_SHAPES } from "../../../pages/markers_and_legends.js";
import { linearScale } from "../../../pages/scales.js";
import { data } from "./page_data.js";

/** @import { Figure } from "../../../pages/types.js" */

/** @type {Figure[]} */
export const metricCharts = [];

/**
 * Add the figures of all metrics; `jump(step)` is called where a step of one is picked.
 * @param {(step: number) => void} jump
 */
export function addMetricCurves(jump) {
  const names = orderedMetrics(); // those of the other run that this one has not are left out
  /** @param {string} name */
  const family = (name) =>
    names.find((other) => other !== name && /^[_/]/.test(name.slice(other.length)) && name.startsWith(other));
  /** @param {string} name */
  const isOnce = (name) => Object.values(data.curves[name]).every((points) => points.length === 1);
  const once = names.filter((name) => isOnce(name) && !family(name));
  const main = names.filter((name) => !family(name) && !isRarelyNeeded(name) && !once.includes(name));
  const parts = names.filter((name) => !main.includes(name) && !once.includes(name));
  showSingleValues(once);
  for (const name of main) addMetricCurve(byId("curves"), name, jump);
  const more = byId("more-curves");
  more.hidden = !parts.length;
  const said = parts.map((name) => name.replaceAll("_", " ")).join(", ");
  find(more, "summary").textContent = `${parts.length} more: ${truncate(showInvisible(said), 120)}`;
  for (const name of parts) addMetricCurve(find(more, ".curves"), name, jump);
  showMeanings(names);
  more.addEventListener("toggle", () => metricCharts.slice(-parts.length).forEach((figure) => redrawFigure(figure)));
}

/**
 * Whether few look at a metric: how fast a run was, and skipped updates where none was skipped.
 * @param {string} name
 */
function isRarelyNeeded(name) {
  if (name === "skipped_updates")
    return Object.values(data.curves[name]).every((points) => points.every(([, value]) => value === 0));
  return ["flops_per_step", "batch_wait", "steps_per_second", "mfu"].includes(name);
}

/**
 * What was measured at one step alone is a figure, not a curve.
 * @param {string[]} names
 */
function showSingleValues(names) {
  const items = names.flatMap((name) =>
    Object.entries(data.curves[name]).map(([split, [[step, value]]]) => {
      const words = `${name.replaceAll("_", " ")}, ${split}, step ${formatNumber(step)}`;
      return createHtml("div", {}, createHtml("dt", {}, words), createHtml("dd", {}, formatNumber(value)));
    }),
  );
  byId("once").replaceChildren(...items);
}

/**
 * What the metrics mean and their units; those of a task of one's own have no definition.
 * @param {string[]} names
 */
function showMeanings(names) {
  const defined = names.filter((name) => ownValue(data.metricMeanings, name));
  byId("metric-meanings").hidden = !defined.length;
  const items = defined.map((name) =>
    createHtml(
      "div",
      {},
      createHtml("dt", {}, name.replaceAll("_", " ")),
      createHtml("dd", {}, data.metricMeanings[name]),
    ),
  );
  find(byId("metric-meanings"), "dl").replaceChildren(...items);
}

/** The loss first, then what is measured on held-out data, then what is known of training alone. */
function orderedMetrics() {
  /** @param {string} name */
  const rank = (name) =>
    name === "loss" ? 0 : Object.keys(data.curves[name]).some((split) => split !== "train") ? 1 : 2;
  return Object.keys(data.curves).sort((a, b) => rank(a) - rank(b));
}

/** The last step of any metric: all figures end at it. */
const lastStep = () =>
  Math.max(
    1,
    ...[data.curves, data.otherRun?.curves ?? {}]
      .flatMap(Object.values)
      .flatMap((each) => Object.values(each).map((points) => points[points.length - 1][0])),
  );

/**
 * @param {HTMLElement} place
 * @param {string} name
 * @param {(step: number) => void} jump
 */
function addMetricCurve(place, name, jump) {
  const splits = Object.keys(data.curves[name]).sort((a, b) => Number(b === "train") - Number(a === "train"));
  const held = splits.filter((split) => split !== "train");
  /**
   * @param {Record<string, [number, number][]>} curves
   * @param {string} ink
   * @param {(split: string) => string} words
   */
  const seriesOf = (curves, ink, words) =>
    splits
      .filter((split) => ownValue(curves, split))
      .map((split) => ({
        name: words(split),
        look: splitStyle(held.indexOf(split), ink),
        points: curves[split].map(([x, middle]) => ({ x, middle })),
      }));
  const theirs = ownValue(data.otherRun?.curves, name) ?? {};
  const series = [
    ...seriesOf(data.curves[name], "", (split) => split),
    ...seriesOf(theirs, "other-run", (split) => `${split} of ${showInvisible(data.otherRun?.title ?? "")}`),
  ];
  const legend = series.map(({ name: split, look, points }) =>
    createHtml(
      "span",
      { class: "entry" },
      legendKey(look),
      split,
      createHtml("b", {}, formatNumber(points[points.length - 1].middle)),
    ),
  );
  const last = lastStep();
  const figure = addLineChart(place, {
    id: `curve-${metricCharts.length}`,
    title: withSpaces(name),
    legend,
    height: 186,
    nearest: true,
    act: jump,
    tell: (step) => `step ${formatNumber(step)}`,
    look: () => ({
      series,
      xScale: () => linearScale([0, last], 4, { tight: true }),
      xName: "step",
      said: withSpaces(name),
    }),
  });
  figure.file = withSpaces(name);
  figure.legend = series.map((each) => [each.look, each.name]);
  metricCharts.push(figure);
}

/**
 * Splits differ by dash and marker too, so that a figure reads without color; another run by its ink.
 * @param {number} held
 * @param {string} ink
 */
function splitStyle(held, ink) {
  if (held < 0) return { ink: `train ${ink}`, shape: null };
  return { ink: `${ink || "held"} dash-${held % MARKER_SHAPES.length}`, shape: held % MARKER_SHAPES.length };
}
