// The trials of a sweep: their colors by how good they are, the one that is read, and their table. `sweep` is what
// transformer/studies/sweeps/sweep_page_data.py describes; the trials come best first.

import { cssColor } from "../../pages/color_scale.js";
import { createHtml, createSvg, exportDefaults, ownValue } from "../../pages/dom.js";
import { formatOrDash, isNumber, showInvisible, withSpaces } from "../../pages/formatting.js";
import { tooltipTitle } from "../../pages/markers_and_legends.js";
import { sweep } from "./page_data.js";
import {
  addPanel,
  COMMANDS_NOTE,
  createCopyButton,
  createTable,
  formatTunedValue,
  lowerIsBetter,
  shortKey,
  small,
  tunedKeys,
  valueNode,
} from "./panels_and_tables.js";

/** @import { TableColumn, Trial } from "./types.js" */

Object.assign(exportDefaults, { name: sweep.name, words: showInvisible(sweep.name), legend: () => [] });

const rankedTrials = sweep.trials.filter(
  ({ value, state }) => isNumber(value) && state !== "diverged" && state !== "failed",
);
export const metricValues = rankedTrials.map(({ value }) => value);
/** @type {number[]} The best first. */
const valueOrder = [...metricValues].sort((a, b) => (lowerIsBetter ? a - b : b - a));
const numBetterThanWorst = valueOrder.indexOf(valueOrder[valueOrder.length - 1]);
/** The rank of each trial, from 0 of the best to 1 of the worst: trials that tie share one, and so one color. */
export const trialRanks = new Map(
  rankedTrials.map(({ name, value }) => [name, valueOrder.indexOf(value) / Math.max(1, numBetterThanWorst)]),
);
/** The trials that have the best value. */
export const bestTrials = rankedTrials.filter(({ value }) => value === valueOrder[0]);
/** @type {string | null} The name of the trial that is read. */
let selectedTrial = null;

/**
 * The strength of a trial's color: the best in the strongest, what has no value in none.
 * @param {Trial} trial
 */
const trialColor = ({ name }) =>
  trialRanks.has(name) ? cssColor((1 - 0.7 * (trialRanks.get(name) ?? 0)) ** 2) : null;

/** @param {string | null} name */
export const findTrial = (name) => sweep.trials.find((trial) => trial.name === name);

/**
 * A line of a trial through some places, thick where it is read or the best.
 * @param {Trial} trial
 * @param {[number, number][]} places
 */
function trialLine(trial, places) {
  const ranked = trialRanks.has(trial.name) ? "ranked" : "unranked";
  const kind = `trial ${ranked} ${showInvisible(trial.state)}${bestTrials.includes(trial) ? " best" : ""}`;
  const d = `M${places.map((place) => place.map((part) => part.toFixed(1)).join(" ")).join("L")}`;
  return createSvg("path", { class: kind, d, "data-trial": trial.name, stroke: trialColor(trial) });
}

/**
 * The lines of trials and the stops at their places, read from `reach` pixels on: `placesOf(trial)` is [[x, y], ...].
 * The best are drawn last, above the others, and read first.
 * @param {Trial[]} trials
 * @param {number} reach
 * @param {(trial: Trial) => [number, number][]} placesOf
 */
export function trialLines(trials, reach, placesOf) {
  const drawn = trials.map((trial) => ({ trial, places: placesOf(trial) })).filter(({ places }) => places.length > 1);
  return {
    lines: drawn.map(({ trial, places }) => trialLine(trial, places)).reverse(),
    stops: drawn.flatMap(({ trial, places }) =>
      places.map(([x, y]) => ({ x, y, reach, words: () => trialTooltip(trial) })),
    ),
  };
}

/**
 * Mark a trial everywhere.
 * @param {string | null} name
 */
function selectTrial(name) {
  if (selectedTrial === name) return;
  selectedTrial = name;
  for (const element of document.querySelectorAll("[data-trial]"))
    element.classList.toggle("read", element.getAttribute("data-trial") === name);
}

/**
 * What a tip says of a trial.
 * @param {Trial} trial
 */
function trialTooltip(trial) {
  selectTrial(trial.name);
  const said = tunedKeys().map((key) =>
    createHtml("div", {}, `${shortKey(key)} ${formatTunedValue(ownValue(trial.overrides, key))}`),
  );
  const value = createHtml("b", {}, isNumber(trial.value) ? formatOrDash(trial.value) : "no value");
  const step = `${trial.state}, step ${formatOrDash(trial.step)} of ${formatOrDash(trial.steps)}`;
  return [tooltipTitle(step), createHtml("div", {}, `${withSpaces(sweep.metric)} `, value), ...said];
}

export function showTrials() {
  /** @type {TableColumn[]} */
  const columns = [
    {
      head: "trial",
      cell: (trial) => createHtml("code", { "data-trial": trial.name }, showInvisible(trial.name.slice(0, 8))),
    },
    {
      head: "state",
      cell: ({ state }) => createHtml("span", { class: `state ${showInvisible(state)}` }, showInvisible(state)),
    },
    { head: withSpaces(sweep.metric), cell: ({ value }) => valueNode(value, formatOrDash(value)) },
    { head: "step", cell: ({ step, steps }) => `${formatOrDash(step)} of ${formatOrDash(steps)}` },
    ...tunedKeys().map((key) => ({
      head: shortKey(key),
      cell: (/** @type {Trial} */ { overrides }) => formatTunedValue(ownValue(overrides, key)),
    })),
    {
      head: "commands",
      cell: ({ command, message }) => [
        ...(command ? [createCopyButton(command, "copy: train it again")] : []),
        ...(message ? [small(showInvisible(message))] : []),
      ],
    },
  ];
  const table = createTable("Trials", columns, sweep.trials, { id: "trials-table", class: "figures cards" });
  const scroll = createHtml(
    "div",
    { class: "scroll long", tabindex: 0, role: "region", "aria-label": "Every trial" },
    table,
  );
  addPanel("trials", "Every trial", `Best first. ${COMMANDS_NOTE}`, scroll);
}
