// Small pictures in rows that scroll sideways: one for each query, layer or head, the map drawn over each of them; or
// the picture that each query has of its own, as it is, with the key that it reads most beneath it.

import { make } from "../../../pages/dom.js";
import { spaced } from "../../../pages/formatting.js";
import { axisOf, picturesOf, positionName } from "./axes.js";
import { named } from "./head_grid.js";
import { goByArrows, SINGULAR } from "./head_roles.js";
import { headName } from "./head_statistics.js";
import {
  hasPictures, largestOf, outlines, paintBare, paintPicture, patchesRead, pictureFrame, pictureOfQuery, pictureSize,
  restingQuery, whatIsRead,
} from "./image_overlay.js";
import { finestLevel, planeAt } from "./map_data.js";
import { positionText } from "./token_highlights.js";
import { written } from "./tokens.js";

const SMALL = { query: 104, own: 104, layer: 104, head: 74 }; // pixels of the screen a picture
const MANY = 24; // heads that are shown at once, of all layers; where there are more, those of one layer

// What a strip goes over: its rows of places, { layer, head, query } where a picture differs from the state; the name
// of a place; and the strip's title.
const STRIPS = {
  query: {
    rows: (_, axes) => [axes.query.tokens.map((_, query) => ({ query }))],
    name: ({ query }, _, axes) => written(positionText(axes.query, query), 24),
    title: (words, axes) =>
      `Every ${SINGULAR[axes.query.kind]} of ${spaced(axes.query.name)}, ${words.layer}, ${words.head}`,
  },
  own: {
    rows: (_, axes) => [axes.query.tokens.map((_, query) => ({ query }))],
    name: ({ query }, _, axes) => written(positionText(axes.query, query), 24),
    title: (words, axes) =>
      `Every ${SINGULAR[axes.query.kind]} of ${spaced(axes.query.name)}, and what it reads most, ` +
      `${words.layer}, ${words.head}`,
  },
  layer: {
    rows: (site) => [site.layers.map((_, layer) => ({ layer }))],
    name: ({ layer }, site) => [named("layer", site.layers[layer])],
    title: (words) => `${words.read}, layer after layer, ${words.head}`,
  },
  head: {
    rows: (site) =>
      ofAllLayers(site)
        ? site.layers.map((_, layer) => site.heads.map((_, head) => ({ layer, head })))
        : [site.heads.map((_, head) => ({ head }))],
    name: ({ layer, head }, site) => [layer === undefined ? named("head", site.heads[head]) : headName(site, layer, head)],
    title: (words, _, site) => `${words.read}, ${ofAllLayers(site) ? "all heads" : `the heads of ${words.layer}`}`,
  },
};

const ofAllLayers = ({ layers, heads }) => layers.length > 1 && layers.length * heads.length <= MANY;

let strips = null;

/**
 * Which strips a view of a site has: of queries that are no patches, of layers with one query each, and of heads; or of
 * queries with pictures of their own, whose keys are no patches.
 */
function stripsOf(shown, axes) {
  if (axes.key.kind !== "grid" || !axes.key.picture) return hasPictures(axes.query) ? ["own"] : [];
  const { site } = shown;
  const single = axes.query.tokens.length === 1;
  const kinds = [];
  if (axes.query.kind !== "grid" && !single) kinds.push("query");
  if ((single || shown.layers) && site.layers.length > 1) kinds.push("layer");
  // What is combined over the layers has no heads.
  if (!shown.layers && site.heads.length > 1) kinds.push("head");
  return kinds;
}

/** Draw the strips of what is shown into `place`; `choose(changes)` is called where a picture is picked. */
export function drawStrips(place, shown, state, choose) {
  const { site } = shown;
  const axes = { query: axisOf(site, "query", state.example), key: axisOf(site, "key", state.example) };
  const kinds = stripsOf(shown, axes);
  const name = [state.site, state.example, ...kinds].join(" ");
  if (strips?.name !== name) {
    // A query that is held already is released.
    const pick = ({ query, ...others }) =>
      choose(query === undefined ? others : { row: query === state.row ? null : query });
    const boxes = kinds.map((kind) => buildStrip(kind, axes, site, pick));
    strips = { name, boxes, pictures: boxes.length ? picturesOf(picturedBy(kinds[0], axes)) : null };
    place.replaceChildren(...boxes.map(({ element }) => element));
  }
  for (const box of strips.boxes) paintStrip(box, strips.pictures, axes, shown, { ...state });
}

/** The axis whose pictures a strip shows. */
const picturedBy = (kind, axes) => (kind === "own" ? axes.query : axes.key);

function buildStrip(kind, axes, site, pick) {
  const size = pictureSize(picturedBy(kind, axes), SMALL[kind]);
  const rows = STRIPS[kind].rows(site, axes);
  const items = rows.flat().map((place) => {
    const { frame, canvas, svg } = pictureFrame(size, { "aria-hidden": "true" });
    const name = make("span", { class: "strip-name", dir: "auto" }, ...STRIPS[kind].name(place, site, axes));
    const weight = make("span", { class: "strip-weight" });
    const button = make("button", { type: "button", class: "strip-item", tabindex: -1 }, frame, name, weight);
    button.addEventListener("click", () => pick(place));
    return { place, canvas, svg, button, name, weight };
  });
  const title = make("p", { class: "note" });
  const strip = make("div", { class: "picture-strip", role: "group" }, ...items.map(({ button }) => button));
  strip.style.setProperty("--across", rows[0].length);
  goByArrows(strip);
  return { kind, items, title, strip, size, element: make("div", {}, title, strip), wanted: null };
}

async function paintStrip(box, pictures, axes, shown, state) {
  const { items, title, strip } = box;
  const wanted = (box.wanted = {});
  const [images, ...planes] = await Promise.all([
    pictures,
    ...items.map(({ place: { layer = state.layer, head = state.head } }) => planeShown(shown, state, layer, head)),
  ]);
  // While these were unpacked, something else may have been asked for.
  if (box.wanted !== wanted) return;
  const held = state.row ?? restingQuery(axes);
  title.textContent = stripTitle(box.kind, shown, state, axes, held);
  strip.setAttribute("aria-label", title.textContent);
  const now = { layer: state.layer, head: state.head, query: state.row };
  const chosen = items.find(({ place }) => Object.keys(place).every((each) => place[each] === now[each]));
  items.forEach((item, at) => {
    const { place, canvas, svg, button, name, weight } = item;
    const query = place.query ?? held;
    const patches = patchesRead(planes[at], axes.key, query);
    if (box.kind === "own") paintOwn(item, images[query], axes.key, patches);
    else {
      paintPicture(canvas, pictureOfQuery(images, query), axes.key, patches);
      svg.replaceChildren(...outlines(axes, "key", box.size.scale, state, shown.site.links, query, null));
      weight.textContent = largestOf(patches).toFixed(2);
      button.title = `${name.textContent}: the clearest patch has weight ${largestOf(patches).toFixed(3)}`;
    }
    button.setAttribute("aria-pressed", item === chosen);
    button.tabIndex = item === (chosen ?? items[0]) ? 0 : -1;
  });
  if (chosen) bringIntoSight(strip, chosen.button);
}

function paintOwn({ canvas, weight, button, name }, picture, keys, weights) {
  paintBare(canvas, picture);
  const largest = Math.max(...weights);
  const most = weights.indexOf(largest);
  weight.replaceChildren(...written(positionText(keys, most), 12), ` ${largest.toFixed(2)}`);
  button.title = `${name.textContent}: reads ${positionName(keys, most)} most, with weight ${largest.toFixed(3)}`;
}

function stripTitle(kind, shown, state, axes, query) {
  const { site } = shown;
  const words = {
    layer: named("layer", site.layers[state.layer]),
    head: shown.heads ?? named("head", site.heads[state.head]),
    read: `${whatIsRead(shown, axes, query)}${query !== null && query < axes.query.leading ? " (the class token)" : ""}`,
  };
  return STRIPS[kind].title(words, axes, site);
}

/** The plane of any head or layer in the view that is shown: the finest, where the page has one of it at hand. */
function planeShown(shown, state, layer, head) {
  if (shown.layers) return shown.layers[layer];
  if (layer === state.layer && head === state.head) return shown.detail;
  const plane = shown.wall(layer, head);
  if (!plane.pooled || shown.signed || state.view !== "weights") return plane;
  return planeAt(state.step, state.site, state.example, finestLevel(shown.site, state.step), layer, head);
}

/** Scroll a strip sideways, and nothing else, until one of its children is seen. */
function bringIntoSight(strip, child) {
  const [left, width] = [child.offsetLeft - strip.offsetLeft, child.offsetWidth];
  if (left < strip.scrollLeft || left + width > strip.scrollLeft + strip.clientWidth)
    strip.scrollLeft = left - (strip.clientWidth - width) / 2;
}
