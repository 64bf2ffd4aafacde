// Lines of arms over steps, layers or tuned values: the middle as a line, the seeds as a band around it.

const MARKED_ALL = 16; // a line of more points than these has a few markers, placed differently for each arm
const LOG_WORTH = 40; // largest over smallest value from which on a logarithmic scale shows more
const CROSS_ROOM = 29; // what a cross and its count take in the lane of what diverged

/**
 * Add a figure of lines. `look()` returns { series: [{ arm, points: [{ x, middle, low, high, diverged, n }] }],
 * xScale(values), xName, yName, logarithmic: true | false | "auto", range: values that the scale holds besides,
 * level: a value that a line across marks, or null, by the words levelName }.
 */
function addLines(place, { id, title, note, look, height = 250, tell }) {
  return addFigure(place, { id, title, note, paint: (width) => paintLines(width, height, look(), tell) });
}

function paintLines(width, height, looked, tell) {
  const { xName, yName, range = [], level = null, levelName } = looked;
  const series = looked.series.filter(({ points }) => points.length);
  if (!series.length) return null;
  const points = series.flatMap((each) => each.points);
  const ends = points.flatMap(({ low, middle, high }) => [low, middle, high]).filter(isNumber);
  const values = [...ends, ...[...range, level].filter(isNumber)];
  const crossed = points.some(({ diverged }) => diverged > 0);
  const logarithmic =
    looked.logarithmic === "auto"
      ? worthLog(values)
      : looked.logarithmic && values.some((value) => value > 0);
  const y = logarithmic ? logScale(values) : linearScale(values.length ? values : [0, 1], 4);
  const x = looked.xScale(points.map((each) => each.x));
  const lane = crossed ? 20 : 0;
  const left = Math.max(roomFor(y.ticks), crossed ? widthOf("diverged") + 9 : 0);
  const box = { left, right: width - PLOT.right, top: PLOT.top + lane, bottom: height - PLOT.bottom };
  const frame = frameOf(box, x, y, [xName, yName + (logarithmic ? " (log)" : "")]);
  const parts = [...frame.parts];
  if (crossed)
    parts.push(label("diverged", box.left - 7, PLOT.top + 9, { class: "tick", "text-anchor": "end" }));
  if (isNumber(level)) parts.push(...levelOf(level, levelName, box, frame));
  // Bands first: a line is never under the band of another arm.
  for (const each of series) parts.push(...bandsOf(each, frame));
  series.forEach((each, at) => parts.push(...lineOf(each, frame, at, series.length)));
  if (crossed) parts.push(...crossesOf(series, frame, width));
  const write = tell ?? ((value) => `${xName} ${brief(value)}`);
  return {
    height,
    parts,
    along: true,
    stops: stopsOf(series, frame, write, box),
    description: describe(series, xName, yName),
  };
}

const worthLog = (values, ratio = LOG_WORTH) =>
  values.every((value) => value > 0) && Math.max(...values) > ratio * Math.min(...values);

const tenths = (value) => value.toFixed(1);

/** A line across at a value, and its name. */
function levelOf(level, name, box, { atY }) {
  const y = atY(level);
  const words = label(name, box.right, y - 4, { class: "axis-name", "text-anchor": "end" });
  return [draw("line", { class: "level", x1: box.left, x2: box.right, y1: y, y2: y }), words];
}

/** The stretches of a line between points that have no value. */
function stretches(points) {
  const found = [[]];
  for (const each of points) {
    if (isNumber(each.middle)) found.at(-1).push(each);
    else if (found.at(-1).length) found.push([]);
  }
  return found.filter((stretch) => stretch.length);
}

function bandsOf({ arm, points }, { atX, atY }) {
  return stretches(points.filter(({ low, middle }) => isNumber(low) || !isNumber(middle))).map((stretch) => {
    const upper = stretch.map(({ x, high }) => `${tenths(atX(x))} ${tenths(atY(high))}`);
    const lower = stretch.map(({ x, low }) => `${tenths(atX(x))} ${tenths(atY(low))}`).reverse();
    // Of one point alone the band is a bar.
    const bar = stretch.length === 1 ? "stroke" : "band";
    const d = bar === "stroke" ? `M${upper[0]}L${lower[0]}` : `M${[...upper, ...lower].join("L")}Z`;
    return draw("path", { class: `${bar} ${armClass(arm)}`, d });
  });
}

function lineOf({ arm, points }, { atX, atY }, number, count) {
  const parts = [];
  for (const stretch of stretches(points)) {
    const d = `M${stretch.map(({ x, middle }) => `${tenths(atX(x))} ${tenths(atY(middle))}`).join("L")}`;
    if (stretch.length > 1) parts.push(draw("path", { class: `stroke ${armClass(arm)}`, d }));
    const every = stretch.length <= MARKED_ALL ? 1 : Math.ceil(stretch.length / 6);
    const from = every === 1 ? 0 : Math.floor((every * (number + 0.5)) / count);
    for (let index = from; index < stretch.length; index += every)
      parts.push(marker(arm, atX(stretch[index].x), atY(stretch[index].middle)));
  }
  return parts;
}

/** In the lane above, how many seeds of an arm diverged at a value; arms that share a value stand side by side. */
function crossesOf(series, { atX }, width) {
  const parts = [];
  const places = new Map();
  for (const { arm, points } of series)
    for (const { x, diverged } of points) {
      if (!(diverged > 0)) continue;
      const key = JSON.stringify(x);
      if (!places.has(key)) places.set(key, []);
      places.get(key).push([arm, x, diverged]);
    }
  for (const group of places.values()) {
    const half = (CROSS_ROOM * group.length) / 2;
    const from = Math.min(atX(group[0][1]) - half, width - 2 * half);
    group.forEach(([arm, , diverged], index) => {
      const place = from + CROSS_ROOM * (index + 0.25);
      parts.push(cross(place, PLOT.top + 5, 3.4, { class: `cross ${armClass(arm)}` }));
      parts.push(label(diverged, place + 6, PLOT.top + 9, { class: "tick" }));
    });
  }
  return parts;
}

function stopsOf(series, { atX }, write, box) {
  const values = new Map(series.flatMap(({ points }) => points.map(({ x }) => [JSON.stringify(x), x])));
  return [...values.values()]
    .map((value) => ({
      x: atX(value),
      y: box.top,
      to: box.bottom,
      words: () => [tipHead(write(value)), ...series.flatMap((each) => rowOf(each, value))],
    }))
    .sort((a, b) => a.x - b.x);
}

function rowOf({ arm, points }, value) {
  const found = points.find(({ x }) => sameValue(x, value));
  if (!found) return [];
  const { middle, low, high, diverged, n } = found;
  const said = [];
  if (isNumber(low) && low !== high) said.push(`${brief(low)} – ${brief(high)}`);
  if (isNumber(n)) said.push(runsWords(diverged, n));
  return [tipRow(arm, brief(middle), said.join(", "))];
}

/** Of how many seeds a value is, and how many runs it does not hold because they diverged. */
const runsWords = (diverged, n) => `${counted(n, "seed")}${diverged > 0 ? `, ${diverged} diverged` : ""}`;

function describe(series, xName, yName) {
  const ends = series.map(({ arm, points }) => {
    const last = points.findLast(({ middle }) => isNumber(middle));
    return `${visible(arm)} ${last ? `${brief(last.middle)} at ${worded(last.x)}` : "has no value"}`;
  });
  return `${yName} over ${xName}. Last values: ${ends.join("; ")}.`;
}

/** A band of the result, { steps, middle, low, high, n }, as points. */
const pointsOf = ({ steps, middle, low, high, n }) =>
  steps.map((x, index) => ({ x, middle: middle[index], low: low[index], high: high[index], n: n?.[index] }));
