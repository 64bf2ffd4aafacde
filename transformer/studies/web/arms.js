// The arms of a study: how each is told from the others, which are shown, and what stands for it. `ablation` is the
// result of an ablation, as transformer/studies/ablations/report.py describes it.

import { createHtml, exportDefaults } from "../../pages/dom.js";
import { showInvisible } from "../../pages/formatting.js";
import { legendKey, seriesStyle, tooltipRow } from "../../pages/markers_and_legends.js";
import { ablation } from "./page_data.js";

/** @import { Child, Point } from "../../pages/types.js" */
/** @import { Arm, Band } from "./types.js" */

Object.assign(exportDefaults, {
  name: ablation.name || "study",
  words: showInvisible(ablation.question || ablation.name),
  legend: () => visibleArms().map(({ name }) => [armStyle(name), name]),
});

// The reference is drawn in ink, the others in the order in which the study names them.
export const armSlots = new Map(
  [ablation.reference, ...ablation.arms.map((arm) => arm.name).filter((name) => name !== ablation.reference)].map(
    (name, slot) => [name, slot],
  ),
);
/** @type {Set<string>} */
export const hiddenArms = new Set();
export const hasSeveralTasks = ablation.tasks.length > 1;

export const visibleArms = () => ablation.arms.filter((arm) => !hiddenArms.has(arm.name));
/** @param {string} name */
export const findArm = (name) => /** @type {Arm} */ (ablation.arms.find((arm) => arm.name === name));

/**
 * An arm's color, dash and marker.
 * @param {string} name
 */
export const armStyle = (name) => seriesStyle(armSlots.get(name) ?? 0);

/**
 * The classes that give an arm its color and its dash.
 * @param {string} name
 */
export const armClass = (name) => armStyle(name).ink;

/**
 * A row of a tip that begins with an arm.
 * @param {string} name
 * @param {Child} value
 * @param {string} [more]
 */
export const armTooltipRow = (name, value, more) => tooltipRow(armStyle(name), name, value, more);

/**
 * An arm's name as it can be seen, behind its sample.
 * @param {string} name
 */
export const armLabel = (name) => [
  legendKey(armStyle(name)),
  createHtml("span", { class: "arm-name", dir: "auto" }, showInvisible(name)),
];

/**
 * What an arm has over steps or layers, as a series of a figure of lines.
 * @param {string} name
 * @param {Point[]} points
 */
export const armSeries = (name, points) => ({ name, look: armStyle(name), points });

/**
 * The shown arms as series: `bandOf(arm)` is { steps, middle, low, high, n }, or nothing for an arm without one.
 * @param {(arm: Arm) => Band | null | undefined} bandOf
 */
export const bandSeries = (bandOf) =>
  visibleArms().flatMap((arm) => {
    const band = bandOf(arm);
    if (!band) return [];
    const { steps, middle, low, high, n } = band;
    const points = steps.map((x, at) => ({ x, middle: middle[at], low: low[at], high: high[at], n: n?.[at] }));
    return [armSeries(arm.name, points)];
  });
