// Attention rollout: how attention mixes positions over the layers.

import { finestLevel, HeadMap, loadMaps } from "./map_data.js";
import { data } from "./page_data.js";
import { siteTokens } from "./tokens.js";
import { addView, weightsView } from "./head_views.js";

/** @import { LevelMaps } from "./map_data.js" */
/** @import { HeadView, Level, Site, ViewState } from "./types.js" */

const MAX_ROLLOUT_LENGTH = 384; // positions: matrices of so many are multiplied in about a second

addView("rollout", { isActive: (state) => state.view === "rollout" && !whyNoRollout(state), headView: rolloutView });

/**
 * Whether position i is the same on both sides of a site.
 * @param {Site} site
 * @param {number} example
 */
function isSelfAttention(site, example) {
  const { queries, keys } = siteTokens(site, example);
  return (site.query === site.key || site.causal) && queries.length === keys.length;
}

/**
 * The sites that rollout mixes: the site itself, of a cross-attention its decoder's and its encoder's; or null.
 * @param {ViewState} state
 * @returns {{ own?: number, cross?: number, decoder?: number, encoder?: number } | null}
 */
function rolloutSites({ site, example }) {
  if (isSelfAttention(data.sites[site], example)) return { own: site };
  const cross = data.sites[site];
  /** @param {Site} each */
  const alone = (each) => each.values === "probability" && isSelfAttention(each, example);
  const decoder = data.sites.findIndex(
    (each) => alone(each) && each.query === cross.query && String(each.layers) === String(cross.layers),
  );
  const encoder = data.sites.findIndex((each) => alone(each) && each.query === cross.key);
  return decoder < 0 ? null : { cross: site, decoder, encoder: encoder < 0 ? undefined : encoder };
}

/**
 * Why the site, at this step, has no rollout; an empty text where it has one.
 * @param {ViewState} state
 */
export function whyNoRollout(state) {
  const site = data.sites[state.site];
  const stacks = rolloutSites(state);
  if (site.values !== "probability") return "only for rows that sum to one";
  if (!stacks) return "only for self-attention, or cross-attention with self-attention in every layer";
  const sites = Object.values(stacks).filter((at) => at !== undefined);
  /** @param {Level} level */
  const whole = (level) => level && level.queryBlock * level.keyBlock === 1;
  if (!sites.every((at) => whole(finestLevel(data.sites[at], state.step))))
    return "this page has no full-resolution maps of this module at this step";
  const longest = Math.max(...Object.values(siteTokens(site, state.example)).map((side) => side.length));
  return longest > MAX_ROLLOUT_LENGTH ? `only up to ${MAX_ROLLOUT_LENGTH} positions` : "";
}

/**
 * Attention rollout up to the chosen layer; the head grid stays that of the weights, since rollout has no heads.
 * @param {ViewState} state
 * @returns {Promise<HeadView>}
 */
async function rolloutView(state) {
  const stacks = rolloutSites(state) ?? {};
  /** @param {number | undefined} at */
  const mapsOf = async (at) =>
    at === undefined ? null : loadMaps(state.step, at, state.example, finestLevel(data.sites[at], state.step));
  const [plain, own, cross, decoder, encoder] = await Promise.all([
    weightsView(state),
    ...[stacks.own, stacks.cross, stacks.decoder, stacks.encoder].map(mapsOf),
  ]);
  const maps = /** @type {LevelMaps} */ (own ?? cross);
  const layers = (maps.rollout ??= decoder ? computeCrossRollout(maps, decoder, encoder) : computeRollout(maps));
  const plane = layers[state.layer];
  const said = "how attention mixes positions, not an attribution";
  return {
    ...plain,
    titleSuffix: own
      ? `and all below it combined (rollout): ${said}`
      : `and all below it, on both sides, combined (rollout): ${said}`,
    detail: plane,
    layers,
    heads: "all heads",
    verbs: ["mixes in", "is mixed into"],
    tooltip: (query, key) => `${plane.at(query, key).toFixed(3)} of the mixture, over all heads`,
  };
}

/**
 * Attention rollout (Abnar and Zuidema 2020, "Quantifying attention flow in transformers"), a plane a layer:
 * R_l = A_l R_(l-1), where A is half the mean of the heads' weights and half the residual's identity, rows summing
 * to one, and R_(-1) is the identity.
 * @param {LevelMaps} maps
 */
function computeRollout(maps) {
  /** @type {HeadMap[]} */
  const planes = [];
  maps.site.layers.forEach((_, layer) => {
    const mixing = mixWithResidual(layerHeads(maps, layer));
    planes.push(layer ? multiplyMaps(mixing, planes[planes.length - 1]) : mixing);
  });
  return planes;
}

/**
 * The share of each position of the source in the target's, a plane a layer: R_l = half A_l R_(l-1), half C_l E, with
 * R_(-1) = 0, the mean C_l of the heads of cross-attention, A_l as above and E the encoder's rollout, if it has one.
 * @param {LevelMaps} cross
 * @param {LevelMaps} decoder
 * @param {LevelMaps | null} encoder
 */
function computeCrossRollout(cross, decoder, encoder) {
  const source = encoder && computeRollout(encoder).at(-1);
  /** @type {HeadMap[]} */
  const planes = [];
  cross.site.layers.forEach((_, layer) => {
    const read = meanOverHeads(layerHeads(cross, layer));
    const added = source ? multiplyMaps(read, source) : read;
    const before = layer ? multiplyMaps(mixWithResidual(layerHeads(decoder, layer)), planes[planes.length - 1]) : null;
    const values = added.values.map((value, at) => {
      const row = Math.floor(at / read.keys) * read.keys;
      const sum = read.values.subarray(row, row + read.keys).reduce((a, b) => a + b, 0);
      return (value + (before ? before.values[at] : 0)) / (1 + sum);
    });
    planes.push(new HeadMap(values, read));
  });
  return planes;
}

/**
 * @param {LevelMaps} maps
 * @param {number} layer
 */
const layerHeads = (maps, layer) => maps.site.heads.map((_, head) => maps.plane(layer, head));

/**
 * The matrix product of two planes.
 * @param {HeadMap} left
 * @param {HeadMap} right
 */
function multiplyMaps(left, right) {
  const [rows, columns] = [left.queries, right.keys];
  const values = new Float32Array(rows * columns);
  for (let row = 0; row < rows; row++) {
    for (let between = 0; between < left.keys; between++) {
      const share = left.at(row, between);
      if (share === 0) continue;
      for (let at = 0; at < columns; at++) values[row * columns + at] += share * right.values[between * columns + at];
    }
  }
  return new HeadMap(values, { ...left, queries: rows, keys: columns });
}

/**
 * The mean of the heads.
 * @param {HeadMap[]} heads
 */
function meanOverHeads(heads) {
  const values = heads[0].values.map((_, at) => heads.reduce((sum, { values }) => sum + values[at], 0) / heads.length);
  return new HeadMap(values, heads[0]);
}

/**
 * Half the mean of the heads, half the identity, rows summing to one.
 * @param {HeadMap[]} heads
 */
function mixWithResidual(heads) {
  const { queries: size } = heads[0];
  const values = new Float32Array(size * size);
  for (let row = 0; row < size; row++) {
    let sum = 0;
    for (let key = 0; key < size; key++) {
      const mean = heads.reduce((total, plane) => total + plane.at(row, key), 0) / heads.length;
      values[row * size + key] = 0.5 * mean + (row === key ? 0.5 : 0);
      sum += values[row * size + key];
    }
    for (let key = 0; key < size; key++) values[row * size + key] /= sum;
  }
  return new HeadMap(values, heads[0]);
}

/**
 * @param {ViewState} state
 * @returns {Partial<ViewState>}
 */
export function toggleRollout(state) {
  const on = state.view !== "rollout" && !whyNoRollout(state);
  return { view: on ? "rollout" : "weights", compare: on ? null : state.compare };
}
