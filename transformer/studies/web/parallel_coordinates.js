// Parallel coordinates (Inselberg 1985): an upright axis a key and one for the metric, a line a trial. An axis is
// { name, ticks: [[share of its height, words]], at(trial): the trial's share, or null }.

import { draw, make, own } from "../../pages/dom.js";
import { addFigure } from "../../pages/figure.js";
import { counted, isNumber, shorten, spaced } from "../../pages/formatting.js";
import { label, widthOf } from "../../pages/plot_marks.js";
import { linearScale, logScale, sameValue, worthLog } from "../../pages/scales.js";
import { data } from "./page_data.js";
import { addPanel, shortKey, tunedKeys, tunedWords } from "./panels_and_tables.js";
import { ofMetric, rankOf, trialLines } from "./trials.js";

export function showParallel() {
  if (!tunedKeys().length) return;
  const note =
    "A line is a trial: it crosses each axis at the value that the trial has there, and ends at what it reached. The " +
    "stronger its color, the better it is; the best is drawn thick.";
  const place = make("div", {});
  addPanel("parallel", "What was tried, and what it gave", note, place);
  addFigure(place, { id: "coordinates", title: "Parallel coordinates", paint: paintParallel });
}

/** An axis of a scale, on which a trial has a number or nothing. */
const numberAxis = (name, scale, valueOf) => ({
  name,
  ticks: scale.ticks.map(([value, words]) => [scale.share(value), words]),
  at: (trial) => (isNumber(valueOf(trial)) ? scale.share(valueOf(trial)) : null),
});

/** The axis of a key: numbers by size, everything else in the order of its values. */
function keyAxis(key) {
  const values = own(data.tuned, key) ?? [];
  const valueOf = (trial) => own(trial.overrides, key);
  if (values.every(isNumber)) {
    const scale = worthLog(values, 20) ? logScale(values) : linearScale(values, 4);
    return numberAxis(shortKey(key), scale, valueOf);
  }
  const share = (index) => index / (values.length - 1);
  return {
    name: shortKey(key),
    ticks: values.map((value, index) => [share(index), shorten(tunedWords(value), 14)]),
    at: (trial) => share(values.findIndex((value) => sameValue(value, valueOf(trial)))),
  };
}

function metricAxis() {
  const scale = worthLog(ofMetric) ? logScale(ofMetric) : linearScale(ofMetric, 5);
  return numberAxis(spaced(data.metric), scale, ({ name, value }) => (rankOf.has(name) ? value : null));
}

function paintParallel(width) {
  const axes = [...tunedKeys().map(keyAxis), ...(ofMetric.length ? [metricAxis()] : [])];
  // The words of an axis stand on its left.
  const words = Math.max(12, ...axes[0].ticks.map(([, text]) => widthOf(text)));
  const [left, right, top, tall] = [Math.min(words, 0.3 * width) + 12, width - 16, 34, 260];
  const between = (right - left) / Math.max(1, axes.length - 1);
  const at = (index, share) => [left + between * index, top + tall * (1 - share)];
  const { lines, stops } = trialLines(data.trials, 12, (trial) => {
    const shares = axes.map((axis, index) => [index, axis.at(trial)]).filter(([, share]) => share !== null);
    return shares.map(([index, share]) => at(index, share));
  });
  return {
    height: top + tall + 16,
    parts: [...lines, ...axes.flatMap((axis, index) => axisParts(axis, index))],
    stops,
    description:
      `Parallel coordinates of ${counted(data.trials.length, "trial")} over ${tunedKeys().map(shortKey).join(", ")} ` +
      `and ${spaced(data.metric)}.`,
  };

  function axisParts({ name, ticks }, index) {
    const [x] = at(index, 0);
    const anchor = index === 0 ? "start" : index === axes.length - 1 ? "end" : "middle";
    const room = Math.max(6, Math.floor(between / 6.6));
    return [
      draw("line", { class: "axis", x1: x, x2: x, y1: top, y2: top + tall }),
      label(shorten(name, room), index === 0 ? 0 : x, 14, { class: "axis-name", "text-anchor": anchor }),
      ...ticks.map(([share, text]) =>
        label(text, x - 6, at(index, share)[1] + 3.5, { class: "tick halo", "text-anchor": "end" }),
      ),
    ];
  }
}
