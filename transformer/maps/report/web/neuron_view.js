// Query times key, component by component, of one query of one head: what its logits are made of. Drawn where the page
// of a text was asked for its vectors; see value_norms.py.

import { css } from "../../../pages/color_scale.js";
import { byId, hideTip, make, showTip } from "../../../pages/dom.js";
import { minus, readable } from "../../../pages/formatting.js";
import { axisOf } from "./axes.js";
import { tipName } from "./captions.js";
import { named } from "./head_grid.js";
import { block, finestLevel, planeAt } from "./map_data.js";
import { data } from "./page_data.js";
import { tokensOf } from "./tokens.js";
import { halves } from "./value_weighted.js";

const MOST_KEYS = 64; // at once; of more those of the largest weights
const BARS = { component: 12, most: 400, height: 26 };

/** Draw the components of the held query of the chosen head into `place`, of the last query where none is held. */
export async function drawNeurons(place, state) {
  const facts = data.beneath?.[state.site];
  byId("neurons-panel").hidden = !facts?.asked;
  if (!facts?.asked) return;
  const site = data.sites[state.site];
  const head = `${named("layer", site.layers[state.layer])} · ${named("head", site.heads[state.head])}`;
  byId("neurons-title").textContent = `Query × key: ${head}`;
  if (!facts.vectors) {
    byId("neurons-note").textContent = "The score of this site is no product of a query and a key: it has no components.";
    place.replaceChildren();
    return;
  }
  const asked = ["site", "example", "layer", "head", "row", "step"];
  const wanted = asked.map((part) => state[part]);
  const level = finestLevel(site, state.step);
  const [bytes, plane] = await Promise.all([
    block(`vectors-${state.site}-${state.example}-${state.layer}`),
    planeAt(state.step, state.site, state.example, level, state.layer, state.head),
  ]);
  // While these were unpacked, something else may have been asked for.
  if (asked.some((part, at) => wanted[at] !== state[part])) return;
  const { queries, keys } = tokensOf(site, state.example);
  const query = state.row ?? queries.length - 1;
  const parts = componentsOf(halves(bytes), facts.vectors, site, state, query, queries.length, keys.length);
  const weights = plane.pooled ? null : keys.map((_, key) => plane.at(query, key));
  const seen = parts.products.map((_, key) => key).filter((key) => !site.causal || key <= query);
  const size = (key) => (weights ? weights[key] : parts.dots[key]);
  const drawn = [...seen].sort((a, b) => size(b) - size(a)).slice(0, MOST_KEYS).sort((a, b) => a - b);
  const axes = { query: axisOf(site, "query", state.example), key: axisOf(site, "key", state.example) };
  tellNeurons(facts.vectors, drawn.length, seen.length);
  place.replaceChildren(neuronTable(parts, weights, drawn, axes, query, facts.vectors));
}

/** q, each key and their products of one query: { q, ks, products, dots }; G groups of heads share keys. */
function componentsOf(values, { depth, groups }, site, { head }, query, queries, keys) {
  const at = (first) => values.subarray(first, first + depth);
  const group = Math.floor(head / (site.heads.length / groups));
  const q = at((head * queries + query) * depth);
  const behind = site.heads.length * queries;
  const ks = Array.from({ length: keys }, (_, key) => at((behind + group * keys + key) * depth));
  const products = ks.map((k) => k.map((value, component) => value * q[component]));
  return { q, ks, products, dots: products.map((each) => each.reduce((sum, value) => sum + value, 0)) };
}

function tellNeurons({ depth, scale, whole }, drawn, seen) {
  const added = whole ? "" : " What positions or a temperature do to a logit beside the product is not in it.";
  const few = drawn < seen ? ` The ${drawn} keys of the largest weights, of ${seen}.` : "";
  byId("neurons-note").textContent =
    `A logit is ${readable(Number(scale.toPrecision(4)))} × the sum of the ${depth} products; its weight is the softmax ` +
    `over the row, as the map has it. Bars up are positive, down negative. Hold a row to choose its query.${added}${few}`;
}

function neuronTable({ q, ks, products, dots }, weights, drawn, axes, query, { scale }) {
  const largest = (arrays) => arrays.reduce((most, each) => each.reduce((a, b) => Math.max(a, Math.abs(b)), most), 1e-12);
  const most = { q: largest([q]), k: largest(drawn.map((key) => ks[key])), both: largest(drawn.map((key) => products[key])) };
  const number = (value) => make("td", { class: "figure" }, minus(value.toFixed(3)));
  const strip = (values, top, words) => make("td", {}, componentBars(values, top, words));
  const told = (key) => (at) =>
    `component ${at + 1}: ${minus(q[at].toFixed(3))} × ${minus(ks[key][at].toFixed(3))} = ${minus(products[key][at].toFixed(3))}`;
  const head = ["key", "key's components", "query × key", "sum", "logit", "weight"];
  const rows = drawn.map((key) =>
    make(
      "tr",
      {},
      make("th", { scope: "row", dir: "auto" }, ...tipName(axes.key, key, 1)),
      strip(ks[key], most.k, told(key)),
      strip(products[key], most.both, told(key)),
      number(dots[key]),
      number(scale * dots[key]),
      make("td", { class: "figure" }, weights ? weights[key].toFixed(3) : "–"),
    ),
  );
  const asked = make(
    "p",
    { class: "asked" },
    make("span", { dir: "auto" }, "query ", make("b", {}, ...tipName(axes.query, query, 1)), " "),
    componentBars(q, most.q, (at) => `component ${at + 1}: ${minus(q[at].toFixed(3))}`),
  );
  const titles = make("tr", {}, ...head.map((words) => make("th", { scope: "col" }, words)));
  const table = make("table", { class: "neurons" }, make("thead", {}, titles), make("tbody", {}, ...rows));
  return make("div", {}, asked, make("div", { class: "scroll" }, table));
}

/** Components as bars up and down from a line, in the color of their size. */
function componentBars(values, most, words) {
  const wide = Math.max(1, Math.min(BARS.component, Math.floor(BARS.most / values.length)));
  const [width, half] = [wide * values.length, BARS.height / 2];
  const scale = Math.max(1, window.devicePixelRatio || 1);
  const canvas = make("canvas", { width: Math.round(width * scale), height: Math.round(BARS.height * scale) });
  canvas.style.cssText = `width:${width}px;height:${BARS.height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  values.forEach((value, at) => {
    const tall = Math.max(0.5, (half * Math.abs(value)) / most);
    context.fillStyle = css(Math.sign(value) * Math.max(0.12, Math.abs(value) / most));
    context.fillRect(at * wide, value < 0 ? half : half - tall, Math.max(1, wide - (wide > 2 ? 1 : 0)), tall);
  });
  canvas.addEventListener("pointermove", (event) => {
    const at = Math.min(values.length - 1, Math.max(0, Math.floor(event.offsetX / wide)));
    showTip(event.clientX, event.clientY, words(at));
  });
  canvas.addEventListener("pointerleave", hideTip);
  return canvas;
}
