// The keys that do something on this page.

import { createHtml } from "../../../pages/dom.js";
import { data } from "./page_data.js";
import { whyNoRollout } from "./rollout.js";
import { state } from "./view_state.js";

/** @import { Site } from "./types.js" */

/**
 * Fill the list of keys: a key that has nothing to go over or to show here is left out.
 * @param {HTMLElement} place
 */
export function showKeyboardHelp(place) {
  if (place.dataset.lines === String(state.lines)) return;
  place.dataset.lines = String(state.lines);
  /** @param {(site: Site) => unknown} test */
  const some = (test) => data.sites.some(test);
  const steps = data.steps.length > 1;
  const rolls = data.sites.some((_, site) =>
    data.titles.some((_, example) => !whyNoRollout({ ...state, step: data.steps.length - 1, site, example })),
  );
  /** @type {[unknown, string, string][]} */
  const keys = [
    [steps, "← →", "step"],
    [steps, "space", "play"],
    [some((site) => site.layers.length > 1), "↑ ↓", "layer"],
    [some((site) => site.heads.length > 1), "h l", "head"],
    [data.sites.length > 1, "s", "site"],
    [data.titles.length > 1, "e", "example"],
    [true, "j k", "row"],
    [true, ", .", "column"],
    [true, "esc", "release"],
    [!state.lines && some((site) => site.goldAlignments), "g", "gold alignments"],
    [steps || data.otherRun, "d", "difference"],
    [rolls, "r", "attention rollout"],
    [data.projections?.some(({ valueNorms }) => valueNorms), "w", "value-weighted"],
    [true, "t", state.lines ? "map" : "lines"],
    [some((site) => site.heads.length > 1), "a", "lines of all heads"],
    [state.lines, "x", "add the row to the sum"],
    [true, "p v c", "save as PNG, SVG, CSV"],
  ];
  const shown = keys.filter(([acts]) => acts);
  place.replaceChildren(
    ...shown.flatMap(([, names, words]) => [
      ...names.split(" ").map((name) => createHtml("kbd", {}, name)),
      `${words} `,
    ]),
  );
}
