// The page of a sweep put together: how far it is, the best trial, what each key matters, and every trial's curve.

import { byId, createHtml, createSvg, ownValue } from "../../pages/dom.js";
import { addFigure, redrawAllFigures } from "../../pages/figure.js";
import { formatOrDash, isNumber, pluralize, showInvisible, truncate, withSpaces } from "../../pages/formatting.js";
import { labelWidth, svgText } from "../../pages/markers_and_legends.js";
import { drawAxes, linearScale, logScale, needsLogScale, PLOT_MARGIN, verticalAxisWidth } from "../../pages/scales.js";
import { sweep } from "./page_data.js";
import {
  addPanel,
  commandNode,
  formatPercent,
  formatTunedValue,
  lowerIsBetter,
  mapsCommand,
  openPage,
  shortKey,
  tunedKeys,
  valueNode,
} from "./panels_and_tables.js";
import { showParallelCoordinates } from "./parallel_coordinates.js";
import { bestTrials, findTrial, showTrials, trialLines } from "./trials.js";

function showHeader() {
  byId("question").textContent = showInvisible(sweep.name);
  byId("state").textContent = sweep.state === "done" ? "" : `· ${sweep.state}`;
  const left = isNumber(sweep.seconds_left) ? [`about ${formatDuration(sweep.seconds_left)} left`] : [];
  const said = [
    sweep.counts,
    ...left,
    `by ${withSpaces(sweep.metric)}, ${lowerIsBetter ? "lower" : "higher"} is better`,
  ];
  byId("facts").replaceChildren(...said.map((words) => createHtml("span", {}, words)));
  if (sweep.state === "stopped") byId("best").before(createHtml("section", { id: "goes-on" }, ...runningNote()));
}

const runningNote = () => [
  createHtml("p", { class: "notice" }, "This sweep was stopped before all trials ended. To resume it, run:"),
  commandNode(sweep.command),
];

/**
 * Seconds as a person says them.
 * @param {number} seconds
 */
function formatDuration(seconds) {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} seconds`;
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} minutes`;
  return `${Number((seconds / 3600).toPrecision(2))} hours`;
}

function showBest() {
  const best = findTrial(sweep.best);
  if (!best) {
    byId("best-trial").append(createHtml("p", { class: "note" }, "No trial is done yet."));
    return;
  }
  const values = tunedKeys().map((key) => `${shortKey(key)} ${formatTunedValue(ownValue(best.overrides, key))}`);
  const value = createHtml("b", {}, valueNode(best.value, formatOrDash(best.value)));
  const settings = values.join(", ");
  const tied = bestTrials.length > 1;
  const lines = [
    createHtml(
      "p",
      { class: "answer" },
      `${withSpaces(sweep.metric)} `,
      value,
      tied ? `: ${pluralize(bestTrials.length, "trial")} tie` : settings && ` with ${settings}`,
    ),
  ];
  if (tied)
    lines.push(
      createHtml("p", { class: "note" }, `The commands are those of one of them${settings && `, with ${settings}`}.`),
    );
  if (best.command) lines.push(commandNode(best.command));
  if (best.directory) lines.push(commandNode(mapsCommand(best.directory, best.trust)));
  byId("best-trial").append(...lines);
}

function showImportance() {
  const known = tunedKeys().filter((key) => isNumber(ownValue(sweep.importance, key)));
  if (!known.length) return;
  const note =
    "The fraction of the variance between trials that a hyperparameter explains by itself, adjusted for chance: one-way analysis of " +
    "variance on the metric's ranks. Interactions between hyperparameters are not included.";
  const place = createHtml("div", {});
  addPanel("importance", "Parameter importance", note, place);
  addFigure(place, { id: "importances", title: "Importance", paint: (width) => paintImportance(width, known) });
}

/**
 * @param {number} width
 * @param {string[]} keys
 */
function paintImportance(width, keys) {
  const order = [...keys].sort((a, b) => sweep.importance[b] - sweep.importance[a]);
  const gutter = Math.min(width * 0.4, 12 + Math.max(...order.map((key) => labelWidth(shortKey(key)))));
  const [row, most] = [24, width - gutter - 60];
  const parts = order.flatMap((key, index) => {
    const [y, share] = [10 + index * row, sweep.importance[key]];
    return [
      svgText(truncate(shortKey(key), Math.floor(gutter / 6.6)), gutter - 8, y + 12, {
        class: "tick",
        "text-anchor": "end",
      }),
      createSvg("rect", { class: "bar", x: gutter, y, width: Math.max(1, most * share), height: 15 }),
      svgText(formatPercent(share), gutter + most * share + 8, y + 12, { class: "tick" }),
    ];
  });
  const said = order.map((key) => `${shortKey(key)} ${formatPercent(sweep.importance[key])}`).join("; ");
  return { height: 20 + order.length * row, parts, description: `Fraction of the variance between trials: ${said}.` };
}

function showTrialCurves() {
  if (!sweep.trials.some(({ curve }) => curve.length > 1)) return;
  const note = "Every trial that has reported more than once, in the colors of above.";
  const place = createHtml("div", {});
  addPanel("curves", `${withSpaces(sweep.metric)} over training`, note, place);
  addFigure(place, { id: "curve", title: withSpaces(sweep.metric), paint: paintTrialCurves });
}

/** @param {number} width */
function paintTrialCurves(width) {
  const drawn = sweep.trials.filter(({ curve }) => curve.length > 1);
  const points = drawn.flatMap(({ curve }) => curve);
  const values = points.map(([, value]) => value);
  const y = needsLogScale(values, 10) ? logScale(values) : linearScale(values, 5);
  const x = linearScale([0, ...points.map(([step]) => step)], 5, { tight: true });
  const box = {
    left: verticalAxisWidth(y.ticks),
    right: width - PLOT_MARGIN.right,
    top: PLOT_MARGIN.top,
    bottom: PLOT_MARGIN.top + 300,
  };
  const frame = drawAxes(box, x, y, ["step", withSpaces(sweep.metric)]);
  const { lines, stops } = trialLines(drawn, 14, ({ curve }) =>
    curve.map(([step, value]) => [frame.atX(step), frame.atY(value)]),
  );
  return {
    height: box.bottom + PLOT_MARGIN.bottom,
    parts: [...frame.parts, ...lines],
    stops,
    description: `${withSpaces(sweep.metric)} over training, of ${pluralize(drawn.length, "trial")}.`,
  };
}

function showSweep() {
  showHeader();
  showBest();
  showParallelCoordinates();
  showImportance();
  showTrialCurves();
  showTrials();
  if (sweep.state !== "stopped")
    addPanel("again", "Run the sweep again", "Runs the trials that are missing.", commandNode(sweep.command));
  redrawAllFigures();
}

openPage(showSweep);
