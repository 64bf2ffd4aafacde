// What the positions of an axis are: how they are called, where their labels stand, what they were cut from.

import { context2d, createHtml } from "../../../pages/dom.js";
import { formatNumber, showInvisible, truncate } from "../../../pages/formatting.js";
import { niceTicks } from "../../../pages/scales.js";
import { pixelTables } from "./canvas_pixels.js";
import { unpackBlock } from "./map_data.js";
import { data } from "./page_data.js";

/** @import { Axis, Side, Site, Tick } from "./types.js" */

export const LABEL_HEIGHT = 11; // pixels that a label needs
const MAX_LABEL_LENGTH = 16; // characters

/**
 * One side of a map on one example: `siteAxis(site, "query" or "key", example)`.
 * @param {Site} site
 * @param {Side} side
 * @param {number} example
 * @returns {Axis}
 */
export function siteAxis(site, side, example) {
  const name = site[side];
  const index = Object.keys(data.axes).indexOf(name);
  return { ...data.axes[name], name, index, tokens: data.tokens[name][example], example };
}

/**
 * The seconds at which a frame begins.
 * @param {Axis} axis
 * @param {number} position
 */
export const positionSeconds = (axis, position) => axis.offset + (position - axis.numLeadingPositions) * axis.stride;

/**
 * @param {Axis} axis
 * @param {number} position
 */
export const isFrame = (axis, position) => axis.kind === "frames" && position >= axis.numLeadingPositions;

/**
 * @param {Axis} axis
 * @param {number} value
 */
export const formatSeconds = (axis, value) =>
  `${value.toFixed(axis.stride >= 0.1 ? 1 : axis.stride >= 0.01 ? 2 : 3)} s`;

/**
 * A position in words; of those that are written alike each has its number.
 * @param {Axis} axis
 * @param {number} position
 * @param {number} [length]
 */
export function positionName(axis, position, length = 30) {
  return nameWithoutNumber(axis, position, length) + duplicateSuffix(axis, position);
}

/**
 * @param {Axis} axis
 * @param {number} position
 * @param {number} length
 */
function nameWithoutNumber(axis, position, length) {
  if (isFrame(axis, position)) return formatSeconds(axis, positionSeconds(axis, position));
  return `“${truncate(showInvisible(axis.tokens[position] ?? ""), length)}”`;
}

/**
 * " (3)" for the third position where its token stands at another one as well, else "".
 * @param {Axis} axis
 * @param {number} position
 */
export function duplicateSuffix(axis, position) {
  const token = axis.tokens[position];
  const alone = isFrame(axis, position) || axis.tokens.indexOf(token) === axis.tokens.lastIndexOf(token);
  return alone ? "" : ` (${formatNumber(position + 1)})`;
}

/**
 * A cell in words: one position, or the range that it stands for.
 * @param {Axis} axis
 * @param {number} cell
 * @param {number} block
 * @param {number} [length]
 */
export function cellName(axis, cell, block, length = 30) {
  const [first, last] = cellRange(axis, cell, block);
  if (first === last) return positionName(axis, first, length);
  if (isFrame(axis, first))
    return `${formatSeconds(axis, positionSeconds(axis, first))} to ${formatSeconds(axis, positionSeconds(axis, last + 1))}`;
  /** @param {number} position */
  const name = (position) => nameWithoutNumber(axis, position, Math.ceil(length / 2));
  return `${name(first)} … ${name(last)} (${formatNumber(first + 1)}–${formatNumber(last + 1)})`;
}

/**
 * The first and the last position of a cell.
 * @param {Axis} axis
 * @param {number} cell
 * @param {number} block
 * @returns {[number, number]}
 */
export const cellRange = (axis, cell, block) => [
  cell * block,
  Math.max(cell * block, Math.min(axis.tokens.length, (cell + 1) * block) - 1),
];

/**
 * @param {number} cell
 * @param {number} size
 */
export const cellCenter = (cell, size) => (cell + 0.5) * size;

/**
 * The labels of an axis that fit when a cell is so many pixels: [{ cell, text, token, tick }].
 * @param {Axis} axis
 * @param {number} cells
 * @param {number} block
 * @param {number} cell
 * @param {number} room
 * @returns {Tick[]}
 */
export function axisTicks(axis, cells, block, cell, room) {
  if (axis.kind === "frames") return timeTicks(axis, cells, block, cell);
  if (block > 1) return numberTicks(axis, cells, block, cell);
  const every = Math.ceil(room / cell);
  const columns = axis.kind === "grid" && every > 1 ? axis.shape[1] : null;
  /** @type {Tick[]} */
  const ticks = [];
  for (let at = 0; at < cells; at++) {
    const place = at - axis.numLeadingPositions;
    const wanted = columns && place >= 0 ? place % columns === 0 : at % every === 0;
    const free = !ticks.length || at - ticks[ticks.length - 1].cell >= every;
    if (wanted && free) ticks.push(tokenTick(axis, at));
  }
  return ticks;
}

/**
 * @param {Axis} axis
 * @param {number} cell
 * @returns {Tick}
 */
function tokenTick(axis, cell) {
  const token = axis.tokens[cell];
  return { cell, token, text: truncate(showInvisible(token), MAX_LABEL_LENGTH) };
}

/**
 * The label that a cell gets while it is pointed at.
 * @param {Axis} axis
 * @param {number} cell
 * @param {number} block
 * @returns {Tick}
 */
export function tickForCell(axis, cell, block) {
  if (block === 1 && !isFrame(axis, cell)) return tokenTick(axis, cell);
  if (isFrame(axis, cell * block))
    return { cell, text: formatSeconds(axis, positionSeconds(axis, cell * block)), tick: true };
  const [first, last] = cellRange(axis, cell, block);
  return { cell, text: `${formatNumber(first + 1)}–${formatNumber(last + 1)}`, tick: true };
}

/**
 * @param {Axis} axis
 * @param {number} cells
 * @param {number} block
 * @param {number} cell
 * @returns {Tick[]}
 */
function timeTicks(axis, cells, block, cell) {
  const leading = Array.from({ length: Math.min(axis.numLeadingPositions, cells) }, (_, at) => tokenTick(axis, at));
  const end = positionSeconds(axis, axis.tokens.length);
  const count = Math.max(1, Math.min(10, Math.floor((cells * cell) / 70)));
  const times = niceTicks(axis.offset, Math.max(end, axis.offset + axis.stride), count);
  const marks = times
    .filter((time) => time >= axis.offset - 1e-9 && time < end)
    .map((time) => ({
      cell: Math.floor((axis.numLeadingPositions + (time - axis.offset) / axis.stride + 1e-6) / block),
      text: `${Number(time.toFixed(3))} s`,
      tick: true,
    }));
  return [...(cell * block >= LABEL_HEIGHT && block === 1 ? leading : []), ...marks];
}

/**
 * @param {Axis} axis
 * @param {number} cells
 * @param {number} block
 * @param {number} cell
 * @returns {Tick[]}
 */
function numberTicks(axis, cells, block, cell) {
  const count = Math.max(1, Math.min(8, Math.floor((cells * cell) / 60)));
  return niceTicks(0, axis.tokens.length, count)
    .filter((position) => position < axis.tokens.length)
    .map((position) => ({
      cell: Math.floor(Math.max(0, position - 1) / block),
      text: formatNumber(Math.max(1, Math.round(position))),
      tick: true,
    }));
}

/**
 * What an axis was cut from, as canvases: one, or one for each query; null where the page has nothing of it.
 * @param {Axis} axis
 * @returns {Promise<HTMLCanvasElement[] | null>}
 */
export async function loadImages(axis) {
  if (!axis.image) return null;
  const [, , rows, columns] = axis.image;
  const bytes = await unpackBlock(`image-${axis.index}-${axis.example}`);
  const size = 3 * rows * columns;
  return Array.from({ length: bytes.length / size }, (_, number) => {
    const canvas = createHtml("canvas", { width: columns, height: rows });
    const image = context2d(canvas).createImageData(columns, rows);
    for (let from = number * size, to = 0; from < (number + 1) * size; from += 3, to += 4) {
      image.data.set(bytes.subarray(from, from + 3), to);
      image.data[to + 3] = 255;
    }
    context2d(canvas).putImageData(image, 0, 0);
    return canvas;
  });
}

/**
 * The spectrogram of an example's own frames, low frequencies below, loud dark on light and light on dark.
 * @param {Axis} axis
 * @returns {Promise<HTMLCanvasElement | null>}
 */
export async function loadSpectrogram(axis) {
  if (!axis.spectrogram) return null;
  const [bins, times, longest] = axis.spectrogram;
  const bytes = await unpackBlock(`spectrogram-${axis.index}-${axis.example}`);
  const own = Math.max(1, Math.min(times, Math.round((times * (axis.tokens.length - axis.numLeadingPositions)) / longest)));
  const canvas = createHtml("canvas", { width: own, height: bins });
  const image = context2d(canvas).createImageData(own, bins);
  const pixels = new Uint32Array(image.data.buffer);
  const { sound } = pixelTables();
  for (let bin = 0; bin < bins; bin++)
    for (let time = 0; time < own; time++) pixels[(bins - 1 - bin) * own + time] = sound[bytes[bin * times + time]];
  context2d(canvas).putImageData(image, 0, 0);
  return canvas;
}
