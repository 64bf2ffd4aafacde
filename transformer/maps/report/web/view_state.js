// What the page shows: site, example, step, layer, head and so on, and the address of the page that keeps them.

import { nearestColumn } from "./head_statistics.js";
import { data } from "./page_data.js";
import { siteTokens } from "./tokens.js";
import { VIEW_NAMES } from "./head_views.js";

/** @import { ViewState } from "./types.js" */

const first = data.initialView;
/** @type {ViewState} */
export const state = {
  site: first.site,
  example: first.example,
  layer: first.layer,
  head: first.head,
  step: data.steps.length - 1,
  row: null,
  column: null,
  goldAlignments: true,
  compare: data.otherRun ? "run" : null,
  view: "weights",
  statistic: null,
  lines: false,
  also: [],
  tokens: [],
};

/**
 * Change the state; another site or example lets go of the held row, column and tokens.
 * @param {Partial<ViewState>} changes
 */
export function setState(changes) {
  Object.assign(state, changes);
  if ("site" in changes || "example" in changes) {
    if (!("row" in changes)) state.row = null;
    if (!("column" in changes)) state.column = null;
    if (!("tokens" in changes)) state.tokens = [];
  }
  clampState();
}

/** Bring every index back to what the page has: an address may be older than the page. */
function clampState() {
  /**
   * @param {unknown} value
   * @param {number} size
   */
  const within = (value, size) =>
    Math.min(size - 1, Math.max(0, typeof value === "number" && Number.isInteger(value) ? value : 0));
  state.site = within(state.site, data.sites.length);
  const site = data.sites[state.site];
  state.example = within(state.example, data.titles.length);
  state.layer = within(state.layer, site.layers.length);
  state.head = within(state.head, site.heads.length);
  state.step = within(state.step, data.steps.length);
  const { queries, keys } = siteTokens(site, state.example);
  if (state.row !== within(state.row, queries.length)) state.row = null;
  if (state.column !== within(state.column, keys.length)) state.column = null;
  state.tokens = state.tokens.filter((token) => token === within(token, queries.length));
  state.also = state.also.filter((head) => head === within(head, site.heads.length));
  const steps = data.steps.length;
  if (state.compare !== within(state.compare, steps) && !(state.compare === "run" && data.otherRun))
    state.compare = null;
  if (!VIEW_NAMES.includes(state.view)) state.view = "weights";
}

/** Keep the state in the address of the page, so that a link opens the same view. */
export function writeAddress() {
  // A page inside another document, as in a notebook, has no address of its own.
  if (location.protocol === "about:") return;
  const site = data.sites[state.site];
  const parts = new URLSearchParams({
    site: site.name,
    example: String(state.example + 1),
    layer: site.layers[state.layer],
    head: site.heads[state.head],
  });
  if (!data.singleText) parts.set("step", String(data.steps[state.step]));
  if (state.row !== null) parts.set("row", String(state.row + 1));
  if (state.column !== null) parts.set("column", String(state.column + 1));
  if (!state.goldAlignments) parts.set("gold_alignments", "0");
  if (state.compare !== null) parts.set("compare", state.compare === "run" ? "run" : String(data.steps[state.compare]));
  else if (data.otherRun) parts.set("compare", "nothing");
  if (state.view !== "weights") parts.set("view", state.view);
  if (state.statistic !== null) parts.set("statistic", state.statistic);
  if (state.lines) parts.set("draw", "lines");
  if (state.lines && state.also.length) parts.set("also", String(state.also.map((head) => head + 1)));
  if (state.lines && state.tokens.length) parts.set("tokens", String(state.tokens.map((token) => token + 1)));
  const address = `#${parts}`;
  if (location.hash !== address) history.replaceState(null, "", address);
}

/** Take the state from the address of the page. */
export function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  /**
   * @param {string[]} list
   * @param {string | null} name
   * @param {number} other
   */
  const place = (list, name, other) => {
    const index = list.findIndex((each) => each === name);
    return index < 0 ? other : index;
  };
  state.site = place(
    data.sites.map((site) => site.name),
    parts.get("site"),
    state.site,
  );
  const site = data.sites[state.site];
  state.layer = place(site.layers, parts.get("layer"), state.layer);
  state.head = place(site.heads, parts.get("head"), state.head);
  if (parts.has("example")) state.example = Number(parts.get("example")) - 1;
  if (parts.has("step")) state.step = nearestStep(Number(parts.get("step")));
  state.row = parts.has("row") ? Number(parts.get("row")) - 1 : null;
  state.column = parts.has("column") ? Number(parts.get("column")) - 1 : null;
  state.goldAlignments = parts.get("gold_alignments") !== "0";
  // A page of two runs opens on their difference.
  const compare = parts.get("compare") ?? (data.otherRun ? "run" : "nothing");
  state.compare = compare === "run" ? compare : compare === "nothing" ? null : nearestStep(Number(compare));
  state.view = parts.get("view") ?? "weights";
  state.statistic = parts.get("statistic");
  /** @param {string} name */
  const places = (name) => (parts.get(name) ?? "").split(",").map((place) => Number(place) - 1);
  state.lines = parts.get("draw") === "lines";
  state.also = places("also");
  state.tokens = places("tokens");
  clampState();
}

/**
 * The index of the stored step that is nearest.
 * @param {number} step
 */
export const nearestStep = (step) => nearestColumn(data.steps, step);
