// Every seed: its values in an arm and in the reference joined; and above all, the paired differences with their interval.

import { byId, createHtml, createSvg, find } from "../../pages/dom.js";
import { addFigure, redrawAllFigures } from "../../pages/figure.js";
import { formatOrDash, isNumber, pluralize, showInvisible, truncate, withSpaces } from "../../pages/formatting.js";
import { cross, labelWidth, marker, svgText, tooltipTitle } from "../../pages/markers_and_legends.js";
import {
  linearScale,
  logScale,
  needsLogScale,
  PLOT_MARGIN,
  verticalAxisName,
  verticalAxisWidth,
} from "../../pages/scales.js";
import { armClass, armStyle, armTooltipRow, findArm, hasSeveralTasks, hiddenArms, visibleArms } from "./arms.js";
import { ablation } from "./page_data.js";
import { addPanel, createChooser, lowerIsBetter, taskName } from "./panels_and_tables.js";

/** @import { Box, Scale, Stop } from "../../pages/types.js" */
/** @import { Arm, Comparison, SeedRun } from "./types.js" */

const seedSelection = { task: ablation.tasks[0] };
const ROW_HEIGHT = 28;

export function showPairedSeeds() {
  const place = createHtml("div", {});
  const note =
    "A line joins one seed's value in the reference with its value in an arm; both read the same data in the same order.";
  const panel = addPanel("seeds", "Every seed", note, place);
  if (hasSeveralTasks) {
    /** @type {[string, string][]} */
    const choices = ablation.tasks.map((task) => [task, taskName(task)]);
    /** @param {string} task */
    const choose = (task) => {
      seedSelection.task = task;
      redrawAllFigures();
    };
    find(panel, ".panel-head").append(createChooser("task", choices, seedSelection.task, choose));
  }
  addFigure(place, {
    id: "values",
    title: `${withSpaces(ablation.reported_metric)}, seed by seed`,
    note: `${lowerIsBetter ? "lower" : "higher"} is better; the bar is the mean`,
    paint: paintSeedValues,
  });
}

/** The answer at a glance, above all words: every difference with its interval. */
export function showForestPlot() {
  if (!ablation.comparisons.some(({ differences }) => differences?.length)) return;
  addFigure(byId("forest"), {
    id: "differences",
    title: `Difference to ${showInvisible(ablation.reference)}`,
    note: "arm minus reference; each ring is a seed, the bar the 95% interval of the mean, adjusted for the number of arms",
    paint: paintDifferences,
  });
}

// --- values ---

/**
 * The seeds of an arm on the task that is shown: Map of seed to { value, state }.
 * @param {Arm} arm
 */
const armSeeds = (arm) =>
  new Map(arm.seeds.filter(({ task }) => task === seedSelection.task).map((each) => [each.seed, each]));

/**
 * @param {SeedRun | null | undefined} run
 * @returns {run is SeedRun}
 */
const isFinished = (run) => Boolean(run && ["done", "stuck"].includes(run.state) && isNumber(run.value));

/** @param {number} width */
function paintSeedValues(width) {
  const reference = findArm(ablation.reference);
  const others = visibleArms().filter(({ name }) => name !== ablation.reference);
  const facets = others.length ? others : [reference];
  const ours = armSeeds(reference);
  const seeds = [reference, ...others].flatMap((arm) => [...armSeeds(arm).values()]);
  const values = seeds.filter(isFinished).map(({ value }) => value);
  const lost = seeds.some((each) => !isFinished(each));
  const y = needsLogScale(values) && values.length ? logScale(values) : linearScale(values.length ? values : [0, 1], 4);
  const left = verticalAxisWidth(y.ticks);
  const columns = Math.min(facets.length, Math.max(1, Math.floor((width - left) / 118)));
  const across = Math.min(240, (width - left - PLOT_MARGIN.right) / columns);
  const [lane, tall, foot] = [lost ? 22 : 0, 230, 44];
  const rows = Math.ceil(facets.length / columns);
  /** @type {Node[]} */
  const parts = [];
  /** @type {Stop[]} */
  const stops = [];
  facets.forEach((arm, index) => {
    const column = index % columns;
    const top = PLOT_MARGIN.top + lane + Math.floor(index / columns) * (tall + lane + foot);
    const box = {
      left: left + column * across + 8,
      right: left + (column + 1) * across - 8,
      top,
      bottom: top + tall,
    };
    const drawn = drawFacet(arm, ours, box, y, column === 0, lost);
    parts.push(...drawn.parts);
    stops.push(...drawn.stops);
  });
  parts.push(verticalAxisName(withSpaces(ablation.reported_metric), 12, PLOT_MARGIN.top + lane + tall / 2));
  /** @param {Arm} arm */
  const meanOf = (arm) => {
    const values = [...armSeeds(arm).values()].filter(isFinished).map(({ value }) => value);
    return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
  };
  const means = [reference, ...others]
    .map((arm) => `${showInvisible(arm.name)} ${formatOrDash(meanOf(arm))}`)
    .join("; ");
  const task = hasSeveralTasks ? ` on ${taskName(seedSelection.task)}` : "";
  return {
    height: PLOT_MARGIN.top + rows * (tall + lane + foot),
    parts,
    stops,
    description: `${withSpaces(ablation.reported_metric)} of every seed${task}. Means over seeds: ${means}.`,
  };
}

/**
 * One arm beside the reference; the reference by itself where no other arm is shown.
 * @param {Arm} arm
 * @param {Map<number, SeedRun>} ours
 * @param {Box} box
 * @param {Scale} y
 * @param {boolean} first
 * @param {boolean} lost
 */
function drawFacet(arm, ours, box, y, first, lost) {
  /** @param {number} value */
  const atY = (value) => box.bottom - (box.bottom - box.top) * y.share(value);
  const wide = box.right - box.left;
  /**
   * @param {string} name
   * @param {Map<number, SeedRun>} seeds
   * @param {number} share
   */
  const column = (name, seeds, share) => ({ name, seeds, x: box.left + wide * share });
  const self = arm.name === ablation.reference;
  const theirs = column(arm.name, armSeeds(arm), 0.78);
  const columns = self ? [column(arm.name, ours, 0.5)] : [column(ablation.reference, ours, 0.22), theirs];
  /** @type {Node[]} */
  const parts = drawFacetAxes(arm, box, y, atY, first, lost);
  /** @type {Stop[]} */
  const stops = [];
  for (const [seed, run] of self ? ours : theirs.seeds) {
    const mine = ours.get(seed);
    const words = () => pairTooltip(seed, mine, self ? null : run, arm.name);
    if (!self && isFinished(mine) && isFinished(run)) {
      const ends = { x1: columns[0].x, y1: atY(mine.value), x2: theirs.x, y2: atY(run.value) };
      parts.push(createSvg("line", { class: `join ${armClass(arm.name)}`, ...ends }));
    }
    for (const { name, seeds, x } of columns) {
      if (!seeds.has(seed)) continue;
      const one = seeds.get(seed);
      const place = isFinished(one) ? atY(one.value) : box.top - 12;
      parts.push(
        isFinished(one) ? marker(armStyle(name), x, place) : cross(x, place, 3.6, { class: `cross ${armClass(name)}` }),
      );
      stops.push({ x, y: place, words });
    }
  }
  for (const { name, seeds, x } of columns) {
    const values = [...seeds.values()].filter(isFinished).map(({ value }) => value);
    if (values.length < 2) continue;
    const middle = atY(values.reduce((sum, value) => sum + value, 0) / values.length);
    const ends = { x1: x - wide * 0.13, x2: x + wide * 0.13, y1: middle, y2: middle };
    parts.push(createSvg("line", { class: `mean ${armClass(name)}`, ...ends }));
  }
  return { parts, stops };
}

/**
 * The grid of a facet, its labels where it is the first of its row, and its name.
 * @param {Arm} arm
 * @param {Box} box
 * @param {Scale} y
 * @param {(value: number) => number} atY
 * @param {boolean} first
 * @param {boolean} lost
 */
function drawFacetAxes(arm, box, y, atY, first, lost) {
  /** @type {Node[]} */
  const parts = [];
  const before = { class: "tick", "text-anchor": "end" };
  for (const [value, words] of y.ticks) {
    const ends = { x1: box.left, x2: box.right, y1: atY(value), y2: atY(value) };
    parts.push(createSvg("line", { class: "grid", ...ends }));
    if (first) parts.push(svgText(words, box.left - 15, atY(value) + 3.5, before));
  }
  if (lost && first) parts.push(svgText("lost", box.left - 15, box.top - 8, before));
  const [middle, room] = [(box.left + box.right) / 2, Math.max(6, Math.floor((box.right - box.left) / 6.6))];
  const name = { class: "facet-name", "text-anchor": "middle" };
  parts.push(svgText(truncate(showInvisible(arm.name), room), middle, box.bottom + 17, name));
  const against = truncate(`against ${showInvisible(ablation.reference)}`, room);
  const beneath = { class: "tick", "text-anchor": "middle" };
  if (arm.name !== ablation.reference) parts.push(svgText(against, middle, box.bottom + 31, beneath));
  return parts;
}

/**
 * @param {number} seed
 * @param {SeedRun | undefined} mine
 * @param {SeedRun | null | undefined} other
 * @param {string} name
 */
function pairTooltip(seed, mine, other, name) {
  /** @param {SeedRun | null | undefined} each */
  const said = (each) => {
    const state = each?.state ?? "not run";
    if (!isFinished(each)) return state;
    return state === "stuck" ? `${formatOrDash(each.value)}, stuck` : formatOrDash(each.value);
  };
  const rows = [tooltipTitle(`seed ${seed}${hasSeveralTasks ? `, ${taskName(seedSelection.task)}` : ""}`)];
  rows.push(armTooltipRow(ablation.reference, said(mine)));
  if (other) rows.push(armTooltipRow(name, said(other)));
  if (isFinished(mine) && isFinished(other))
    rows.push(
      tooltipTitle(`difference ${other.value > mine.value ? "+" : ""}${formatOrDash(other.value - mine.value)}`),
    );
  return rows;
}

// --- differences ---

/** The comparisons that are drawn, arm by arm, all tasks together before each of them. */
function visibleComparisons() {
  const order = ablation.arms.map(({ name }) => name);
  return ablation.comparisons
    .filter(({ arm, differences }) => !hiddenArms.has(arm) && differences?.length)
    .sort((a, b) => order.indexOf(a.arm) - order.indexOf(b.arm) || Number(a.task !== null) - Number(b.task !== null));
}

/** @param {number} width */
function paintDifferences(width) {
  const rows = visibleComparisons();
  if (!rows.length) return null;
  const ends = rows.flatMap(({ differences, interval, difference }) => [
    ...differences.map(({ value }) => value),
    ...(interval ?? []),
    difference,
  ]);
  const x = linearScale([...ends.filter(isNumber), 0], width < 420 ? 3 : 5);
  const names = rows.map((row) => (isOverall(row) ? showInvisible(row.arm) : taskName(row.task ?? "")));
  const gutter = Math.min(width * 0.3, 12 + Math.max(...names.map((name) => 1.12 * labelWidth(name))));
  const box = { left: gutter + 8, right: width - PLOT_MARGIN.right - 8, top: PLOT_MARGIN.top + 14, bottom: 0 };
  /** @param {number} value */
  const atX = (value) => box.left + (box.right - box.left) * x.share(value);
  /** @type {Node[]} */
  const parts = [];
  /** @type {Stop[]} */
  const stops = [];
  let y = box.top;
  rows.forEach((row, index) => {
    const head = isOverall(row);
    y += head && index && hasSeveralTasks ? ROW_HEIGHT + 8 : ROW_HEIGHT;
    const attributes = { class: head ? "facet-name" : "tick", "text-anchor": head ? "start" : "end" };
    parts.push(svgText(truncate(names[index], Math.floor(gutter / 7)), head ? 0 : gutter, y, attributes));
    drawDifference(row, y - 4, atX, parts, stops);
  });
  box.bottom = y + 12;
  const said = rows.map(({ arm, task, difference, interval }) => {
    const range = interval ? ` (${formatOrDash(interval[0])} to ${formatOrDash(interval[1])})` : "";
    return `${showInvisible(arm)}${task ? ` on ${showInvisible(task)}` : ""} ${formatOrDash(difference)}${range}`;
  });
  const description = `Paired differences to ${showInvisible(ablation.reference)}: ${said.join("; ")}.`;
  return {
    height: box.bottom + PLOT_MARGIN.bottom,
    parts: [...drawDifferenceAxes(box, x, atX), ...parts],
    stops,
    description,
  };
}

/** @param {Comparison} comparison */
const isOverall = ({ task }) => task === null || !hasSeveralTasks;

/**
 * Upright lines at round differences, and the one at none with what lies on its two sides.
 * @param {Box} box
 * @param {Scale} x
 * @param {(value: number) => number} atX
 */
function drawDifferenceAxes(box, x, atX) {
  const parts = [];
  for (const [value, words] of x.ticks) {
    parts.push(createSvg("line", { class: "grid", x1: atX(value), x2: atX(value), y1: box.top, y2: box.bottom }));
    parts.push(svgText(words, atX(value), box.bottom + 15, { class: "tick", "text-anchor": "middle" }));
  }
  parts.push(createSvg("line", { class: "zero", x1: atX(0), x2: atX(0), y1: box.top - 4, y2: box.bottom }));
  const [less, more] = lowerIsBetter ? ["← better", "worse →"] : ["← worse", "better →"];
  // A side that is narrower than its word goes without it.
  const above = { class: "axis-name", "text-anchor": "end" };
  if (atX(0) - box.left > 60) parts.push(svgText(less, atX(0) - 8, box.top - 2, above));
  if (box.right - atX(0) > 60) parts.push(svgText(more, atX(0) + 8, box.top - 2, { class: "axis-name" }));
  parts.push(svgText(`${withSpaces(ablation.reported_metric)}, arm − reference`, box.right, box.bottom + 31, above));
  return parts;
}

/**
 * The seeds of a comparison above, their mean and its interval below.
 * @param {Comparison} comparison
 * @param {number} y
 * @param {(value: number) => number} atX
 * @param {Node[]} parts
 * @param {Stop[]} stops
 */
function drawDifference({ arm, differences, interval, difference, n }, y, atX, parts, stops) {
  /** @param {number} value */
  const withSign = (value) => `${value > 0 ? "+" : ""}${formatOrDash(value)}`;
  for (const { seed, task, value } of differences) {
    parts.push(createSvg("circle", { class: `seed ${armClass(arm)}`, cx: atX(value), cy: y - 6, r: 3 }));
    const where = !hasSeveralTasks ? "" : task === null ? ", mean over the tasks" : `, ${taskName(task)}`;
    const words = () => [tooltipTitle(`seed ${seed}${where}`), armTooltipRow(arm, withSign(value))];
    stops.push({ x: atX(value), y: y - 6, reach: 10, words });
  }
  if (interval) parts.push(intervalBar(arm, atX(interval[0]), atX(interval[1]), y + 4));
  if (!isNumber(difference)) return;
  parts.push(marker(armStyle(arm), atX(difference), y + 4, 4.4));
  const range = interval ? `${formatOrDash(interval[0])} to ${formatOrDash(interval[1])}` : "no interval";
  const words = () => [
    tooltipTitle(`mean of ${pluralize(n, "seed")}`),
    armTooltipRow(arm, withSign(difference), range),
  ];
  stops.push({ x: atX(difference), y: y + 4, reach: 10, words });
}

/**
 * A bar with ends, on its side.
 * @param {string} arm
 * @param {number} low
 * @param {number} high
 * @param {number} y
 */
export const intervalBar = (arm, low, high, y) =>
  createSvg("path", {
    class: `interval-bar ${armClass(arm)}`,
    d: `M${low} ${y}H${high}M${low} ${y - 4}V${y + 4}M${high} ${y - 4}V${y + 4}`,
  });
