// The image that an axis was cut from, under the weights of a row: what is read stays clear, all else lies in fog.

import { byId, context2d, createHtml, createSvg } from "../../../pages/dom.js";
import { formatNumber, withSpaces } from "../../../pages/formatting.js";
import { loadImages, positionName, siteAxis } from "./axes.js";
import { poolingText } from "./captions.js";
import { columnMeans } from "./row_and_column_bars.js";
import { data } from "./page_data.js";

/** @import { Attributes } from "../../../pages/types.js" */
/** @import { HeadMap } from "./map_data.js" */
/** @import { Axis, AxisPair, HeadView, Highlight, Hold, Painter, PointAt, Side, Site, ViewState } from "./types.js" */

const IMAGE_SIZE = 340; // pixels of the screen, at most
const FOG_GRAY = 128; // its gray: on a dark image and on a bright one alike what stays clear is seen
const MAX_FOG_OPACITY = 0.88; // of the fog, where nothing is read

/**
 * The sides in pixels of the screen of an axis's image within a square of `room`.
 * @param {Axis} axis
 * @param {number} room
 */
export function imageSize(axis, room) {
  const [height, width] = axis.image ?? [1, 1];
  const scale = room / Math.max(width, height);
  return { scale, width: Math.round(width * scale), height: Math.round(height * scale) };
}

/**
 * A canvas and an SVG over it, for `paintImageOverlay` and `patchOutlines`.
 * @param {{ width: number, height: number }} options
 * @param {Attributes} attributes
 */
export function imageFrame({ width, height }, attributes) {
  const canvas = createHtml("canvas", { width, height });
  const svg = createSvg("svg", { width, height, ...attributes });
  const frame = createHtml("span", { class: "image-frame" }, canvas, svg);
  frame.style.width = `${width}px`;
  frame.style.height = `${height}px`;
  return { frame, canvas, svg };
}

/**
 * Where each query has an image of its own, that one, or the first for all of them; else the only one.
 * @param {HTMLCanvasElement[]} images
 * @param {number | null} query
 */
export const imageOfQuery = (images, query) => images[images.length > 1 ? (query ?? 0) : 0];

/**
 * Whether the positions of an axis have images of their own and are not places of one.
 * @param {Axis} axis
 */
export const hasImagePerPosition = (axis) => axis.kind !== "grid" && Boolean(axis.image);

/**
 * Draw an image as it is; returns what else can be drawn on it.
 * @param {HTMLCanvasElement} canvas
 * @param {HTMLCanvasElement} image
 */
export function paintImage(canvas, image) {
  const context = context2d(canvas);
  context.imageSmoothingEnabled = image.width > canvas.width;
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return context;
}

/**
 * Draw an image in the fog that the weights of its patches leave; the largest weight leaves none.
 * @param {HTMLCanvasElement} canvas
 * @param {HTMLCanvasElement} image
 * @param {Axis} axis
 * @param {number[]} patches
 */
export function paintImageOverlay(canvas, image, axis, patches) {
  const [rows, columns] = axis.shape;
  const fog = createHtml("canvas", { width: columns, height: rows });
  const pixels = new ImageData(columns, rows);
  const largest = maxWeight(patches);
  patches.forEach((value, patch) => {
    const thick = MAX_FOG_OPACITY * (1 - Math.sqrt(Math.max(0, value) / largest));
    pixels.data.set([FOG_GRAY, FOG_GRAY, FOG_GRAY, Math.round(255 * thick)], 4 * patch);
  });
  context2d(fog).putImageData(pixels, 0, 0);
  const context = paintImage(canvas, image);
  const scale = canvas.width / (axis.image?.[1] ?? 1);
  context.imageSmoothingEnabled = false;
  const side = scale * axis.stride;
  context.drawImage(fog, scale * axis.offset, scale * axis.offset, columns * side, rows * side);
}

/** @param {number[]} patches */
export const maxWeight = (patches) => patches.reduce((a, b) => Math.max(a, b), 1e-9);

/**
 * Outlines of patches: of those that are linked to the query, of the query's own and of the key's.
 * @param {AxisPair} axes
 * @param {Side} side
 * @param {number} scale
 * @param {ViewState} state
 * @param {Site["goldAlignments"]} goldAlignments
 * @param {number | null} query
 * @param {number | null} key
 */
export function patchOutlines(axes, side, scale, state, goldAlignments, query, key) {
  const axis = axes[side];
  /**
   * @param {number | null} position
   * @param {...string} kinds
   */
  const outline = (position, ...kinds) => {
    if (position === null || position < axis.numLeadingPositions) return [];
    const patch = position - axis.numLeadingPositions;
    /** @param {number} cell */
    const at = (cell) => scale * (axis.offset + axis.stride * cell);
    const [x, y] = [at(patch % axis.shape[1]), at(Math.floor(patch / axis.shape[1]))];
    const size = { width: scale * axis.stride, height: scale * axis.stride };
    return kinds.map((kind) => createSvg("rect", { class: kind, x, y, ...size }));
  };
  const linked = side === "key" && query !== null && state.goldAlignments ? (goldAlignments?.[state.example] ?? []) : [];
  const gold = linked.filter(([from]) => from === query);
  return [
    ...gold.flatMap(([, to, sure]) => outline(to, ...(sure ? ["halo", "link sure"] : ["link possible"]))),
    ...(side === "query" || axes.query.name === axis.name ? outline(query, "halo", "frame") : []),
    ...(side === "key" ? outline(key, "halo", "frame column") : []),
  ];
}

/**
 * The query whose row is shown while none is held: the class token, or the only one; null where there is neither.
 * @param {AxisPair} axes
 */
export const defaultQuery = ({ query }) =>
  (query.kind === "grid" && query.numLeadingPositions) || query.tokens.length === 1 ? 0 : null;

/**
 * The weights with which a query, or for null all on average, reads each patch of the keys.
 * @param {HeadMap} plane
 * @param {Axis} axis
 * @param {number | null} query
 */
export function patchWeights(plane, axis, query) {
  const row = query === null ? columnMeans(plane) : null;
  const at = query === null ? 0 : Math.floor(query / plane.queryBlock);
  return Array.from({ length: axis.tokens.length - axis.numLeadingPositions }, (_, patch) => {
    const cell = Math.floor((patch + axis.numLeadingPositions) / plane.keyBlock);
    return row ? row[cell] : plane.at(at, cell);
  });
}

/**
 * What a query does, as the view has it: "What “class” reads".
 * @param {HeadView} shown
 * @param {AxisPair} axes
 * @param {number | null} query
 */
export function describeRow(shown, axes, query) {
  // The only one of its kind is called by its kind.
  /** @param {number} at */
  const name = (at) =>
    axes.query.tokens.length > 1 ? positionName(axes.query, at) : `the ${withSpaces(axes.query.name)}`;
  const by = query === null ? "all queries" : name(query);
  const pooling = poolingText(shown.detail, shown.signed);
  const end = (query === null ? ", on average" : "") + (pooling && ` (pooled: ${pooling})`);
  if (shown.signed) return `Where ${by} ${query === null ? "read" : "reads"} more${end}`;
  return `What ${by} ${shown.verbs?.[0] ?? (query === null ? "read" : "reads")}${end}`;
}

/** @type {{ name: string, element: HTMLElement | null, paint: Painter } | null} */
let largeImage = null; // the large image, its name and how to paint it

/**
 * Draw the example's image into `place`, under what the query at hand reads; a click on a patch holds it, where
 * patches are queries. Where each query has an image of its own and keys are no patches, that one as it is. Returns
 * the function that highlights positions: (query, key) => nothing.
 * @param {HTMLElement} place
 * @param {HeadView} shown
 * @param {ViewState} state
 * @param {PointAt} look
 * @param {Hold} hold
 */
export function drawImageOverlay(place, shown, state, look, hold) {
  const axes = { query: siteAxis(shown.site, "query", state.example), key: siteAxis(shown.site, "key", state.example) };
  /** @type {Side[]} */
  const sides = ["key", "query"];
  const side = sides.find((each) => axes[each].kind === "grid" && axes[each].image);
  const bare = !side && hasImagePerPosition(axes.query);
  const name = [state.site, state.example].join(" ");
  if (largeImage?.name !== name) {
    const nothing = { element: null, paint: () => {} };
    largeImage = { name, ...(side ? overlayFigure(axes, side, look, hold) : bare ? imageFigure(axes.query) : nothing) };
    place.replaceChildren(...(largeImage.element ? [largeImage.element] : []));
    byId("image-title").textContent = bare ? "Image by image" : "Attention over the image";
    // Of an axis without an image the panel has the distances alone, which have a title of their own.
    byId("image-title").hidden = !largeImage.element;
    byId("image-panel").hidden = !largeImage.element && !data.roles.distances[state.site];
  }
  const { paint } = largeImage;
  /** @type {Highlight} */
  const highlight = (query, key) => paint(shown, state, query, key);
  return highlight;
}

/**
 * The large image: { element, paint(shown, state, query, key) }.
 * @param {AxisPair} axes
 * @param {Side} side
 * @param {PointAt} look
 * @param {Hold} hold
 */
function overlayFigure(axes, side, look, hold) {
  const axis = axes[side];
  const size = imageSize(axis, IMAGE_SIZE);
  const { frame, canvas, svg } = imageFrame(size, { role: "img", tabindex: 0 });
  svg.setAttribute("aria-label", "the image; arrow keys are the page's, j and k move the held patch");
  const caption = createHtml("p", { class: "note" });
  const both = axes.query.name === axes.key.name;
  /**
   * @param {number} patch
   * @param {boolean} shift
   * @returns {[number | null, number | null]}
   */
  const asked = (patch, shift) => (side === "query" || (both && !shift) ? [patch, null] : [null, patch]);
  /** @param {MouseEvent} event */
  const patchAt = (event) => {
    const bounds = svg.getBoundingClientRect();
    const [column, row] = [event.clientX - bounds.left, event.clientY - bounds.top].map((place) =>
      Math.floor((place / size.scale - axis.offset) / axis.stride),
    );
    const inside = row >= 0 && column >= 0 && row < axis.shape[0] && column < axis.shape[1];
    const patch = axis.numLeadingPositions + row * axis.shape[1] + column;
    return inside && patch < axis.tokens.length ? patch : null;
  };
  svg.addEventListener("pointermove", (event) => {
    const patch = patchAt(event);
    if (patch === null) look(null, null);
    else look(...asked(patch, event.shiftKey));
  });
  svg.addEventListener("pointerleave", () => look(null, null));
  svg.addEventListener("click", (event) => {
    const patch = patchAt(event);
    if (patch !== null) hold(...asked(patch, event.shiftKey));
  });
  const made = loadImages(axis);
  let requests = 0;
  /** @type {Painter} */
  const paint = (shown, state, query, key) => {
    const now = ++requests;
    made.then((images) => {
      if (requests !== now || !images) return;
      const { patches, words, of } = overlayContent(shown, axes, side, query, key);
      paintImageOverlay(canvas, imageOfQuery(images, of), axis, patches);
      svg.replaceChildren(...patchOutlines(axes, side, size.scale, state, shown.site.goldAlignments, of, key));
      caption.textContent = words;
    });
  };
  return { element: createHtml("figure", { class: "image-figure" }, frame, caption), paint };
}

/**
 * The large image of one query, the last of them while none is at hand.
 * @param {Axis} axis
 */
function imageFigure(axis) {
  const { frame, canvas, svg } = imageFrame(imageSize(axis, IMAGE_SIZE), { role: "img" });
  const caption = createHtml("p", { class: "note" });
  const made = loadImages(axis);
  let last = -1;
  /**
   * @param {HeadView} _shown
   * @param {ViewState} _state
   * @param {number | null} query
   */
  const paint = (_shown, _state, query) => {
    const at = (last = query ?? axis.tokens.length - 1);
    made.then((images) => {
      if (last !== at || !images) return;
      paintImage(canvas, images[at]);
      const words = `${positionName(axis, at)}, ${formatNumber(at + 1)} of ${formatNumber(axis.tokens.length)}`;
      svg.setAttribute("aria-label", `image ${words}`);
      caption.textContent = words;
    });
  };
  return { element: createHtml("figure", { class: "image-figure" }, frame, caption), paint };
}

/**
 * What the large image shows: the weight of every patch, the words for it, and the query whose row it is.
 * @param {HeadView} shown
 * @param {AxisPair} axes
 * @param {Side} side
 * @param {number | null} query
 * @param {number | null} key
 */
function overlayContent(shown, axes, side, query, key) {
  const axis = axes[side];
  const plane = shown.detail;
  /** @param {(position: number) => number} value */
  const patchesOf = (value) => axis.tokens.slice(axis.numLeadingPositions).map((_, patch) => value(patch + axis.numLeadingPositions));
  /**
   * @param {number} from
   * @param {number} to
   */
  const weightOf = (from, to) => plane.at(Math.floor(from / plane.queryBlock), Math.floor(to / plane.keyBlock));
  const column = query === null && key !== null && axes.query.kind === "grid";
  if (column && (side === "query" || axes.query.name === axis.name)) {
    const patches = patchesOf((at) => weightOf(at, key));
    return { patches, of: null, words: `What reads ${positionName(axes.key, key)}${maxWeightText(patches)}` };
  }
  if (side === "query") return { patches: patchesOf(() => 1), of: query, words: "Pick a patch" };
  const of = query ?? defaultQuery(axes);
  const patches = patchWeights(plane, axis, of);
  const rests = of !== query && axes.query.numLeadingPositions ? " (the class token; click the image to hold a patch)" : "";
  const leading = axis.tokens.slice(0, of === null ? 0 : axis.numLeadingPositions);
  const aside = leading.map((_, at) => `, ${positionName(axis, at)} ${weightOf(of ?? 0, at).toFixed(3)}`).join("");
  return { patches, of, words: `${describeRow(shown, axes, of)}${rests}${maxWeightText(patches)}${aside}` };
}

/** @param {number[]} patches */
const maxWeightText = (patches) => `; the clearest patch has weight ${maxWeight(patches).toFixed(3)}`;
