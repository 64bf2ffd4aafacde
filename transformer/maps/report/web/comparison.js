// The difference of the weights of two steps or of two runs, and the controls that choose it.

import { byId, createHtml, inputById } from "../../../pages/dom.js";
import { formatNumber, showInvisible, truncate } from "../../../pages/formatting.js";
import { formatPercent } from "./head_grid.js";
import { headName, nearestColumn } from "./head_statistics.js";
import { HeadMap, loadHeadMap, loadMaps } from "./map_data.js";
import { data } from "./page_data.js";
import { toggleRollout, whyNoRollout } from "./rollout.js";
import { addView } from "./head_views.js";

/** @import { Choose, ComparedSide, HeadView, Level, ViewState } from "./types.js" */

let matchHeads = true; // of two runs: heads that are alike, or those of the same index
/** @type {ViewState["compare"]} */
let lastCompared = data.otherRun ? "run" : 0;

addView("difference", { isActive: (state) => comparedSide(state) !== null, headView: differenceView });

/**
 * What is taken off the weights that `state` names: where its maps lie, and how it is called; null for nothing.
 * @param {ViewState} state
 * @returns {ComparedSide | null}
 */
function comparedSide(state) {
  const { compare } = state;
  const site = data.sites[state.site];
  if (typeof compare === "number" && compare in data.steps)
    return {
      run: "maps",
      step: compare,
      levels: site.levels,
      head: (layer, head) => [layer, head],
      ours: `step ${formatNumber(data.steps[state.step])}`,
      theirs: () => `step ${formatNumber(data.steps[compare])}`,
    };
  if (compare !== "run" || !data.otherRun) return null;
  const { steps, sites, title } = data.otherRun;
  const step = nearestColumn(steps, data.steps[state.step]);
  return {
    run: "other",
    step,
    levels: sites[state.site].levels,
    head: (layer, head) => {
      const match = headMatch(state.site, layer, head);
      return match ? [match[3], match[4]] : [layer, head];
    },
    ours: `“${data.title}” step ${formatNumber(data.steps[state.step])}`,
    theirs: (layer, head) => `“${title}” step ${formatNumber(steps[step])} head ${headName(site, layer, head)}`,
  };
}

/**
 * The entry of data.otherRun.matches for a head, where heads that are alike are compared.
 * @param {number} site
 * @param {number} layer
 * @param {number} head
 */
function headMatch(site, layer, head) {
  if (!matchHeads) return undefined;
  return data.otherRun?.matches.find(([s, l, h]) => s === site && l === layer && h === head);
}

/**
 * This minus that, at the finest level that both have.
 * @param {ViewState} state
 * @returns {Promise<HeadView>}
 */
async function differenceView(state) {
  const site = data.sites[state.site];
  const other = /** @type {ComparedSide} */ (comparedSide(state));
  /**
   * @param {Level[]} levels
   * @param {number} step
   */
  const carried = (levels, step) => levels.filter((level) => level.steps.includes(step));
  const theirs = carried(other.levels, other.step);
  const pairs = carried(site.levels, state.step).flatMap((level) => {
    const same = theirs.find(({ name }) => name === level.name);
    return same ? [{ ours: level, theirs: same }] : [];
  });
  const [coarsest, finest] = [pairs[0], pairs[pairs.length - 1]];
  const [layer, head] = other.head(state.layer, state.head);
  const { site: s, step, example } = state;
  const [mine, their, plane, theirPlane] = await Promise.all([
    loadMaps(step, s, example, coarsest.ours),
    loadMaps(other.step, s, example, coarsest.theirs, other.run),
    loadHeadMap(step, s, example, finest.ours, state.layer, state.head),
    loadHeadMap(other.step, s, example, finest.theirs, layer, head, other.run),
  ]);
  const match = other.run === "other" ? headMatch(s, state.layer, state.head) : undefined;
  const alike = match ? ` (${formatPercent(match[5])} alike)` : "";
  return {
    site,
    signed: true,
    titleSuffix: `${other.ours} minus ${other.theirs(layer, head)}${alike}`,
    gridMap: (l, h) => subtractMaps(mine.plane(l, h), their.plane(...other.head(l, h))),
    detail: subtractMaps(plane, theirPlane),
    tooltip: (query, key) =>
      `${formatSigned(plane.at(query, key) - theirPlane.at(query, key))} = ` +
      `${plane.at(query, key).toFixed(3)} (${other.ours}) − ` +
      `${theirPlane.at(query, key).toFixed(3)} (${other.theirs(layer, head)})`,
  };
}

/**
 * A difference of two planes; of pooled ones, of the largest weights of their blocks.
 * @param {HeadMap} plane
 * @param {HeadMap} other
 */
function subtractMaps(plane, other) {
  return new HeadMap(
    plane.values.map((value, at) => value - other.values[at]),
    plane,
  );
}

/**
 * A difference with its sign, a minus that is as wide as a plus.
 * @param {number} value
 */
const formatSigned = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;

/**
 * Fill the choices of what is compared and viewed; `choose({ compare, view })` is called for a new one.
 * @param {ViewState} state
 * @param {Choose} choose
 */
export function initComparison(state, choose) {
  const none = createHtml("option", { value: "" }, "–");
  const run = data.otherRun
    ? [createHtml("option", { value: "run" }, `run ${truncate(showInvisible(data.otherRun.title), 32)}`)]
    : [];
  const others = data.steps.length > 1 ? data.steps : [];
  const steps = others.map((step, at) => createHtml("option", { value: at }, `step ${formatNumber(step)}`));
  byId("compare").replaceChildren(none, ...run, ...steps);
  inputById("compare").addEventListener("change", () => {
    const { value } = inputById("compare");
    choose({ compare: value === "" ? null : value === "run" ? value : Number(value), view: "weights" });
  });
  byId("matched").addEventListener("change", () => {
    matchHeads = inputById("matched").checked;
    choose({});
  });
  byId("rollout").addEventListener("change", () => choose(toggleRollout(state)));
}

/**
 * The difference that was looked at last, or none: of a page of two runs the other run first, else the first step.
 * @param {ViewState} state
 * @returns {Partial<ViewState>}
 */
export function toggleComparison({ compare }) {
  if (compare !== null) lastCompared = compare;
  return { compare: compare === null ? lastCompared : null, view: "weights" };
}

/**
 * Show which of the choices holds, and why rollout is not available.
 * @param {ViewState} state
 */
export function showComparison(state) {
  inputById("compare").value = String(state.compare ?? "");
  byId("matched-toggle").hidden = state.compare !== "run";
  inputById("matched").checked = matchHeads;
  const why = whyNoRollout(state);
  inputById("rollout").disabled = why !== "";
  inputById("rollout").checked = state.view === "rollout" && why === "" && comparedSide(state) === null;
  byId("rollout-toggle").title =
    why || "rollout: how attention mixes positions over the layers (Abnar and Zuidema 2020); not an attribution";
}
