// Lines of several series over a common axis: the middle as a line, a band from low to high around it.

import { createSvg } from "./dom.js";
import { addFigure } from "./figure.js";
import { formatOrDash, formatValue, isNumber, pluralize, showInvisible } from "./formatting.js";
import { cross, labelWidth, marker, svgText, tooltipRow, tooltipTitle } from "./markers_and_legends.js";
import {
  drawAxes,
  isSameValue,
  linearScale,
  logScale,
  needsLogScale,
  PLOT_MARGIN,
  verticalAxisWidth,
} from "./scales.js";

/** @import { Axes, Child, LineChart, LineChartOptions, Point, Reading, Series } from "./types.js" */

const MAX_MARKERS = 16; // a line of more points than these has a few markers, placed differently for each series
const MAX_DESCRIBED = 20; // series whose last values are part of the description of a figure
const CROSS_WIDTH = 29; // what a cross and its count take in the lane of what diverged

/**
 * Add a figure with a line for each series; see `LineChart` in types.d.ts for what `look()` returns.
 * @param {HTMLElement} place
 * @param {LineChartOptions} options
 */
export function addLineChart(place, { look, height = 250, tell, nearest = false, single = null, ...figure }) {
  /** @param {number} width */
  const paint = (width) => paintLineChart(width, height, look(), { tell, nearest, single });
  return addFigure(place, { ...figure, paint, table: () => chartTable(look()) });
}

/**
 * @param {number} width
 * @param {number} height
 * @param {LineChart} looked
 * @param {Reading} reading
 */
function paintLineChart(width, height, looked, reading) {
  const { xName, yName, range = [], level = null, levelName } = looked;
  const series = looked.series.filter(({ points }) => points.length);
  if (!series.length) return null;
  const points = series.flatMap((each) => each.points);
  const ends = points.flatMap(({ low, middle, high }) => [low, middle, high]).filter(isNumber);
  const values = [...ends, ...[...range, level].filter(isNumber)];
  const crossed = points.some(({ diverged }) => diverged > 0);
  const logarithmic =
    looked.logarithmic === "auto" ? needsLogScale(values) : looked.logarithmic && values.some((value) => value > 0);
  const y = logarithmic ? logScale(values) : linearScale(values.length ? values : [0, 1], 4);
  const x = looked.xScale(points.map((each) => each.x));
  const left = Math.max(verticalAxisWidth(y.ticks) - (yName ? 0 : 12), crossed ? labelWidth("diverged") + 9 : 0);
  const top = PLOT_MARGIN.top + (crossed ? 20 : 0);
  const box = { left, right: width - PLOT_MARGIN.right, top, bottom: height - PLOT_MARGIN.bottom };
  const frame = drawAxes(box, x, y, [xName, yName && yName + (logarithmic ? " (log)" : "")]);
  const parts = [...frame.parts];
  if (crossed)
    parts.push(svgText("diverged", box.left - 7, PLOT_MARGIN.top + 9, { class: "tick", "text-anchor": "end" }));
  if (isNumber(level)) parts.push(...referenceLine(level, levelName, frame));
  // Bands first: a line is never under the band of another series.
  for (const each of series) parts.push(...seriesBands(each, frame, looked.stepped));
  series.forEach((each, at) => parts.push(...seriesLine(each, frame, at, series.length, looked.stepped)));
  if (crossed) parts.push(...divergedCrosses(series, frame, width));
  const description = describeChart(series, xName, looked.said ?? yName);
  const one = looked.readSingle && reading.single;
  const stops = one ? pointStops(series, frame, one) : tooltipStops(series, frame, xName, reading);
  return { height, parts, frame, along: !one, stops, description };
}

/**
 * A stop at every point of every series, which tells of that series alone.
 * @param {Series[]} series
 * @param {Axes} axes
 * @param {(series: Series, point: Point) => Child[]} tell
 */
const pointStops = (series, { atX, atY }, tell) =>
  series.flatMap((each) =>
    each.points
      .filter(({ middle }) => isNumber(middle))
      .map((point) => ({ x: atX(point.x), y: atY(point.middle), reach: 30, words: () => tell(each, point) })),
  );

/** @param {number} value */
const toTenths = (value) => value.toFixed(1);

/**
 * A line across at a value, and its name.
 * @param {number} level
 * @param {string | undefined} name
 * @param {Axes} axes
 */
function referenceLine(level, name, { box, atY }) {
  const y = atY(level);
  const words = svgText(name, box.right, y - 4, { class: "axis-name", "text-anchor": "end" });
  return [createSvg("line", { class: "level", x1: box.left, x2: box.right, y1: y, y2: y }), words];
}

/**
 * The stretches of a line between points that have no value.
 * @param {Point[]} points
 */
function contiguousSegments(points) {
  /** @type {Point[][]} */
  const parts = [[]];
  for (const each of points) {
    if (isNumber(each.middle)) parts[parts.length - 1].push(each);
    else if (parts[parts.length - 1].length) parts.push([]);
  }
  return parts.filter((stretch) => stretch.length);
}

/**
 * The places of a line's points; of a stepped line with a corner between each two.
 * @param {[number, number][]} places
 * @param {"before" | "after"} [stepped]
 */
function linePlaces(places, stepped) {
  /** @type {(place: [number, number], next: [number, number]) => [number, number]} */
  const corner = ([x, y], [nextX, nextY]) => (stepped === "before" ? [x, nextY] : [nextX, y]);
  const all = places.flatMap((place, at) => (stepped && at > 0 ? [corner(places[at - 1], place), place] : [place]));
  return all.map(([x, y]) => `${toTenths(x)} ${toTenths(y)}`);
}

/**
 * @param {Series} series
 * @param {Axes} axes
 * @param {"before" | "after"} [stepped]
 */
function seriesBands({ look, points }, { atX, atY }, stepped) {
  return contiguousSegments(points.filter(({ low, middle }) => isNumber(low) || !isNumber(middle))).map((stretch) => {
    /** @param {"high" | "low"} end */
    const edge = (end) => {
      /** @type {[number, number][]} */
      const places = stretch.map((point) => [atX(point.x), atY(/** @type {number} */ (point[end]))]);
      return linePlaces(places, stepped);
    };
    const [upper, lower] = [edge("high"), edge("low").reverse()];
    // Of one point alone the band is a bar.
    const bar = stretch.length === 1 ? "stroke" : "band";
    const d = bar === "stroke" ? `M${upper[0]}L${lower[0]}` : `M${[...upper, ...lower].join("L")}Z`;
    return createSvg("path", { class: `${bar} ${look.ink}`, d });
  });
}

/**
 * @param {Series} series
 * @param {Axes} axes
 * @param {number} [number]
 * @param {number} [count]
 * @param {"before" | "after"} [stepped]
 */
export function seriesLine({ id = null, look, points }, { atX, atY }, number = 0, count = 1, stepped = undefined) {
  const parts = [];
  for (const stretch of contiguousSegments(points)) {
    /** @type {[number, number][]} */
    const places = stretch.map(({ x, middle }) => [atX(x), atY(/** @type {number} */ (middle))]);
    const d = `M${linePlaces(places, stepped).join("L")}`;
    if (stretch.length > 1) parts.push(createSvg("path", { class: `stroke ${look.ink}`, d, "data-series": id }));
    if (stretch.length > 1 && look.shape === null) continue;
    const every = stretch.length <= MAX_MARKERS ? 1 : Math.ceil(stretch.length / 6);
    const from = every === 1 ? 0 : Math.floor((every * (number + 0.5)) / count);
    for (let index = from; index < stretch.length; index += every)
      parts.push(marker(look, atX(stretch[index].x), atY(stretch[index].middle)));
  }
  return parts;
}

/**
 * In the lane above, how many runs of a series diverged at a value; series that share a value stand side by side.
 * @param {Series[]} series
 * @param {Axes} axes
 * @param {number} width
 */
function divergedCrosses(series, { atX }, width) {
  const places = Map.groupBy(
    series.flatMap(({ look, points }) =>
      points.filter(({ diverged }) => diverged > 0).map(({ x, diverged }) => ({ look, x, diverged })),
    ),
    ({ x }) => JSON.stringify(x),
  );
  return [...places.values()].flatMap((group) => {
    const half = (CROSS_WIDTH * group.length) / 2;
    const from = Math.min(atX(group[0].x) - half, width - 2 * half);
    return group.flatMap(({ look, diverged }, index) => {
      const place = from + CROSS_WIDTH * (index + 0.25);
      const count = svgText(diverged, place + 6, PLOT_MARGIN.top + 9, { class: "tick" });
      return [cross(place, PLOT_MARGIN.top + 5, 3.4, { class: `cross ${look.ink}` }), count];
    });
  });
}

/**
 * @param {Series[]} series
 * @param {Axes} axes
 * @param {string} xName
 * @param {Reading} reading
 */
function tooltipStops(series, { box, atX }, xName, { tell, nearest }) {
  /** @type {(value: any) => string} */
  const write = tell ?? ((value) => `${xName} ${formatOrDash(value)}`);
  const values = new Map(series.flatMap(({ points }) => points.map(({ x }) => [JSON.stringify(x), x])));
  return [...values.values()]
    .map((value) => ({
      x: atX(value),
      y: box.top,
      to: box.bottom,
      value,
      words: () => [
        tooltipTitle(write(value)),
        ...series.flatMap((each) => seriesTooltipRow(each, value, nearest && write)),
      ],
    }))
    .sort((a, b) => a.x - b.x);
}

/**
 * What a series has at a value, or, with words for that, at the value of its own that is nearest.
 * @param {Series} series
 * @param {any} value
 * @param {((value: any) => string) | false} nearWords
 */
function seriesTooltipRow({ name, look, points }, value, nearWords) {
  /** @param {number} x */
  const at = (x) => Math.abs(x - value);
  const held = nearWords
    ? points.reduce((best, each) => (at(each.x) < at(best.x) ? each : best))
    : points.find(({ x }) => isSameValue(x, value));
  if (!held) return [];
  const { x, middle, low, high, diverged, n } = held;
  const said = [];
  if (isNumber(low) && low !== high) said.push(`${formatOrDash(low)} – ${formatOrDash(high)}`);
  if (isNumber(n)) said.push(seedCountText(diverged, n));
  if (nearWords && x !== value) said.push(`at ${nearWords(x)}`);
  return [tooltipRow(look, name, formatOrDash(middle), said.join(", "))];
}

/**
 * Of how many seeds a value is, and how many runs it does not hold because they diverged.
 * @param {any} diverged
 * @param {number} n
 */
export const seedCountText = (diverged, n) => `${pluralize(n, "seed")}${diverged > 0 ? `, ${diverged} diverged` : ""}`;

/**
 * @param {Series[]} series
 * @param {string} xName
 * @param {string | undefined} yName
 */
function describeChart(series, xName, yName) {
  const ends = series.slice(0, MAX_DESCRIBED).map(({ name, points }) => {
    const last = points.findLast(({ middle }) => isNumber(middle));
    return `${showInvisible(name)} ${last ? `${formatOrDash(last.middle)} at ${formatValue(last.x)}` : "has no value"}`;
  });
  const more = series.length > MAX_DESCRIBED ? `; and ${series.length - MAX_DESCRIBED} more` : "";
  return `${yName} over ${xName}. Last values: ${ends.join("; ")}${more}.`;
}

/**
 * The numbers of a figure of lines, a line a point; columns that no point fills are left out.
 * @param {LineChart} chart
 */
function chartTable({ series, xName }) {
  const points = series.flatMap(({ name, points }) => points.map((each) => ({ name, each })));
  /** @type {("middle" | "low" | "high" | "n" | "diverged")[]} */
  const all = ["middle", "low", "high", "n", "diverged"];
  const columns = all.filter((column) => points.some(({ each }) => isNumber(each[column])));
  const rows = points.map(({ name, each }) => [name, each.x, ...columns.map((column) => each[column])]);
  return [["series", xName, ...columns.map((column) => (column === "middle" ? "value" : column))], ...rows];
}
