// The page of a sweep put together: how far it is, the best trial, what each key matters, and every trial's curve.

import { byId, draw, make, own } from "../../pages/dom.js";
import { addFigure, redrawAll } from "../../pages/figure.js";
import { brief, counted, isNumber, shorten, spaced, visible } from "../../pages/formatting.js";
import { label, widthOf } from "../../pages/plot_marks.js";
import { frameOf, linearScale, logScale, PLOT, roomFor, worthLog } from "../../pages/scales.js";
import { data } from "./page_data.js";
import {
  addPanel, commandLine, exact, mapsCommand, openPage, percent, shortKey, tunedKeys, tunedWords,
} from "./panels_and_tables.js";
import { showParallel } from "./parallel_coordinates.js";
import { showTrials, trialLines, trialNamed } from "./trials.js";

function showHead() {
  byId("question").textContent = visible(data.name);
  byId("state").textContent = data.state === "done" ? "" : `· ${data.state}`;
  const left = isNumber(data.seconds_left) ? [`about ${duration(data.seconds_left)} left`] : [];
  const said = [data.counts, ...left, `by ${spaced(data.metric)}, ${lowerIsBetter ? "lower" : "higher"} is better`];
  byId("facts").replaceChildren(...said.map((words) => make("span", {}, words)));
  if (data.state === "stopped") byId("best").before(make("section", { id: "goes-on" }, ...goesOn()));
}

const goesOn = () => [
  make("p", { class: "notice" }, "This sweep was stopped before all its trials had ended. The command that goes on:"),
  commandLine(data.command),
];

/** Seconds as a person says them. */
function duration(seconds) {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} seconds`;
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} minutes`;
  return `${Number((seconds / 3600).toPrecision(2))} hours`;
}

function showBest() {
  const best = trialNamed(data.best);
  if (!best) {
    byId("best-trial").append(make("p", { class: "note" }, "No trial is done yet."));
    return;
  }
  const values = tunedKeys().map((key) => `${shortKey(key)} ${tunedWords(own(best.overrides, key))}`);
  const value = make("b", {}, exact(best.value, brief(best.value)));
  const lines = [make("p", { class: "answer" }, `${spaced(data.metric)} `, value, values.length ? ` with ${values.join(", ")}` : "")];
  if (best.command) lines.push(commandLine(best.command));
  if (best.directory) lines.push(commandLine(mapsCommand(best.directory, best.trust)));
  byId("best-trial").append(...lines);
}

function showImportance() {
  const known = tunedKeys().filter((key) => isNumber(own(data.importance, key)));
  if (!known.length) return;
  const note =
    "The share of the differences between trials that a key explains by itself, adjusted for chance: one-way analysis of " +
    "variance of the metric's ranks. What keys do only together is in none of them.";
  const place = make("div", {});
  addPanel("importance", "What each key matters", note, place);
  addFigure(place, { id: "importances", title: "Importance", paint: (width) => paintImportance(width, known) });
}

function paintImportance(width, keys) {
  const order = [...keys].sort((a, b) => data.importance[b] - data.importance[a]);
  const gutter = Math.min(width * 0.4, 12 + Math.max(...order.map((key) => widthOf(shortKey(key)))));
  const [row, most] = [24, width - gutter - 60];
  const parts = order.flatMap((key, index) => {
    const [y, share] = [10 + index * row, data.importance[key]];
    return [
      label(shorten(shortKey(key), Math.floor(gutter / 6.6)), gutter - 8, y + 12, { class: "tick", "text-anchor": "end" }),
      draw("rect", { class: "bar", x: gutter, y, width: Math.max(1, most * share), height: 15 }),
      label(percent(share), gutter + most * share + 8, y + 12, { class: "tick" }),
    ];
  });
  const said = order.map((key) => `${shortKey(key)} ${percent(data.importance[key])}`).join("; ");
  return { height: 20 + order.length * row, parts, description: `Share of the differences between trials: ${said}.` };
}

function showCurves() {
  if (!data.trials.some(({ curve }) => curve.length > 1)) return;
  const note = "Every trial that has reported more than once, in the colors of above.";
  const place = make("div", {});
  addPanel("curves", `${spaced(data.metric)} over training`, note, place);
  addFigure(place, { id: "curve", title: spaced(data.metric), paint: paintCurves });
}

function paintCurves(width) {
  const drawn = data.trials.filter(({ curve }) => curve.length > 1);
  const points = drawn.flatMap(({ curve }) => curve);
  const values = points.map(([, value]) => value);
  const y = worthLog(values, 10) ? logScale(values) : linearScale(values, 5);
  const x = linearScale([0, ...points.map(([step]) => step)], 5, { tight: true });
  const box = { left: roomFor(y.ticks), right: width - PLOT.right, top: PLOT.top, bottom: PLOT.top + 300 };
  const frame = frameOf(box, x, y, ["step", spaced(data.metric)]);
  const { lines, stops } = trialLines(drawn, 14, ({ curve }) =>
    curve.map(([step, value]) => [frame.atX(step), frame.atY(value)]),
  );
  return {
    height: box.bottom + PLOT.bottom,
    parts: [...frame.parts, ...lines],
    stops,
    description: `${spaced(data.metric)} over training, of ${counted(drawn.length, "trial")}.`,
  };
}

function showSweep() {
  showHead();
  showBest();
  showParallel();
  showImportance();
  showCurves();
  showTrials();
  if (data.state !== "stopped") addPanel("again", "The sweep again", "Completes what is missing.", commandLine(data.command));
  redrawAll();
}

openPage(showSweep);
