// What the grid of heads and the large heatmap draw: the weights, or what another file has made of them.
//
// `currentView(state)` resolves to
//   { site, signed, titleSuffix, gridMap, detail }
// for the example, site, step, layer and head that `state` names:
//   site               the entry of data.sites
//   signed             false: values are weights in [0, 1]; true: differences in [-1, 1]
//   titleSuffix        words behind the title, such as "step 400 minus step 100"; "" where weights are shown
//   gridMap(layer, head)  a Plane of every head (indices), at most 64 cells a side where the site is long
//   detail             a Plane of the head that state names, at the finest level that the page carries
//   heads              optional: what stands in the head's place in the title, where it is not one head alone
//   layers             optional: a Plane a layer, of a view that has layers and no heads
//   verbs              optional: what a query does to its keys, and a key suffers from its queries, in words
//   planes             where state.lines holds: [[head, its detail], ...] of the heads whose lines are drawn, else null
//   tooltip(query, key)   optional: the words of the tip for a cell of `detail`, such as both values of a difference
// A file that shows something else than the weights adds { isActive(state), headView(state) } by `addView`, with `shown`
// resolving to an object as above. The plain weights are `weightsView(state)`.
// state.compare is null, a step's INDEX in data.steps, or "run"; state.view is one of
// VIEW_NAMES; state.statistic is null or a name. change({...}) sets them and shows.

import { coarsestLevel, finestLevel, loadHeadMap, loadMaps } from "./map_data.js";
import { data } from "./page_data.js";

/** @import { HeadView, View, ViewState } from "./types.js" */

/** The values of state.view. */
export const VIEW_NAMES = ["weights", "rollout", "value_weighted"];
// Of several that apply the first is shown.
const ORDER = ["value_weighted", "difference", "rollout"];
/** @type {Map<string, View>} */
const views = new Map();

/**
 * Add what is shown where `isActive(state)` holds: `headView(state)` resolves to an object as above.
 * @param {string} name
 * @param {View} view
 */
export function addView(name, view) {
  views.set(name, view);
}

/**
 * What is drawn where nothing else is asked for: the weights themselves.
 * @param {ViewState} state
 * @returns {Promise<HeadView>}
 */
export async function weightsView(state) {
  const site = data.sites[state.site];
  const [maps, detail] = await Promise.all([
    loadMaps(state.step, state.site, state.example, coarsestLevel(site)),
    loadHeadMap(state.step, state.site, state.example, finestLevel(site, state.step), state.layer, state.head),
  ]);
  return { site, signed: false, titleSuffix: "", gridMap: (layer, head) => maps.plane(layer, head), detail };
}

/**
 * What gridMap and detail draw: see the head of this file.
 * @param {ViewState} state
 * @returns {Promise<HeadView>}
 */
export function currentView(state) {
  const view = ORDER.map((name) => views.get(name)).find((each) => each?.isActive(state));
  return view ? view.headView(state) : weightsView(state);
}
