// The arms of a study: how each is told from the others, which are shown, and what stands for it. `data` is the
// result of an ablation, as transformer/studies/ablations/analysis.py describes it.

import { createHtml, exportDefaults } from "../../pages/dom.js";
import { showInvisible } from "../../pages/formatting.js";
import { legendKey, MARKER_SHAPES, tooltipRow } from "../../pages/plot_marks.js";
import { data } from "./page_data.js";

Object.assign(exportDefaults, {
  name: data.name || "study",
  words: showInvisible(data.question || data.name),
  legend: () => visibleArms().map(({ name }) => [armStyle(name), name]),
});

// The reference is drawn in ink, the others in the order in which the study names them.
export const armSlots = new Map(
  [data.reference, ...data.arms.map((arm) => arm.name).filter((name) => name !== data.reference)].map((name, slot) => [
    name,
    slot,
  ]),
);
export const hiddenArms = new Set();
export const hasSeveralTasks = data.tasks.length > 1;

export const visibleArms = () => data.arms.filter((arm) => !hiddenArms.has(arm.name));
export const findArm = (name) => data.arms.find((arm) => arm.name === name);

/** An arm's color, dash and marker: an eighth arm has the first one's color and the second one's shape. */
export function armStyle(name) {
  const slot = armSlots.get(name) ?? 0;
  const round = Math.floor((slot - 1) / (MARKER_SHAPES.length - 1));
  const turned = (number) => (slot === 0 ? 0 : 1 + ((number - 1) % (MARKER_SHAPES.length - 1)));
  const [color, shape] = [turned(slot), turned(slot + round)];
  return { ink: `arm-${color} dash-${shape}`, shape };
}

/** The classes that give an arm its color and its dash. */
export const armClass = (name) => armStyle(name).ink;

/** A row of a tip that begins with an arm. */
export const armTooltipRow = (name, value, more) => tooltipRow(armStyle(name), name, value, more);

/** An arm's name as it can be seen, behind its sample. */
export const armLabel = (name) => [
  legendKey(armStyle(name)),
  createHtml("span", { class: "arm-name", dir: "auto" }, showInvisible(name)),
];

/** What an arm has over steps or layers, as a series of a figure of lines. */
export const armSeries = (name, points) => ({ name, look: armStyle(name), points });

/** The shown arms as series: `bandOf(arm)` is { steps, middle, low, high, n }, or nothing for an arm without one. */
export const bandSeries = (bandOf) =>
  visibleArms().flatMap((arm) => {
    const { steps, middle, low, high, n } = bandOf(arm) ?? {};
    if (!steps) return [];
    const points = steps.map((x, at) => ({ x, middle: middle[at], low: low[at], high: high[at], n: n?.[at] }));
    return [armSeries(arm.name, points)];
  });
