// Gradients at the first step, before anything is learned: layer by layer, for stacks of several depths.

import { createHtml } from "../../pages/dom.js";
import { formatOrDash, isNumber, pluralize, showInvisible } from "../../pages/formatting.js";
import { addLineChart } from "../../pages/line_chart.js";
import { armLabel, armSeries, visibleArms } from "./arms.js";
import { ablation } from "./page_data.js";
import { addPanel, createTable, formatFixed, line, scrollable, valueNode } from "./panels_and_tables.js";

/** @import { Scale } from "../../pages/types.js" */
/** @import { Arm, GradientStack, TableColumn } from "./types.js" */

export function showInitialGradients() {
  const measured = ablation.about?.initial_gradients;
  if (!measured?.stacks?.length) return;
  const panel = addPanel("gradients", "Gradients at initialization", showInvisible(measured.how));
  /** @type {GradientStack[]} */
  const stacks = measured.stacks;
  stacks.forEach((stack, number) => showStack(panel, stack, number));
}

/**
 * @param {HTMLElement} panel
 * @param {GradientStack} stack
 * @param {number} number
 */
function showStack(panel, stack, number) {
  const place = createHtml("div", { class: "trio" });
  panel.append(createHtml("h3", {}, showInvisible(stack.name)), place);
  // One scale for all depths of a stack: growth is compared across them.
  const range = stack.arms
    .flatMap(({ layers, low, high }) => [...layers, ...(low ?? []), ...(high ?? [])])
    .filter((value) => isNumber(value) && value > 0);
  for (const [index, depth] of stack.depths.entries())
    addLineChart(place, {
      id: `gradients-${number}-${index}`,
      title: pluralize(depth, "layer"),
      height: 210,
      tell: (layer) => `layer ${layer} of ${depth}`,
      look: () => ({
        series: visibleArms().flatMap(({ name }) => {
          const entry = stack.arms.find((each) => each.arm === name && each.depth === depth);
          return entry ? [armSeries(name, layerPoints(entry))] : [];
        }),
        xScale: (layers) => layerScale(layers),
        xName: "layer, from the input",
        yName: "gradient norm",
        logarithmic: range.length > 0,
        range,
      }),
    });
  panel.append(scrollable(gradientTable(stack)));
}

/** @param {GradientStack["arms"][number]} options */
const layerPoints = ({ layers, low, high }) =>
  layers.map((middle, at) => ({ x: at + 1, middle, low: low?.[at], high: high?.[at] }));

/**
 * @param {number[]} layers
 * @returns {Scale}
 */
function layerScale(layers) {
  const last = Math.max(...layers);
  const every = [1, 2, 4, 6, 8, 12, 24].find((step) => last / step <= 7) ?? Math.ceil(last / 6);
  const ticks = layers.filter((layer) => layer === 1 || layer % every === 0);
  /** @param {number} layer */
  const share = (layer) => (last > 1 ? (layer - 0.7) / (last - 0.4) : 0.5);
  return { ticks: [...new Set(ticks)].map((layer) => [layer, String(layer)]), share };
}

/** @param {GradientStack} stack */
function gradientTable(stack) {
  /**
   * @param {string} name
   * @param {number} depth
   */
  const ratio = (name, depth) =>
    stack.ratio?.find((each) => each.arm === name && each.depth === depth)?.last_over_first;
  /** @param {string} name */
  const exponent = (name) => stack.exponent?.find((each) => each.arm === name)?.value;
  /** @type {TableColumn[]} */
  const columns = [
    { head: "arm", cell: ({ name }) => line(...armLabel(name)) },
    ...stack.depths.map((depth) => ({
      head: `last / first of ${depth}`,
      title: `the norm in the last layer over that in the first, of ${pluralize(depth, "layer")}`,
      cell: (/** @type {Arm} */ { name }) => valueNode(ratio(name, depth), formatOrDash(ratio(name, depth))),
    })),
    {
      head: "depth exponent",
      title: "slope of the last layer's norm over the depth, both as logarithms; −0.5 is 1/√depth",
      absent: !stack.exponent?.some(({ value }) => isNumber(value)),
      cell: ({ name }) => valueNode(exponent(name), formatFixed(exponent(name), 2)),
    },
  ];
  const rows = ablation.arms.filter(({ name }) => stack.arms.some(({ arm }) => arm === name));
  const attributes = { class: "figures", "data-stack": showInvisible(stack.name) };
  return createTable(
    `Growth through ${showInvisible(stack.name)}`,
    columns.filter(({ absent }) => !absent),
    rows,
    attributes,
  );
}
