// What each head is worth: the loss without it, beside its map, and figures of pruning and of importance.

import { byId, createHtml } from "../../../pages/dom.js";
import { formatNumber, formatOrDash, pluralize, withMinusSign } from "../../../pages/formatting.js";
import { addLineChart } from "../../../pages/line_chart.js";
import { legendKey } from "../../../pages/markers_and_legends.js";
import { linearScale } from "../../../pages/scales.js";
import { data } from "./page_data.js";

/** @import { Series } from "../../../pages/types.js" */
/** @import { AblatedCheckpoint, LossDifference, ViewState } from "./types.js" */

const ORDER_WORDS = { importance: "least important first", knock_out: "least costly first", random: "random orders" };

/**
 * The ablated checkpoint that is nearest to a step.
 * @param {number} step
 */
const nearestCheckpoint = (step) =>
  data.headAblation?.checkpoints.reduce((best, each) =>
    Math.abs(each.step - step) < Math.abs(best.step - step) ? each : best,
  );

/**
 * A loss difference with its sign and interval.
 * @param {LossDifference} difference
 */
function differenceText([value, low, high]) {
  /** @param {number} number */
  const signed = (number) => (number > 0 ? "+" : "") + withMinusSign(formatNumber(number));
  return low === null || high === null ? signed(value) : `${signed(value)} (${signed(low)} to ${signed(high)})`;
}

/**
 * Say of the chosen head what the loss is without it.
 * @param {ViewState} state
 */
export function showKnockOut(state) {
  const place = byId("knock-out");
  const checkpoint = nearestCheckpoint(data.steps[state.step]);
  const head = checkpoint?.heads.find(
    ([site, layer, number]) => site === state.site && layer === state.layer && number === state.head,
  );
  place.hidden = !head;
  if (!checkpoint || !head) return;
  const [, , , zero, mean, importance] = head;
  place.replaceChildren(
    "Without this head the loss changes by ",
    createHtml("b", {}, differenceText(zero)),
    `; with its mean output, by ${differenceText(mean)}. Importance ${formatNumber(importance)}. ` +
      `Step ${formatNumber(checkpoint.step)}, ${data.headAblation?.split}.`,
  );
}

/** Add the panel of what the heads are worth together, if the run has its record. */
export function addHeadAblation() {
  const ablation = data.headAblation;
  if (!ablation) return;
  byId("head-ablation-panel").hidden = false;
  const last = ablation.checkpoints[ablation.checkpoints.length - 1];
  byId("head-ablation-note").textContent =
    `Heads are set to zero on ${ablation.split}, ${pluralize(last.units, ablation.unit.replace(/(e?)s$/, "$1"))}. ` +
    `At step ${formatNumber(last.step)} the loss is ${formatNumber(last.loss)}, and Spearman's rank correlation of ` +
    `importance by gradients with the loss difference of each head is ${formatOrDash(last.correlations[0])} ` +
    `(${formatOrDash(last.correlations[1])} where a head's mean replaces its output).`;
  addPruningFigure();
  if (ablation.checkpoints.length > 1) addCorrelationFigure(ablation.checkpoints);
}

function addPruningFigure() {
  const pruning = data.headAblation?.pruning;
  if (!pruning) return;
  const byOrder = Map.groupBy(pruning.curves, ([order]) => order);
  const series = [...byOrder].map(([order, curves], at) => {
    const losses = curves.map(([, values]) => values);
    const points = losses[0].map((_, x) => {
      const values = losses.map((each) => each[x]);
      const middle = values.reduce((sum, value) => sum + value, 0) / values.length;
      const band = values.length > 1 ? { low: Math.min(...values), high: Math.max(...values) } : {};
      return { x, middle, ...band };
    });
    const look = { ink: order === "random" ? "train" : `held dash-${at}`, shape: order === "random" ? null : at };
    return { name: ORDER_WORDS[order], look, points };
  });
  addFigureOf(series, {
    id: "pruning",
    title: "Heads removed one after the other",
    note: `Set to zero at step ${formatNumber(pruning.step)}; the band is from the best to the worst random order.`,
    xName: "heads removed",
    yName: "loss",
    range: [],
  });
}

/** @param {AblatedCheckpoint[]} checkpoints */
function addCorrelationFigure(checkpoints) {
  const series = ["set to zero", "replaced by its mean"].map((name, at) => ({
    name,
    look: { ink: `held dash-${at}`, shape: at },
    points: checkpoints.map(({ step, correlations }) => ({ x: step, middle: correlations[at] })),
  }));
  addFigureOf(series, {
    id: "importance-correlation",
    title: "Importance and knock-out over training",
    note: "Spearman's rank correlation over the heads.",
    xName: "step",
    yName: "rank correlation",
    range: [-1, 1],
  });
}

/**
 * @param {Series[]} series
 * @param {{ id: string, title: string, note: string, xName: string, yName: string, range: number[] }} options
 */
function addFigureOf(series, { id, title, note, xName, yName, range }) {
  const legend = series.map(({ name, look }) => createHtml("span", { class: "entry" }, legendKey(look), name));
  const figure = addLineChart(byId("head-ablation"), {
    id,
    title,
    note,
    legend,
    height: 210,
    look: () => ({
      series,
      xScale: (/** @type {number[]} */ values) => linearScale(values, 5, { tight: true }),
      xName,
      yName,
      range,
    }),
  });
  figure.legend = series.map(({ look, name }) => [look, name]);
}
