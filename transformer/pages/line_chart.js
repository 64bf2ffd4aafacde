// Lines of several series over a common axis: the middle as a line, a band from low to high around it.

import { draw } from "./dom.js";
import { addFigure } from "./figure.js";
import { brief, counted, isNumber, visible, worded } from "./formatting.js";
import { cross, label, marker, tipHead, tipRow, widthOf } from "./plot_marks.js";
import { frameOf, linearScale, logScale, PLOT, roomFor, sameValue, worthLog } from "./scales.js";

const MARKED_ALL = 16; // a line of more points than these has a few markers, placed differently for each series
const CROSS_ROOM = 29; // what a cross and its count take in the lane of what diverged

/**
 * Add a figure of lines. `look()` returns { series: [{ name, look, points: [{ x, middle, low, high, diverged, n }] }],
 * xScale(values), xName, yName, logarithmic: true | false | "auto", range: values that the scale holds besides,
 * level: a value that a line across marks, or null, by the words levelName }. `nearest`: where a series has no point,
 * its nearest is read.
 */
export function addLines(place, { look, height = 250, tell, nearest = false, ...figure }) {
  const paint = (width) => paintLines(width, height, look(), { tell, nearest });
  return addFigure(place, { ...figure, paint, table: () => rowsOfLines(look()) });
}

function paintLines(width, height, looked, reading) {
  const { xName, yName, range = [], level = null, levelName } = looked;
  const series = looked.series.filter(({ points }) => points.length);
  if (!series.length) return null;
  const points = series.flatMap((each) => each.points);
  const ends = points.flatMap(({ low, middle, high }) => [low, middle, high]).filter(isNumber);
  const values = [...ends, ...[...range, level].filter(isNumber)];
  const crossed = points.some(({ diverged }) => diverged > 0);
  const logarithmic =
    looked.logarithmic === "auto" ? worthLog(values) : looked.logarithmic && values.some((value) => value > 0);
  const y = logarithmic ? logScale(values) : linearScale(values.length ? values : [0, 1], 4);
  const x = looked.xScale(points.map((each) => each.x));
  const left = Math.max(roomFor(y.ticks) - (yName ? 0 : 12), crossed ? widthOf("diverged") + 9 : 0);
  const top = PLOT.top + (crossed ? 20 : 0);
  const box = { left, right: width - PLOT.right, top, bottom: height - PLOT.bottom };
  const frame = frameOf(box, x, y, [xName, yName && yName + (logarithmic ? " (log)" : "")]);
  const parts = [...frame.parts];
  if (crossed) parts.push(label("diverged", box.left - 7, PLOT.top + 9, { class: "tick", "text-anchor": "end" }));
  if (isNumber(level)) parts.push(...levelOf(level, levelName, frame));
  // Bands first: a line is never under the band of another series.
  for (const each of series) parts.push(...bandsOf(each, frame));
  series.forEach((each, at) => parts.push(...lineOf(each, frame, at, series.length)));
  if (crossed) parts.push(...crossesOf(series, frame, width));
  const description = describeLines(series, xName, looked.said ?? yName);
  return { height, parts, frame, along: true, stops: stopsOf(series, frame, xName, reading), description };
}

const tenths = (value) => value.toFixed(1);

/** A line across at a value, and its name. */
function levelOf(level, name, { box, atY }) {
  const y = atY(level);
  const words = label(name, box.right, y - 4, { class: "axis-name", "text-anchor": "end" });
  return [draw("line", { class: "level", x1: box.left, x2: box.right, y1: y, y2: y }), words];
}

/** The stretches of a line between points that have no value. */
function stretches(points) {
  const parts = [[]];
  for (const each of points) {
    if (isNumber(each.middle)) parts.at(-1).push(each);
    else if (parts.at(-1).length) parts.push([]);
  }
  return parts.filter((stretch) => stretch.length);
}

function bandsOf({ look, points }, { atX, atY }) {
  return stretches(points.filter(({ low, middle }) => isNumber(low) || !isNumber(middle))).map((stretch) => {
    const upper = stretch.map(({ x, high }) => `${tenths(atX(x))} ${tenths(atY(high))}`);
    const lower = stretch.map(({ x, low }) => `${tenths(atX(x))} ${tenths(atY(low))}`).reverse();
    // Of one point alone the band is a bar.
    const bar = stretch.length === 1 ? "stroke" : "band";
    const d = bar === "stroke" ? `M${upper[0]}L${lower[0]}` : `M${[...upper, ...lower].join("L")}Z`;
    return draw("path", { class: `${bar} ${look.ink}`, d });
  });
}

export function lineOf({ look, points }, { atX, atY }, number = 0, count = 1) {
  const parts = [];
  for (const stretch of stretches(points)) {
    const d = `M${stretch.map(({ x, middle }) => `${tenths(atX(x))} ${tenths(atY(middle))}`).join("L")}`;
    if (stretch.length > 1) parts.push(draw("path", { class: `stroke ${look.ink}`, d }));
    if (stretch.length > 1 && look.shape === null) continue;
    const every = stretch.length <= MARKED_ALL ? 1 : Math.ceil(stretch.length / 6);
    const from = every === 1 ? 0 : Math.floor((every * (number + 0.5)) / count);
    for (let index = from; index < stretch.length; index += every)
      parts.push(marker(look, atX(stretch[index].x), atY(stretch[index].middle)));
  }
  return parts;
}

/** In the lane above, how many runs of a series diverged at a value; series that share a value stand side by side. */
function crossesOf(series, { atX }, width) {
  const places = Map.groupBy(
    series.flatMap(({ look, points }) => points.filter(({ diverged }) => diverged > 0).map((each) => [look, each])),
    ([, { x }]) => JSON.stringify(x),
  );
  return [...places.values()].flatMap((group) => {
    const half = (CROSS_ROOM * group.length) / 2;
    const from = Math.min(atX(group[0][1].x) - half, width - 2 * half);
    return group.flatMap(([look, { diverged }], index) => {
      const place = from + CROSS_ROOM * (index + 0.25);
      const count = label(diverged, place + 6, PLOT.top + 9, { class: "tick" });
      return [cross(place, PLOT.top + 5, 3.4, { class: `cross ${look.ink}` }), count];
    });
  });
}

function stopsOf(series, { box, atX }, xName, { tell, nearest }) {
  const write = tell ?? ((value) => `${xName} ${brief(value)}`);
  const values = new Map(series.flatMap(({ points }) => points.map(({ x }) => [JSON.stringify(x), x])));
  return [...values.values()]
    .map((value) => ({
      x: atX(value),
      y: box.top,
      to: box.bottom,
      value,
      words: () => [tipHead(write(value)), ...series.flatMap((each) => readRow(each, value, nearest && write))],
    }))
    .sort((a, b) => a.x - b.x);
}

/** What a series has at a value, or, with words for that, at the value of its own that is nearest. */
function readRow({ name, look, points }, value, nearWords) {
  const at = (x) => Math.abs(x - value);
  const held = nearWords
    ? points.reduce((best, each) => (at(each.x) < at(best.x) ? each : best))
    : points.find(({ x }) => sameValue(x, value));
  if (!held) return [];
  const { x, middle, low, high, diverged, n } = held;
  const said = [];
  if (isNumber(low) && low !== high) said.push(`${brief(low)} – ${brief(high)}`);
  if (isNumber(n)) said.push(runsWords(diverged, n));
  if (nearWords && x !== value) said.push(`at ${nearWords(x)}`);
  return [tipRow(look, name, brief(middle), said.join(", "))];
}

/** Of how many seeds a value is, and how many runs it does not hold because they diverged. */
export const runsWords = (diverged, n) => `${counted(n, "seed")}${diverged > 0 ? `, ${diverged} diverged` : ""}`;

function describeLines(series, xName, yName) {
  const ends = series.map(({ name, points }) => {
    const last = points.findLast(({ middle }) => isNumber(middle));
    return `${visible(name)} ${last ? `${brief(last.middle)} at ${worded(last.x)}` : "has no value"}`;
  });
  return `${yName} over ${xName}. Last values: ${ends.join("; ")}.`;
}

/** The numbers of a figure of lines, a line a point; columns that no point fills are left out. */
function rowsOfLines({ series, xName }) {
  const points = series.flatMap(({ name, points }) => points.map((each) => [name, each]));
  const columns = ["middle", "low", "high", "n", "diverged"].filter((column) =>
    points.some(([, each]) => isNumber(each[column])),
  );
  const rows = points.map(([name, each]) => [name, each.x, ...columns.map((column) => each[column])]);
  return [["series", xName, ...columns.map((column) => (column === "middle" ? "value" : column))], ...rows];
}
