// The chosen head's statistic over the steps, in line with the heat map above it.

import { byId, createHtml, createSvg } from "../../../pages/dom.js";
import { formatCompact, formatNumber } from "../../../pages/formatting.js";
import { seriesLine } from "../../../pages/line_chart.js";
import { drawAxes, linearScale, PLOT_MARGIN } from "../../../pages/scales.js";
import { formatMeasurement, headName, scaleRange, statisticScale } from "./head_statistics.js";
import { data } from "./page_data.js";
import { nearestStep } from "./view_state.js";

/** @import { Choose, HistoryLayout, LoadedTable, ViewState } from "./types.js" */

export const HISTORY_LAYOUT = { left: 64, right: 16, depth: 400, lowest: 4, highest: 18, between: 4 };
const MAX_MARKED_POINTS = 40; // a curve of more points than these is a line alone
const HEAD_CURVE_SIZE = { height: 140, top: 14 };

/**
 * The chosen head's curve under the columns of the heat map, its changes of level marked.
 * @param {HTMLElement} place
 * @param {ViewState} state
 * @param {{ table: LoadedTable, other: LoadedTable | null, statistic: string, box: HistoryLayout }} options
 * @param {Choose} choose
 */
export function drawHeadCurve(place, state, { table, other, statistic, box }, choose) {
  const site = data.sites[state.site];
  const { height, top } = HEAD_CURVE_SIZE;
  const plot = { left: box.left, right: box.left + box.across, top, bottom: height - PLOT_MARGIN.bottom };
  /** @type {[number, string][]} */
  const ticks = table.steps.map((step, at) => [at, formatCompact(step)]);
  const columns = { ticks, share: (/** @type {number} */ at) => (at + 0.5) / box.columns };
  const frame = drawAxes(plot, columns, linearScale(scaleRange(table, statistic), 3), ["stored step"]);
  const values = table.steps.map((_, at) => table.value(statistic, state.layer, state.head, at));
  const now = box.column_of(data.steps[state.step]);
  const changes = changePoints(state, table, statistic);
  const name = `head ${headName(site, state.layer, state.head)}`;
  const words = `${statisticScale(statistic).words} of ${name}`;
  const svg = createSvg("svg", { width: plot.right + HISTORY_LAYOUT.right, height, role: "img", "aria-label": words });
  /**
   * @param {string} kind
   * @param {number} x
   */
  const upright = (kind, x) => createSvg("line", { class: kind, x1: x, x2: x, y1: top, y2: plot.bottom });
  svg.append(...frame.parts);
  for (const step of changes) {
    const at = frame.atX(box.column_of(step) - 0.5);
    const d = `M${at - 4} ${top - 10}L${at + 4} ${top - 10}L${at} ${top - 3}Z`;
    svg.append(upright("change", at), createSvg("path", { class: "change-mark", d }));
  }
  svg.append(upright("now", frame.atX(now)));
  const match = data.otherRun?.matches.find(([s, l, h]) => s === state.site && l === state.layer && h === state.head);
  if (other && match) svg.append(...seriesLine(otherRunCurve(other, table.steps, statistic, match), frame));
  const points = values.map((middle, x) => ({ x, middle }));
  svg.append(
    ...seriesLine({ name, look: { ink: "held", shape: points.length > MAX_MARKED_POINTS ? null : 0 }, points }, frame),
  );
  svg.addEventListener("click", (event) => {
    const at = Math.floor((event.clientX - svg.getBoundingClientRect().left - box.left) / box.column);
    if (at >= 0 && at < box.columns) choose({ step: nearestStep(table.steps[at]) });
  });
  place.replaceChildren(svg);
  const said = changes.length ? `; a lasting change at step ${changes.map(formatNumber).join(", ")}` : "";
  byId("head-reading").replaceChildren(
    createHtml("b", {}, name),
    `: ${statisticScale(statistic).words} ${formatMeasurement(values[now], statisticScale(statistic).unit)} ` +
      `at step ${formatNumber(table.steps[now])}${said}.`,
    ...(other && match ? [` Dashed: head ${headName(site, match[3], match[4])} of ${data.otherRun?.title}.`] : []),
  );
}

/**
 * The steps at which the chosen head's level changes; known of the probe's mean alone.
 * @param {ViewState} state
 * @param {LoadedTable} table
 * @param {string} statistic
 */
function changePoints(state, table, statistic) {
  if (table.source !== "mean") return [];
  const known = data.history.sites[state.site].changes.find(
    ([name, layer, head]) => name === statistic && layer === state.layer && head === state.head,
  );
  return known ? known[3] : [];
}

/**
 * The other run's curve of the matched head; its steps fall between the columns of ours.
 * @param {LoadedTable} other
 * @param {number[]} steps
 * @param {string} statistic
 * @param {number[]} options
 */
function otherRunCurve(other, steps, statistic, [, , , layer, head]) {
  const points = other.steps.flatMap((step, at) => {
    const middle = other.value(statistic, layer, head, at);
    if (Number.isNaN(middle) || step < steps[0] || step > steps[steps.length - 1]) return [];
    const left = Math.max(
      0,
      steps.findLastIndex((each) => each <= step),
    );
    const span = (steps[left + 1] ?? steps[left] + 1) - steps[left];
    return [{ x: left + (step - steps[left]) / span, middle }];
  });
  return { name: "other", look: { ink: "other", shape: null }, points };
}
