// Query times key, component by component, of one query of one head: what its logits are made of. Drawn where the page
// of a text was asked for its vectors; see value_norms.py.

import { cssColor } from "../../../pages/color_scale.js";
import { byId, context2d, createHtml, hideTooltip, showTooltip } from "../../../pages/dom.js";
import { formatNumber, withMinusSign } from "../../../pages/formatting.js";
import { siteAxis } from "./axes.js";
import { tooltipName } from "./captions.js";
import { numberedName } from "./head_grid.js";
import { finestLevel, loadHeadMap, unpackBlock } from "./map_data.js";
import { data } from "./page_data.js";
import { siteTokens } from "./tokens.js";
import { decodeFloat16 } from "./value_weighted.js";

/** @import { AxisPair, Site, ViewState } from "./types.js" */

const MAX_KEYS = 64; // at once; of more those of the largest weights
const BAR_SIZE = { component: 12, most: 400, height: 26 };

/**
 * Draw the components of the held query of the chosen head into `place`, of the last query where none is held.
 * @param {HTMLElement} place
 * @param {ViewState} state
 */
export async function drawNeuronView(place, state) {
  const facts = data.projections?.[state.site];
  byId("neurons-panel").hidden = !facts?.vectorsRequested;
  if (!facts?.vectorsRequested) return;
  const site = data.sites[state.site];
  const head = `${numberedName("layer", site.layers[state.layer])} · ${numberedName("head", site.heads[state.head])}`;
  byId("neurons-title").textContent = `Query × key: ${head}`;
  if (!facts.queryKeyVectors) {
    byId("neurons-note").textContent =
      "The score function of this module is not a dot product, so it has no components.";
    place.replaceChildren();
    return;
  }
  /** @type {("site" | "example" | "layer" | "head" | "row" | "step")[]} */
  const asked = ["site", "example", "layer", "head", "row", "step"];
  const wanted = asked.map((part) => state[part]);
  const level = finestLevel(site, state.step);
  const [bytes, plane] = await Promise.all([
    unpackBlock(`vectors-${state.site}-${state.example}-${state.layer}`),
    loadHeadMap(state.step, state.site, state.example, level, state.layer, state.head),
  ]);
  // While these were unpacked, something else may have been asked for.
  if (asked.some((part, at) => wanted[at] !== state[part])) return;
  const { queries, keys } = siteTokens(site, state.example);
  const query = state.row ?? queries.length - 1;
  const parts = queryKeyProducts(decodeFloat16(bytes), facts.queryKeyVectors, site, state, query, queries.length, keys.length);
  const weights = plane.pooled ? null : keys.map((_, key) => plane.at(query, key));
  const seen = parts.products.map((_, key) => key).filter((key) => !site.causal || key <= query);
  /** @param {number} key */
  const size = (key) => (weights ? weights[key] : parts.dots[key]);
  const drawn = [...seen]
    .sort((a, b) => size(b) - size(a))
    .slice(0, MAX_KEYS)
    .sort((a, b) => a - b);
  const axes = { query: siteAxis(site, "query", state.example), key: siteAxis(site, "key", state.example) };
  showNeuronNote(facts.queryKeyVectors, drawn.length, seen.length);
  place.replaceChildren(neuronTable(parts, weights, drawn, axes, query, facts.queryKeyVectors));
}

/**
 * q, each key and their products of one query: { q, ks, products, dots }; G groups of heads share keys.
 * @param {Float32Array} values
 * @param {{ depth: number, groups: number }} options
 * @param {Site} site
 * @param {ViewState} state
 * @param {number} query
 * @param {number} queries
 * @param {number} keys
 */
function queryKeyProducts(values, { depth, groups }, site, { head }, query, queries, keys) {
  /** @param {number} first */
  const at = (first) => values.subarray(first, first + depth);
  const group = Math.floor(head / (site.heads.length / groups));
  const q = at((head * queries + query) * depth);
  const behind = site.heads.length * queries;
  const ks = Array.from({ length: keys }, (_, key) => at((behind + group * keys + key) * depth));
  const products = ks.map((k) => k.map((value, component) => value * q[component]));
  return { q, ks, products, dots: products.map((each) => each.reduce((sum, value) => sum + value, 0)) };
}

/**
 * @param {{ depth: number, scale: number, whole: boolean }} options
 * @param {number} drawn
 * @param {number} seen
 */
function showNeuronNote({ depth, scale, whole }, drawn, seen) {
  const added = whole ? "" : " What positions or a temperature do to a logit beside the product is not in it.";
  const few = drawn < seen ? ` The ${drawn} keys of the largest weights, of ${seen}.` : "";
  byId("neurons-note").textContent =
    `A logit is ${formatNumber(Number(scale.toPrecision(4)))} × the sum of the ${depth} products; its weight is the softmax ` +
    `over the row, as the map has it. Bars up are positive, down negative. Hold a row to choose its query.${added}${few}`;
}

/**
 * @param {ReturnType<typeof queryKeyProducts>} options
 * @param {number[] | null} weights
 * @param {number[]} drawn
 * @param {AxisPair} axes
 * @param {number} query
 * @param {{ scale: number }} options2
 */
function neuronTable({ q, ks, products, dots }, weights, drawn, axes, query, { scale }) {
  /** @param {Float32Array[]} arrays */
  const largest = (arrays) =>
    arrays.reduce((most, each) => each.reduce((a, b) => Math.max(a, Math.abs(b)), most), 1e-12);
  const most = {
    q: largest([q]),
    k: largest(drawn.map((key) => ks[key])),
    both: largest(drawn.map((key) => products[key])),
  };
  /** @param {number} value */
  const number = (value) => createHtml("td", { class: "figure" }, withMinusSign(value.toFixed(3)));
  /**
   * @param {Float32Array} values
   * @param {number} top
   * @param {(at: number) => string} words
   */
  const strip = (values, top, words) => createHtml("td", {}, componentBars(values, top, words));
  /** @param {number} key */
  const told = (key) => (/** @type {number} */ at) =>
    `component ${at + 1}: ${withMinusSign(q[at].toFixed(3))} × ${withMinusSign(ks[key][at].toFixed(3))} = ${withMinusSign(products[key][at].toFixed(3))}`;
  const head = ["key", "key's components", "query × key", "sum", "logit", "weight"];
  const rows = drawn.map((key) =>
    createHtml(
      "tr",
      {},
      createHtml("th", { scope: "row", dir: "auto" }, ...tooltipName(axes.key, key, 1)),
      strip(ks[key], most.k, told(key)),
      strip(products[key], most.both, told(key)),
      number(dots[key]),
      number(scale * dots[key]),
      createHtml("td", { class: "figure" }, weights ? weights[key].toFixed(3) : "–"),
    ),
  );
  const asked = createHtml(
    "p",
    { class: "asked" },
    createHtml("span", { dir: "auto" }, "query ", createHtml("b", {}, ...tooltipName(axes.query, query, 1)), " "),
    componentBars(q, most.q, (at) => `component ${at + 1}: ${withMinusSign(q[at].toFixed(3))}`),
  );
  const titles = createHtml("tr", {}, ...head.map((words) => createHtml("th", { scope: "col" }, words)));
  const table = createHtml(
    "table",
    { class: "neurons" },
    createHtml("thead", {}, titles),
    createHtml("tbody", {}, ...rows),
  );
  return createHtml("div", {}, asked, createHtml("div", { class: "scroll" }, table));
}

/**
 * Components as bars up and down from a line, in the color of their size.
 * @param {Float32Array} values
 * @param {number} most
 * @param {(at: number) => string} words
 */
function componentBars(values, most, words) {
  const wide = Math.max(1, Math.min(BAR_SIZE.component, Math.floor(BAR_SIZE.most / values.length)));
  const [width, half] = [wide * values.length, BAR_SIZE.height / 2];
  const scale = Math.max(1, window.devicePixelRatio || 1);
  const canvas = createHtml("canvas", {
    width: Math.round(width * scale),
    height: Math.round(BAR_SIZE.height * scale),
  });
  canvas.style.cssText = `width:${width}px;height:${BAR_SIZE.height}px`;
  const context = context2d(canvas);
  context.scale(scale, scale);
  values.forEach((value, at) => {
    const tall = Math.max(0.5, (half * Math.abs(value)) / most);
    context.fillStyle = cssColor(Math.sign(value) * Math.max(0.12, Math.abs(value) / most));
    context.fillRect(at * wide, value < 0 ? half : half - tall, Math.max(1, wide - (wide > 2 ? 1 : 0)), tall);
  });
  canvas.addEventListener("pointermove", (event) => {
    const at = Math.min(values.length - 1, Math.max(0, Math.floor(event.offsetX / wide)));
    showTooltip(event.clientX, event.clientY, words(at));
  });
  canvas.addEventListener("pointerleave", hideTooltip);
  return canvas;
}
