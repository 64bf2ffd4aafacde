// Weights times the norms of what they weigh: |weight f(x)|, f(x) = (x W_V + b_V) W_O with the head's own rows of W_O
// (Kobayashi et al. 2020, "Attention is not only a weight"). A page of a text has the norms; see value_norms.py.

import { byId, inputById } from "../../../pages/dom.js";
import { finestLevel, HeadMap, loadMaps, unpackBlock } from "./map_data.js";
import { data } from "./page_data.js";
import { siteTokens } from "./tokens.js";
import { addView, weightsView } from "./head_views.js";

/** @import { HeadView, ViewState } from "./types.js" */

addView("value_weighted", {
  isActive: (state) => state.view === "value_weighted" && !whyNoValueWeighting(state),
  headView: valueWeightedView,
});

/**
 * Numbers of half precision, low byte first.
 * @param {Uint8Array} bytes
 */
export function decodeFloat16(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return Float32Array.from({ length: bytes.byteLength / 2 }, (_, at) => {
    const bits = view.getUint16(2 * at, true);
    const [exponent, fraction] = [(bits >> 10) & 31, (bits & 1023) / 1024];
    const size = exponent ? 2 ** (exponent - 15) * (1 + fraction) : 2 ** -14 * fraction;
    return bits >> 15 ? -size : size;
  });
}

/**
 * Why the site's weights cannot be shown times norms; an empty text where they can.
 * @param {ViewState} state
 */
function whyNoValueWeighting({ site, step }) {
  if (!data.projections?.[site].valueNorms) return "not available: this module has no separate value projection";
  const level = finestLevel(data.sites[site], step);
  return level.queryBlock * level.keyBlock === 1 ? "" : "only for full-resolution maps; this page has pooled ones";
}

/**
 * |weight f(x)| of every key, as its share of the row, so that rows sum to one as those of weights do.
 * @param {ViewState} state
 * @returns {Promise<HeadView>}
 */
async function valueWeightedView(state) {
  const site = data.sites[state.site];
  const [plain, maps, packed] = await Promise.all([
    weightsView(state),
    loadMaps(state.step, state.site, state.example, finestLevel(site, state.step)),
    unpackBlock(`norms-${state.site}-${state.example}`),
  ]);
  const norms = decodeFloat16(packed);
  const { keys } = siteTokens(site, state.example);
  /**
   * @param {number} layer
   * @param {number} head
   * @param {number} key
   */
  const norm = (layer, head, key) => norms[(layer * site.heads.length + head) * keys.length + key];
  /**
   * @param {HeadMap} plane
   * @param {number} layer
   * @param {number} head
   */
  const normed = (plane, layer, head) => {
    const values = plane.values.map((weight, at) => weight * norm(layer, head, at % plane.keys));
    for (let row = 0; row < values.length; row += plane.keys) {
      let sum = 0;
      for (let key = 0; key < plane.keys; key++) sum += values[row + key];
      for (let key = 0; key < plane.keys; key++) values[row + key] /= sum || 1;
    }
    return new HeadMap(values, plane);
  };
  const detail = normed(plain.detail, state.layer, state.head);
  return {
    ...plain,
    titleSuffix: "|weight × value|, as a fraction of its row",
    gridMap: (layer, head) => normed(maps.plane(layer, head), layer, head),
    detail,
    verbs: ["draws most from", "gives most to"],
    tooltip: (query, key) => {
      const [weight, size] = [plain.detail.at(query, key), norm(state.layer, state.head, key)];
      return `${detail.at(query, key).toFixed(3)} of the row: ${weight.toFixed(3)} × ${size.toPrecision(3)}`;
    },
  };
}

/**
 * @param {ViewState} state
 * @returns {Partial<ViewState>}
 */
export const toggleValueWeighting = (state) =>
  state.view === "value_weighted" || whyNoValueWeighting(state)
    ? { view: "weights" }
    : { view: "value_weighted", compare: null };

/** @param {ViewState} state */
export function showValueWeighting(state) {
  const why = data.projections ? whyNoValueWeighting(state) : "";
  byId("value-weighted-toggle").hidden = !data.projections;
  inputById("value-weighted").disabled = why !== "";
  inputById("value-weighted").checked = state.view === "value_weighted" && !why;
  byId("value-weighted-toggle").title =
    why || "the norm of weight × (x W_V + b_V) W_O of the head, as a fraction of its row (Kobayashi et al. 2020)";
}
