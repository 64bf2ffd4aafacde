// Small images in rows that scroll sideways: one for each query, layer or head, the map drawn over each of them; or
// the image that each query has of its own, as it is, with the key that it reads most beneath it.

import { createHtml } from "../../../pages/dom.js";
import { withSpaces } from "../../../pages/formatting.js";
import { loadImages, positionName, siteAxis } from "./axes.js";
import { numberedName } from "./head_grid.js";
import { addArrowNavigation, POSITION_NOUNS } from "./head_roles.js";
import { headName } from "./head_statistics.js";
import {
  defaultQuery,
  describeRow,
  hasImagePerPosition,
  imageFrame,
  imageOfQuery,
  imageSize,
  maxWeight,
  paintImage,
  paintImageOverlay,
  patchOutlines,
  patchWeights,
} from "./image_overlay.js";
import { finestLevel, loadHeadMap } from "./map_data.js";
import { positionText } from "./token_highlights.js";
import { tokenNodes } from "./tokens.js";

/** @import { Axis, AxisPair, Choose, HeadView, Site, Strip, StripDefinition, StripItem, StripKind, StripPlace, ViewState } from "./types.js" */

const STRIP_IMAGE_SIZE = { query: 104, own: 104, layer: 104, head: 74 }; // pixels of the screen an image
const MAX_STRIP_HEADS = 24; // heads that are shown at once, of all layers; where there are more, those of one layer

// What a strip goes over: its rows of places, { layer, head, query } where an image differs from the state; the name
// of a place; and the strip's title.
/** @type {Record<StripKind, StripDefinition>} */
const STRIP_KINDS = {
  query: {
    rows: (_, axes) => [axes.query.tokens.map((_, query) => ({ query }))],
    name: ({ query = 0 }, _, axes) => tokenNodes(positionText(axes.query, query), 24),
    title: (words, axes) =>
      `Every ${POSITION_NOUNS[axes.query.kind]} of ${withSpaces(axes.query.name)}, ${words.layer}, ${words.head}`,
  },
  own: {
    rows: (_, axes) => [axes.query.tokens.map((_, query) => ({ query }))],
    name: ({ query = 0 }, _, axes) => tokenNodes(positionText(axes.query, query), 24),
    title: (words, axes) =>
      `Every ${POSITION_NOUNS[axes.query.kind]} of ${withSpaces(axes.query.name)}, and what it reads most, ` +
      `${words.layer}, ${words.head}`,
  },
  layer: {
    rows: (site) => [site.layers.map((_, layer) => ({ layer }))],
    name: ({ layer = 0 }, site) => [numberedName("layer", site.layers[layer])],
    title: (words) => `${words.read}, layer after layer, ${words.head}`,
  },
  head: {
    rows: (site) =>
      showsAllLayers(site)
        ? site.layers.map((_, layer) => site.heads.map((_, head) => ({ layer, head })))
        : [site.heads.map((_, head) => ({ head }))],
    name: ({ layer, head = 0 }, site) => [
      layer === undefined ? numberedName("head", site.heads[head]) : headName(site, layer, head),
    ],
    title: (words, _, site) => `${words.read}, ${showsAllLayers(site) ? "all heads" : `the heads of ${words.layer}`}`,
  },
};

/** @param {Site} site */
const showsAllLayers = ({ layers, heads }) => layers.length > 1 && layers.length * heads.length <= MAX_STRIP_HEADS;

/** @type {{ name: string, boxes: Strip[], images: Promise<HTMLCanvasElement[] | null> | null } | null} */
let imageStrips = null;

/**
 * Which strips a view of a site has: of queries that are no patches, of layers with one query each, and of heads; or of
 * queries with images of their own, whose keys are no patches.
 * @param {HeadView} shown
 * @param {AxisPair} axes
 * @returns {StripKind[]}
 */
function applicableStrips(shown, axes) {
  if (axes.key.kind !== "grid" || !axes.key.image) return hasImagePerPosition(axes.query) ? ["own"] : [];
  const { site } = shown;
  const single = axes.query.tokens.length === 1;
  /** @type {StripKind[]} */
  const kinds = [];
  if (axes.query.kind !== "grid" && !single) kinds.push("query");
  if ((single || shown.layers) && site.layers.length > 1) kinds.push("layer");
  // What is combined over the layers has no heads.
  if (!shown.layers && site.heads.length > 1) kinds.push("head");
  return kinds;
}

/**
 * Draw the strips of what is shown into `place`; `choose(changes)` is called where an image is picked.
 * @param {HTMLElement} place
 * @param {HeadView} shown
 * @param {ViewState} state
 * @param {Choose} choose
 */
export function drawImageStrips(place, shown, state, choose) {
  const { site } = shown;
  const axes = { query: siteAxis(site, "query", state.example), key: siteAxis(site, "key", state.example) };
  const kinds = applicableStrips(shown, axes);
  const name = [state.site, state.example, ...kinds].join(" ");
  if (imageStrips?.name !== name) {
    // A query that is held already is released.
    /** @param {StripPlace} place */
    const pick = ({ query, ...others }) =>
      choose(query === undefined ? others : { row: query === state.row ? null : query });
    const boxes = kinds.map((kind) => buildStrip(kind, axes, site, pick));
    imageStrips = { name, boxes, images: boxes.length ? loadImages(imageAxis(kinds[0], axes)) : null };
    place.replaceChildren(...boxes.map(({ element }) => element));
  }
  for (const box of imageStrips.boxes) paintStrip(box, imageStrips.images, axes, shown, { ...state });
}

/**
 * The axis whose images a strip shows.
 * @param {StripKind} kind
 * @param {AxisPair} axes
 */
const imageAxis = (kind, axes) => (kind === "own" ? axes.query : axes.key);

/**
 * @param {StripKind} kind
 * @param {AxisPair} axes
 * @param {Site} site
 * @param {(place: StripPlace) => void} pick
 */
function buildStrip(kind, axes, site, pick) {
  const size = imageSize(imageAxis(kind, axes), STRIP_IMAGE_SIZE[kind]);
  const rows = STRIP_KINDS[kind].rows(site, axes);
  const items = rows.flat().map((place) => {
    const { frame, canvas, svg } = imageFrame(size, { "aria-hidden": "true" });
    const name = createHtml("span", { class: "strip-name", dir: "auto" }, ...STRIP_KINDS[kind].name(place, site, axes));
    const weight = createHtml("span", { class: "strip-weight" });
    const button = createHtml("button", { type: "button", class: "strip-item", tabindex: -1 }, frame, name, weight);
    button.addEventListener("click", () => pick(place));
    return { place, canvas, svg, button, name, weight };
  });
  const title = createHtml("p", { class: "note" });
  const strip = createHtml("div", { class: "image-strip", role: "group" }, ...items.map(({ button }) => button));
  strip.style.setProperty("--across", String(rows[0].length));
  addArrowNavigation(strip);
  return { kind, items, title, strip, size, element: createHtml("div", {}, title, strip), wanted: null };
}

/**
 * @param {Strip} box
 * @param {Promise<HTMLCanvasElement[] | null> | null} loading
 * @param {AxisPair} axes
 * @param {HeadView} shown
 * @param {ViewState} state
 */
async function paintStrip(box, loading, axes, shown, state) {
  const { items, title, strip } = box;
  const wanted = (box.wanted = {});
  const [images, ...planes] = await Promise.all([
    loading,
    ...items.map(({ place: { layer = state.layer, head = state.head } }) => stripHeadMap(shown, state, layer, head)),
  ]);
  // While these were unpacked, something else may have been asked for.
  if (box.wanted !== wanted || !images) return;
  const held = state.row ?? defaultQuery(axes);
  title.textContent = stripTitle(box.kind, shown, state, axes, held);
  strip.setAttribute("aria-label", title.textContent);
  /** @type {StripPlace} */
  const now = { layer: state.layer, head: state.head, query: state.row ?? undefined };
  /** @param {StripPlace} place */
  const isChosen = ({ query = now.query, layer = now.layer, head = now.head }) =>
    query === now.query && layer === now.layer && head === now.head;
  const chosen = items.find(({ place }) => isChosen(place));
  items.forEach((item, at) => {
    const { place, canvas, svg, button, name, weight } = item;
    const query = place.query ?? held;
    const patches = patchWeights(planes[at], axes.key, query);
    if (box.kind === "own") paintQueryImage(item, images[query ?? 0], axes.key, patches);
    else {
      paintImageOverlay(canvas, imageOfQuery(images, query), axes.key, patches);
      svg.replaceChildren(...patchOutlines(axes, "key", box.size.scale, state, shown.site.goldAlignments, query, null));
      weight.textContent = maxWeight(patches).toFixed(2);
      button.title = `${name.textContent}: the clearest patch has weight ${maxWeight(patches).toFixed(3)}`;
    }
    button.setAttribute("aria-pressed", String(item === chosen));
    button.tabIndex = item === (chosen ?? items[0]) ? 0 : -1;
  });
  if (chosen) scrollToChild(strip, chosen.button);
}

/**
 * @param {StripItem} item
 * @param {HTMLCanvasElement} image
 * @param {Axis} keys
 * @param {number[]} weights
 */
function paintQueryImage({ canvas, weight, button, name }, image, keys, weights) {
  paintImage(canvas, image);
  const largest = Math.max(...weights);
  const most = weights.indexOf(largest);
  weight.replaceChildren(...tokenNodes(positionText(keys, most), 12), ` ${largest.toFixed(2)}`);
  button.title = `${name.textContent}: reads ${positionName(keys, most)} most, with weight ${largest.toFixed(3)}`;
}

/**
 * @param {StripKind} kind
 * @param {HeadView} shown
 * @param {ViewState} state
 * @param {AxisPair} axes
 * @param {number | null} query
 */
function stripTitle(kind, shown, state, axes, query) {
  const { site } = shown;
  const words = {
    layer: numberedName("layer", site.layers[state.layer]),
    head: shown.heads ?? numberedName("head", site.heads[state.head]),
    read: `${describeRow(shown, axes, query)}${query !== null && query < axes.query.numLeadingPositions ? " (the class token)" : ""}`,
  };
  return STRIP_KINDS[kind].title(words, axes, site);
}

/**
 * The plane of any head or layer in the view that is shown: the finest, where the page has one of it at hand.
 * @param {HeadView} shown
 * @param {ViewState} state
 * @param {number} layer
 * @param {number} head
 */
function stripHeadMap(shown, state, layer, head) {
  if (shown.layers) return shown.layers[layer];
  if (layer === state.layer && head === state.head) return shown.detail;
  const plane = shown.gridMap(layer, head);
  if (!plane.pooled || shown.signed || state.view !== "weights") return plane;
  return loadHeadMap(state.step, state.site, state.example, finestLevel(shown.site, state.step), layer, head);
}

/**
 * Scroll a strip sideways, and nothing else, until one of its children is seen.
 * @param {HTMLElement} strip
 * @param {HTMLElement} child
 */
function scrollToChild(strip, child) {
  const [left, width] = [child.offsetLeft - strip.offsetLeft, child.offsetWidth];
  if (left < strip.scrollLeft || left + width > strip.scrollLeft + strip.clientWidth)
    strip.scrollLeft = left - (strip.clientWidth - width) / 2;
}
