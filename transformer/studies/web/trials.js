// The trials of a sweep: their colors by how good they are, the one that is read, and their table. `data` is what
// transformer/studies/sweeps/results.py describes; the trials come best first.

import { css } from "../../pages/color_scale.js";
import { draw, make, own, page } from "../../pages/dom.js";
import { brief, isNumber, spaced, visible } from "../../pages/formatting.js";
import { tipHead } from "../../pages/plot_marks.js";
import { data } from "./page_data.js";
import {
  addPanel, COMMANDS_RUN_FROM, copyButton, exact, lowerIsBetter, makeTable, shortKey, small, tunedKeys, tunedWords,
} from "./panels_and_tables.js";

Object.assign(page, { name: data.name, words: visible(data.name), legend: () => [] });

const measured = data.trials.filter(({ value, state }) => isNumber(value) && state !== "diverged" && state !== "failed");
export const ofMetric = measured.map(({ value }) => value);
export const rankOf = new Map(
  [...measured]
    .sort((a, b) => (lowerIsBetter ? a.value - b.value : b.value - a.value))
    .map(({ name }, index, all) => [name, all.length > 1 ? index / (all.length - 1) : 0]),
);
let read = null; // the name of the trial that is read

/** The strength of a trial's color: the best in the strongest, what has no value in none. */
const strokeOf = ({ name }) => (rankOf.has(name) ? css((1 - 0.85 * rankOf.get(name)) ** 2) : null);

export const trialNamed = (name) => data.trials.find((trial) => trial.name === name);

/** A line of a trial through some places, thick where it is read or the best. */
function trialLine(trial, places) {
  const ranked = rankOf.has(trial.name) ? "ranked" : "unranked";
  const kind = `trial ${ranked} ${visible(trial.state)}${trial.name === data.best ? " best" : ""}`;
  const d = `M${places.map((place) => place.map((part) => part.toFixed(1)).join(" ")).join("L")}`;
  return draw("path", { class: kind, d, "data-trial": trial.name, stroke: strokeOf(trial) });
}

/**
 * The lines of trials and the stops at their places, read from `reach` pixels on: `placesOf(trial)` is [[x, y], ...].
 * The best are drawn last, above the others, and read first.
 */
export function trialLines(trials, reach, placesOf) {
  const drawn = trials.map((trial) => [trial, placesOf(trial)]).filter(([, places]) => places.length > 1);
  return {
    lines: drawn.map(([trial, places]) => trialLine(trial, places)).reverse(),
    stops: drawn.flatMap(([trial, places]) => places.map(([x, y]) => ({ x, y, reach, words: () => trialWords(trial) }))),
  };
}

/** Mark a trial everywhere. */
function readTrial(name) {
  if (read === name) return;
  read = name;
  for (const element of document.querySelectorAll("[data-trial]"))
    element.classList.toggle("read", element.dataset.trial === name);
}

/** What a tip says of a trial. */
function trialWords(trial) {
  readTrial(trial.name);
  const said = tunedKeys().map((key) => make("div", {}, `${shortKey(key)} ${tunedWords(own(trial.overrides, key))}`));
  const value = make("b", {}, isNumber(trial.value) ? brief(trial.value) : "no value");
  const step = `${trial.state}, step ${brief(trial.step)} of ${brief(trial.steps)}`;
  return [tipHead(step), make("div", {}, `${spaced(data.metric)} `, value), ...said];
}

export function showTrials() {
  const columns = [
    { head: "trial", cell: (trial) => make("code", { "data-trial": trial.name }, visible(trial.name.slice(0, 8))) },
    { head: "state", cell: ({ state }) => make("span", { class: `state ${visible(state)}` }, visible(state)) },
    { head: spaced(data.metric), cell: ({ value }) => exact(value, brief(value)) },
    { head: "step", cell: ({ step, steps }) => `${brief(step)} of ${brief(steps)}` },
    ...tunedKeys().map((key) => ({ head: shortKey(key), cell: ({ overrides }) => tunedWords(own(overrides, key)) })),
    {
      head: "commands",
      cell: ({ command, message }) => [
        ...(command ? [copyButton(command, "copy: train it again")] : []),
        ...(message ? [small(visible(message))] : []),
      ],
    },
  ];
  const table = makeTable("Trials", columns, data.trials, { id: "trials-table", class: "figures cards" });
  const scroll = make("div", { class: "scroll long", tabindex: 0, role: "region", "aria-label": "Every trial" }, table);
  addPanel("trials", "Every trial", `Best first. ${COMMANDS_RUN_FROM}`, scroll);
}
