// The map of two tuned keys: a heat map an arm, on one scale for all of them.

import { css } from "../../pages/color_scale.js";
import { draw, make, own } from "../../pages/dom.js";
import { addFigure } from "../../pages/figure.js";
import { brief, compact, isNumber, minus, shorten, spaced, visible } from "../../pages/formatting.js";
import { runsWords } from "../../pages/line_chart.js";
import { label, marker, rampBar, tipHead, widthOf } from "../../pages/plot_marks.js";
import { sameValue, tickWords, upright } from "../../pages/scales.js";
import { armRow, lookOf, shownArms } from "./arms.js";
import { data } from "./page_data.js";
import { addPanel, lowerIsBetter, shortKey, tunedKeys, tunedWords } from "./panels_and_tables.js";

export function showMap() {
  const maps = data.arms.filter(({ map }) => map);
  if (!maps.length) return;
  const { x_key, y_key } = maps[0].map;
  const note =
    `Mean of ${spaced(data.chosen_by)} over the seeds, one scale for all arms; a cross counts the runs that ` +
    "diverged, over the whole cell where none was left. The frame is what the arm chose.";
  const place = make("div", {});
  addPanel("map", `${shortKey(x_key)} × ${shortKey(y_key)}`, note, place);
  addFigure(place, { id: "maps", title: `${spaced(data.chosen_by)} by arm`, paint: paintMaps });
}

function paintMaps(width) {
  const arms = shownArms().filter(({ map }) => map);
  if (!arms.length) return null;
  const every = data.arms.filter(({ map }) => map).flatMap(({ map }) => map.cells.flat());
  const means = every.map(({ mean }) => mean).filter(isNumber);
  const scale = means.length ? colorScale(means) : null;
  const { x: xs, y: ys } = arms[0].map;
  const left = widest(ys) + 30;
  const cell = { wide: Math.max(30, Math.min(64, (width - left - 12) / xs.length)), tall: 32 };
  const across = left + cell.wide * xs.length + 26;
  const columns = Math.max(1, Math.floor((width + 26) / across));
  const down = ys.length * cell.tall + 76;
  const [parts, stops] = [[], []];
  arms.forEach((arm, index) => {
    const [x, y] = [(index % columns) * across + left, Math.floor(index / columns) * down + 30];
    drawMap(arm, x, y, cell, scale, parts, stops);
  });
  const rows = Math.ceil(arms.length / columns);
  if (scale) parts.push(...scaleBar(scale, left, rows * down + 6, Math.min(260, width - left - 20)));
  const crossed = ({ map }) => map.cells.flat().filter(({ diverged }) => diverged > 0).length;
  const said = arms.map((arm) => `${visible(arm.name)} has diverged runs in ${crossed(arm)} cells`);
  return {
    height: rows * down + 44,
    parts,
    stops,
    description:
      `Maps of ${spaced(data.chosen_by)} over ${tunedKeys().map(shortKey).join(" and ")}, ` +
      `${xs.length * ys.length} cells each: ${said.join("; ")}.`,
  };
}

/** Where a mean stands between the least and the most of all arms, by its logarithm where they lie far apart. */
function colorScale(means) {
  const [low, high] = [Math.min(...means), Math.max(...means)];
  const logarithmic = low > 0 && high > 8 * low;
  const turn = logarithmic ? Math.log : (value) => value;
  const share = (value) => (high > low ? (turn(value) - turn(low)) / (turn(high) - turn(low)) : 0);
  const value = (part) => (logarithmic ? low * (high / low) ** part : low + (high - low) * part);
  return { share, value, logarithmic, low, high };
}

// The ramp takes square roots: a share's square runs evenly along it.
const shade = (share) => css(share ** 2);

function drawMap({ name, map, chosen }, left, top, cell, scale, parts, stops) {
  const { x: xs, y: ys, x_key: xKey, y_key: yKey } = map;
  parts.push(marker(lookOf(name), left + 5, top - 13, 4.2));
  parts.push(label(shorten(visible(name), 26), left + 15, top - 9, { class: "facet-name" }));
  const isTaken = (xValue, yValue) =>
    Object.values(chosen ?? {}).some(
      (values) => sameValue(own(values, xKey), xValue) && sameValue(own(values, yKey), yValue),
    );
  ys.forEach((yValue, row) => {
    // The largest value stands at the top, as on any axis.
    const y = top + (ys.length - 1 - row) * cell.tall;
    xs.forEach((xValue, column) => {
      const cellFacts = map.cells[row][column];
      const x = left + column * cell.wide;
      const words = () => mapWords(name, cellFacts, [xKey, xValue], [yKey, yValue]);
      parts.push(...mapCell(cellFacts, x, y, cell, scale));
      stops.push({ x: x + cell.wide / 2, y: y + cell.tall / 2, reach: cell.wide, words });
      const box = { x: x + 1.5, y: y + 1.5, width: cell.wide - 4, height: cell.tall - 4, rx: 2 };
      if (isTaken(xValue, yValue)) parts.push(draw("rect", { class: "taken", ...box }));
    });
  });
  parts.push(...mapAxes(map, left, top, cell));
}

function mapAxes({ x: xs, y: ys, x_key: xKey, y_key: yKey }, left, top, cell) {
  const [middle, end] = [{ "text-anchor": "middle" }, { "text-anchor": "end" }];
  const bottom = top + ys.length * cell.tall;
  const rows = ys.map((value, row) =>
    label(tunedWords(value), left - 7, bottom - (row + 0.5) * cell.tall + 4, { class: "tick", ...end }),
  );
  const columns = xs.map((value, column) =>
    label(tunedWords(value), left + (column + 0.5) * cell.wide, bottom + 14, { class: "tick", ...middle }),
  );
  const after = { class: "axis-name", ...end };
  const xName = label(shortKey(xKey), left + xs.length * cell.wide, bottom + 29, after);
  return [...rows, ...columns, xName, upright(shortKey(yKey), left - widest(ys) - 16, (top + bottom) / 2)];
}

const widest = (values) => Math.ceil(Math.max(...values.map((value) => widthOf(tunedWords(value)))));

/** A mean in its color and in figures; the runs that diverged crossed out, or counted beside those that did not. */
function mapCell({ mean, diverged }, x, y, { wide, tall }, scale) {
  const [width, height] = [wide - 1, tall - 1];
  const share = isNumber(mean) ? scale.share(mean) : null;
  const ground = share === null ? { class: "no-value" } : { fill: shade(share) };
  const parts = [draw("rect", { ...ground, x, y, width, height, rx: 2 })];
  const ink = share > 0.5 ? "ink light" : "ink";
  const words = share !== null && wide >= 34 ? minus(compact(Number(mean.toPrecision(3)))) : "";
  const attributes = { class: `cell-value ${ink}`, "text-anchor": "middle" };
  if (words) parts.push(label(words, x + width / 2, y + tall / 2 + (diverged > 0 ? -2 : 4), attributes));
  if (!(diverged > 0)) return parts;
  const [right, foot] = [x + width - 5, y + height - 5];
  const d =
    share === null
      ? `M${x + 5} ${y + 5}L${right} ${foot}M${x + 5} ${foot}L${right} ${y + 5}`
      : `M${x + width / 2 - 8} ${foot - 7}l6 6m0 -6l-6 6`;
  parts.push(draw("path", { class: `cell-cross ${ink}`, d }));
  if (share !== null) parts.push(label(diverged, x + width / 2 + 1, foot, { class: `cell-count ${ink}` }));
  return parts;
}

const mapWords = (name, { mean, diverged, n }, ...tuned) => [
  tipHead(tuned.map(([key, value]) => `${shortKey(key)} ${tunedWords(value)}`).join(", ")),
  armRow(name, isNumber(mean) ? brief(mean) : "no value", runsWords(diverged, n)),
];

/** The scale of all maps, and which of its ends is the better one. */
function scaleBar(scale, left, top, width) {
  const marks = tickWords([0, 0.5, 1].map(scale.value)).map(([, words], at) => [at / 2, words]);
  const ends = [lowerIsBetter ? "← better" : "", lowerIsBetter ? "" : "better →"];
  if (scale.logarithmic) ends[lowerIsBetter ? 1 : 0] = "log scale";
  const names = ends.map((words, at) =>
    label(words || " ", left + width * at, top + 35, { class: "axis-name", "text-anchor": at ? "end" : "start" }),
  );
  return [...rampBar(left, top, width, shade, marks), ...names.filter((_, at) => ends[at])];
}
