// The curves of the runs over one another: one line a run, or the mean of each group with a band around it.

import { createHtml, find } from "../../pages/dom.js";
import { redrawFigure } from "../../pages/figure.js";
import { formatOrDash, formatValue, pluralize, showInvisible, truncate, withSpaces } from "../../pages/formatting.js";
import { addLineChart } from "../../pages/line_chart.js";
import { legendKey, seriesStyle, tooltipTitle } from "../../pages/markers_and_legends.js";
import { linearScale, logScale } from "../../pages/scales.js";
import { listing } from "./page_data.js";
import { addPanel, createChooser } from "./panels_and_tables.js";
import { choice, configValue, drawnRuns, keyLabel, markRun, showMark } from "./runs_choice.js";

/** @import { Figure, Point, Series } from "../../pages/types.js" */
/** @import { CurvePoint, ListedRun, RunsChoice } from "./types.js" */

const MAX_STYLES = 14; // series beyond which lines are colored by rank, and read one by one
const NUM_RANKS = 7;
const GROUP_POINTS = 200; // of the line of a group

/** @type {Map<string, CurvePoint[]>} */
const decodedCurves = new Map();
/** @type {Map<string, number>} The style of each run that is drawn, which it keeps as long as it is. */
const styleSlots = new Map();

const metricIndex = () => listing.metrics.findIndex(({ name }) => name === choice.metric);

/**
 * The curve of a metric of a run, unpacked once.
 * @param {ListedRun} run
 * @param {number} metric
 * @returns {CurvePoint[]}
 */
export function curveOf(run, metric) {
  const key = `${metric} ${run.name}`;
  let points = decodedCurves.get(key);
  if (!points) {
    const curve = run.curves[metric];
    let step = 0;
    points = curve ? curve[1].map((value, at) => ({ step: (step += listing.steps[curve[0]][at]), value })) : [];
    decodedCurves.set(key, points);
  }
  return points;
}

/**
 * The best value of a metric in a run, the last one of a metric of which nobody knows what is better.
 * @param {ListedRun} run
 * @param {number} metric
 * @returns {CurvePoint | null}
 */
export function bestPoint(run, metric) {
  const points = curveOf(run, metric);
  const { direction } = listing.metrics[metric];
  if (!points.length || !direction) return points.at(-1) ?? null;
  return points.reduce((best, point) =>
    (direction === "minimize" ? point.value < best.value : point.value > best.value) ? point : best,
  );
}

/**
 * The average of a curve up to each point, whose weights fall by the factor e over `scale` steps.
 * @param {CurvePoint[]} points
 * @param {number} scale
 */
function smoothCurve(points, scale) {
  let [sum, weight] = [0, 0];
  return points.map(({ step, value }, at) => {
    const decay = at ? Math.exp((points[at - 1].step - step) / scale) : 0;
    sum = sum * decay + value;
    weight = weight * decay + 1;
    return { step, value: sum / weight };
  });
}

/**
 * The value of a curve at a step between its ends, on the line between two points; null elsewhere.
 * @param {CurvePoint[]} points
 * @param {number} step
 */
function valueAt(points, step) {
  if (!points.length || step < points[0].step || step > points[points.length - 1].step) return null;
  let [low, high] = [0, points.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle].step <= step) low = middle;
    else high = middle;
  }
  const [a, b] = [points[low], points[high]];
  if (step === b.step || a.step === b.step) return b.value;
  return a.value + ((b.value - a.value) * (step - a.step)) / (b.step - a.step);
}

/**
 * The mean of several curves at their steps, with what the band around it holds.
 * @param {CurvePoint[][]} curves
 * @returns {Point[]}
 */
function meanPoints(curves) {
  const steps = [...new Set(curves.flatMap((points) => points.map(({ step }) => step)))].sort((a, b) => a - b);
  const every = Math.ceil(steps.length / GROUP_POINTS);
  return steps
    .filter((_, at) => at % every === 0 || at === steps.length - 1)
    .map((x) => {
      const values = curves.map((points) => valueAt(points, x)).filter((value) => value !== null);
      const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
      const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / Math.max(1, values.length - 1);
      const deviation = Math.sqrt(variance);
      const [low, high] = {
        range: [Math.min(...values), Math.max(...values)],
        deviation: [mean - deviation, mean + deviation],
        none: [null, null],
      }[choice.band];
      return { x, middle: mean, low, high, n: values.length };
    });
}

/**
 * The curves of the chosen metric of some runs as they are drawn.
 * @param {ListedRun[]} runs
 */
function chosenCurves(runs) {
  const metric = metricIndex();
  const curves = runs.map((run) => ({ run, points: curveOf(run, metric) })).filter(({ points }) => points.length);
  const last = Math.max(1, ...curves.map(({ points }) => points[points.length - 1].step));
  return curves
    .map(({ run, points }) => {
      const smoothed = choice.smoothing ? smoothCurve(points, (choice.smoothing / 100) * last) : points;
      /** @param {CurvePoint[]} all */
      const visible = (all) => (choice.logX ? all.filter(({ step }) => step > 0) : all);
      return { run, points: visible(smoothed), raw: visible(points) };
    })
    .filter(({ points }) => points.length);
}

/** @param {ListedRun} run */
const groupOf = (run) => JSON.stringify(choice.group.map((key) => configValue(run, key) ?? null));

/** @returns {Series[]} */
function groupSeries() {
  const order = [...new Set(listing.runs.map(groupOf))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const groups = Map.groupBy(chosenCurves(drawnRuns()), ({ run }) => groupOf(run));
  return order.flatMap((group, slot) => {
    const members = groups.get(group);
    if (!members) return [];
    const values = JSON.parse(group);
    const name = choice.group.map((key, at) => `${keyLabel(key)} ${formatValue(values[at])}`).join(", ");
    return [{ name, look: seriesStyle(slot + 1), points: meanPoints(members.map(({ points }) => points)) }];
  });
}

/** @returns {Series[]} */
function runSeries() {
  const metric = metricIndex();
  const curves = chosenCurves(drawnRuns());
  /** @param {CurvePoint[]} points */
  const toPoints = (points) => points.map(({ step, value }) => ({ x: step, middle: value }));
  if (curves.length <= MAX_STYLES) {
    assignStyles(curves.map(({ run }) => run.name));
    const raw = choice.smoothing
      ? curves.map(({ run, raw }) => ({
          name: `${run.name}, not smoothed`,
          look: { ink: `raw ${seriesStyle(styleSlots.get(run.name) ?? 0).ink}`, shape: null },
          points: toPoints(raw),
        }))
      : [];
    const lines = curves.map(({ run, points }) => ({
      id: run.name,
      name: run.name,
      look: seriesStyle(styleSlots.get(run.name) ?? 0),
      points: toPoints(points),
    }));
    return [...raw, ...lines];
  }
  const sign = listing.metrics[metric].direction === "maximize" ? -1 : 1;
  const ranked = curves
    .map((curve) => ({ ...curve, value: sign * (bestPoint(curve.run, metric)?.value ?? 0) }))
    .sort((a, b) => a.value - b.value);
  // The best are drawn last, above the others.
  return ranked
    .map(({ run, points }, rank) => {
      const ink = listing.metrics[metric].direction
        ? `rank-${Math.floor((rank / ranked.length) * NUM_RANKS)}`
        : "unranked";
      return { id: run.name, name: run.name, look: { ink, shape: null }, points: toPoints(points) };
    })
    .reverse();
}

/**
 * Give each run the first style that no other has; one that has a style keeps it.
 * @param {string[]} names
 */
function assignStyles(names) {
  for (const name of [...styleSlots.keys()]) if (!names.includes(name)) styleSlots.delete(name);
  for (const name of names) {
    const used = new Set(styleSlots.values());
    let slot = 1;
    while (used.has(slot)) slot++;
    if (!styleSlots.has(name)) styleSlots.set(name, slot);
  }
}

/**
 * What a tip says of one line at a point.
 * @param {Series} series
 * @param {Point} point
 */
function tellPoint({ id, name }, { x, middle }) {
  const run = listing.runs.find((each) => each.name === id);
  if (run) markRun(run.name);
  const value = createHtml("b", {}, formatOrDash(middle));
  const words = [
    tooltipTitle(truncate(showInvisible(name), 80)),
    createHtml("div", { class: "tip-head" }, `${withSpaces(choice.metric)} `, value, ` at step ${formatOrDash(x)}`),
  ];
  const keys = run ? listing.keys.filter((_, at) => run.values[at] >= 0).slice(0, 8) : [];
  for (const { name: key, label } of run ? keys : [])
    words.push(
      createHtml("div", { class: "tip-pair" }, `${label} ${truncate(formatValue(run && configValue(run, key)), 40)}`),
    );
  return words;
}

/** @returns {Series[]} */
const currentSeries = () => (choice.group.length ? groupSeries() : runSeries());

/**
 * Add the panel of the curves; `change` changes the choice. The function that is returned draws them anew.
 * @param {(changes: Partial<RunsChoice>) => void} change
 */
export function showCurves(change) {
  if (!listing.metrics.length) return () => {};
  const place = createHtml("div", {});
  const panel = addPanel("curves-panel", "Curves", "", place);
  const legend = createHtml("span", { class: "entries" });
  const note = createHtml("p", { class: "note" });
  /** @type {Series[]} */
  let series = [];
  const figure = addLineChart(place, {
    id: "curves",
    title: withSpaces(choice.metric),
    legend: [legend],
    height: 380,
    nearest: true,
    single: tellPoint,
    tell: (step) => `step ${formatOrDash(step)}`,
    look: () => ({
      series,
      xScale: (steps) => (choice.logX ? logScale(steps) : linearScale(steps, 5, { tight: true })),
      xName: choice.logX ? "step (log)" : "step",
      yName: withSpaces(choice.metric),
      logarithmic: choice.logY,
      readSingle: !choice.group.length || series.length > MAX_STYLES,
    }),
  });
  place.append(note);
  const controls = addControls(find(panel, ".panel-head"), change);
  return () => {
    series = currentSeries();
    controls();
    figure.title = withSpaces(choice.metric);
    find(figure.element, "strong").textContent = figure.title;
    figure.element.classList.toggle("many", series.length > MAX_STYLES);
    showLegend(legend, figure, series);
    note.textContent = series.length ? bandNote() : "No run that is shown has logged this metric.";
    note.hidden = !note.textContent;
    redrawFigure(figure);
    showMark();
  };
}

function bandNote() {
  const smoothed = choice.smoothing ? ` Curves are averaged over the last ${choice.smoothing}% of all steps.` : "";
  if (!choice.group.length) return smoothed.trim();
  const band = { range: ", from the lowest to the highest run", deviation: ", ± one standard deviation", none: "" };
  return `The mean of the runs of each group${band[choice.band]}, of those that have logged the step.${smoothed}`;
}

/**
 * @param {HTMLElement} place
 * @param {Figure} figure
 * @param {Series[]} series
 */
function showLegend(place, figure, series) {
  const named = series.filter(({ id }) => id || choice.group.length);
  figure.legend = named.length <= MAX_STYLES ? named.map(({ look, name }) => [look, name]) : [];
  if (named.length > MAX_STYLES) {
    const ranked = !choice.group.length && listing.metrics[metricIndex()].direction;
    const words = pluralize(named.length, choice.group.length ? "group" : "run");
    const ramp = ranked ? ["best ", createHtml("span", { class: "fades", "aria-hidden": "true" }), " worst"] : [];
    place.replaceChildren(createHtml("span", { class: "entry" }, words, ...(ramp.length ? [": "] : []), ...ramp));
    return;
  }
  const entries = named.map(({ id, look, name, points }) => {
    const last = points[points.length - 1];
    const value = createHtml("b", {}, formatOrDash(last?.middle));
    const entry = createHtml(
      id ? "button" : "span",
      { class: "entry", "data-series": id ?? null, type: id ? "button" : null },
      ...[legendKey(look), truncate(showInvisible(name), 60), value],
    );
    if (id) entry.addEventListener("click", () => markRun(id));
    return entry;
  });
  place.replaceChildren(...entries);
}

/**
 * The controls of the curves; the function that is returned sets them to the choice.
 * @param {HTMLElement} head
 * @param {(changes: Partial<RunsChoice>) => void} change
 */
function addControls(head, change) {
  /** @type {[string, string][]} */
  const metrics = listing.metrics.map(({ name }) => [name, withSpaces(name)]);
  const metric = createChooser("metric", metrics, choice.metric, (name) => change({ metric: name }));
  /** @type {[string, string][]} */
  const keys = listing.keys.map(({ name, label }) => [name, showInvisible(label)]);
  const group = createChooser("group by", [["", "nothing"], ...keys], "", (key) =>
    change({ group: key ? [key, ...choice.group.slice(1).filter((other) => other !== key)] : [] }),
  );
  const second = createChooser("and", [["", "nothing"], ...keys], "", (key) =>
    change({ group: [choice.group[0], ...(key && key !== choice.group[0] ? [key] : [])] }),
  );
  /** @type {[string, string][]} */
  const bands = [
    ["range", "lowest to highest"],
    ["deviation", "± standard deviation"],
    ["none", "none"],
  ];
  const band = createChooser("band", bands, choice.band, (value) =>
    change({ band: /** @type {RunsChoice["band"]} */ (value) }),
  );
  const range = { type: "range", min: 0, max: 30, step: 1, "aria-label": "Smoothing in percent" };
  const slider = createHtml("input", range);
  const percent = createHtml("output", {});
  slider.addEventListener("input", () => change({ smoothing: Number(slider.value) }));
  const smoothing = createHtml("label", { class: "smoothing" }, "smoothing ", slider, percent);
  const axes = /** @type {const} */ (["logX", "logY"]).map((axis) => {
    const box = createHtml("input", { type: "checkbox" });
    box.addEventListener("change", () => change({ [axis]: box.checked }));
    const words = axis === "logX" ? " log steps" : " log values";
    return { axis, box, label: createHtml("label", { class: "toggle" }, box, words) };
  });
  const choosers = [metric, group, second, band].map(
    (chooser) => /** @type {HTMLSelectElement} */ (find(chooser, "select")),
  );
  head.append(
    ...(metrics.length > 1 ? [metric] : []),
    ...(keys.length ? [group, second, band] : []),
    smoothing,
    ...axes.map(({ label }) => label),
  );
  return () => {
    const [first = "", other = ""] = choice.group;
    choosers.forEach((chooser, at) => (chooser.value = [choice.metric, first, other, choice.band][at]));
    band.hidden = !choice.group.length;
    second.hidden = band.hidden || keys.length < 2;
    slider.value = String(choice.smoothing);
    percent.textContent = choice.smoothing ? `${choice.smoothing}%` : "off";
    for (const { axis, box } of axes) box.checked = choice[axis];
  };
}
