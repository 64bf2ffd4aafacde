// Planes of weights as pixels, in the ramp of the color scheme that holds now.

import { colorIndex, colorRamps, cssColor, rampColors } from "../../../pages/color_scale.js";
import { context2d } from "../../../pages/dom.js";
import { withMinusSign } from "../../../pages/formatting.js";

/** @import { HeadMap } from "./map_data.js" */

/** @type {WeakMap<HTMLCanvasElement, ImageData>} The pixels of a canvas, which a step paints anew. */
const images = new WeakMap();
/** @type {{ ramp: object, byBits: Uint32Array, sound: Uint32Array } | null} */
let tables = null;

/** Colors as a canvas holds its pixels: by the upper half of a number's bits, and those of sound. */
export function pixelTables() {
  if (tables?.ramp === colorRamps) return tables;
  const byBits = new Uint32Array(1 << 16);
  const value = new Float32Array(1);
  const bits = new Uint32Array(value.buffer);
  const [above, below] = [pixelsOf(colorRamps.more), pixelsOf(colorRamps.less)];
  for (let upper = 0; upper < byBits.length; upper++) {
    bits[0] = (upper << 16) | 0x8000;
    byBits[upper] = Number.isNaN(value[0]) ? 0 : (value[0] < 0 ? below : above)[colorIndex(value[0])];
  }
  tables = { ramp: colorRamps, byBits, sound: pixelsOf(rampColors("sound")) };
  return tables;
}

/**
 * Colors as a canvas holds its pixels, whatever the machine's byte order.
 * @param {number[][]} colors
 */
function pixelsOf(colors) {
  return new Uint32Array(Uint8Array.from(colors.flatMap((color) => [...color, 255])).buffer);
}

/**
 * Fill a canvas with one pixel for each cell of a plane; what a causal mask hides stays empty.
 * @param {HTMLCanvasElement} canvas
 * @param {HeadMap} plane
 * @param {boolean} causal
 */
export function paintPlane(canvas, plane, causal) {
  const { queries, keys, values, queryBlock, keyBlock } = plane;
  let image = images.get(canvas);
  if (canvas.width !== keys || canvas.height !== queries || !image) {
    Object.assign(canvas, { width: Math.max(1, keys), height: Math.max(1, queries) });
    image = context2d(canvas).createImageData(canvas.width, canvas.height);
    images.set(canvas, image);
  }
  const pixels = new Uint32Array(image.data.buffer);
  // A color by the upper half of a number's bits (sign, exponent, seven bits of the fraction): this runs for every
  // cell of every head, and a root a cell would take several times as long.
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  const { byBits } = pixelTables();
  if (causal) pixels.fill(0);
  for (let query = 0; query < queries; query++) {
    const seen = causal ? Math.min(keys, Math.floor(((query + 1) * queryBlock - 1) / keyBlock) + 1) : keys;
    const row = query * keys;
    for (let at = row; at < row + seen; at++) pixels[at] = byBits[bits[at] >>> 16];
  }
  context2d(canvas).putImageData(image, 0, 0);
  return canvas;
}

/**
 * Whether a causal mask hides a whole cell of a plane.
 * @param {HeadMap} plane
 * @param {boolean} causal
 * @param {number} query
 * @param {number} key
 */
export const hides = (plane, causal, query, key) => causal && key * plane.keyBlock > (query + 1) * plane.queryBlock - 1;

/**
 * The legend that says which color is which weight, or which difference: its shades, marks and name.
 * @param {boolean} signed
 * @returns {{ name: string, colorAt: (share: number) => string, marks: [number, string][] }}
 */
export function weightScale(signed) {
  const values = signed ? [-1, -0.1, 0, 0.1, 1] : [0, 0.1, 0.5, 1];
  /** @param {number} value */
  const place = (value) => Math.sign(value) * Math.sqrt(Math.abs(value));
  return {
    name: signed ? "difference (hole: lower)" : "weight",
    colorAt: (/** @type {number} */ share) =>
      cssColor(signed ? Math.sign(share - 0.5) * (2 * share - 1) ** 2 : share ** 2),
    marks: values.map((value) => [signed ? (place(value) + 1) / 2 : place(value), withMinusSign(String(value))]),
  };
}
