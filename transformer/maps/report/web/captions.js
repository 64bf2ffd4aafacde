// What the page says in sentences: of the head that is read, of what is left out, of the run.

import { byId, createHtml } from "../../../pages/dom.js";
import { formatCompact, formatNumber, pluralize, showInvisible, truncate } from "../../../pages/formatting.js";
import { cellAt } from "./attention_heatmap.js";
import { cellName, duplicateSuffix, isFrame, siteAxis } from "./axes.js";
import { hides } from "./canvas_pixels.js";
import { formatPercent } from "./head_grid.js";
import { data } from "./page_data.js";
import { goldAlignmentWeight, tokenNodes } from "./tokens.js";
import { state } from "./view_state.js";

/** @import { HeadMap } from "./map_data.js" */
/** @import { Axis, HeadView, Site } from "./types.js" */

/**
 * How a pooled plane is to be read, in words; "" for a whole map.
 * @param {HeadMap} plane
 * @param {boolean} signed
 */
export function poolingText(plane, signed) {
  if (!plane.pooled) return "";
  const what = signed ? "the difference of the largest weights" : "the largest weight";
  return `each cell is ${what} of ${plane.queryBlock} × ${plane.keyBlock} positions`;
}

/**
 * What a drawing is of, in small print: `planes` are its heads', [[head, plane], ...].
 * @param {{ site: Site, planes: [number, HeadMap][], signed: boolean }} options
 */
export function contextText({ site, planes, signed }) {
  const steps = data.singleText ? [] : [`step ${formatNumber(data.steps[state.step])}`];
  const parts = [data.title, site.name, ...steps, showInvisible(data.titles[state.example])];
  const pooled = poolingText(planes[0][1], signed);
  return [...parts, ...(pooled ? [pooled] : [])].map((part) => truncate(part, 70)).join(" · ");
}

/** What the numbers of a map are where its rows are no probabilities. */
const ROW_NOTES = {
  probability: "",
  sample: "Each row is a sample: one where it fell. ",
  reweighted: "Rows are weights times a window, and need not sum to one. ",
};

/**
 * Put the row or the column into words, and the cell into the tip.
 * @param {HeadView} shown
 * @param {number | null} queryAt
 * @param {number | null} keyAt
 */
export function showReading(shown, queryAt, keyAt) {
  const { site, detail: plane } = shown;
  const [asking, asked] = [siteAxis(site, "query", state.example), siteAxis(site, "key", state.example)];
  const [query, key] = [cellAt(queryAt, plane.queryBlock), cellAt(keyAt, plane.keyBlock)];
  /** @param {number} cell */
  const queryName = (cell) => cellName(asking, cell, plane.queryBlock);
  /** @param {number} cell */
  const keyName = (cell) => cellName(asked, cell, plane.keyBlock);
  const reading = byId("reading");
  if (query !== null) {
    const row = plane.values.subarray(query * plane.keys, (query + 1) * plane.keys);
    const words = shown.verbs?.[0] ?? (shown.signed ? "changes most toward" : "attends to");
    reading.textContent = `${queryName(query)} ${words} ${largestWeights(row, keyName, shown.signed) || "nothing"}`;
  } else if (key !== null) {
    const column = Float32Array.from({ length: plane.queries }, (_, at) => plane.at(at, key));
    const words = shown.verbs?.[1] ?? (shown.signed ? "changes most for" : "is read by");
    reading.textContent = `${keyName(key)} ${words} ${largestWeights(column, queryName, shown.signed) || "nothing"}`;
  } else {
    const share = shown.signed ? null : goldAlignmentWeight(site, state.example, plane);
    const measured = share === null ? "" : `${formatPercent(share)} of its weight on gold alignments in this example. `;
    reading.textContent = `${ROW_NOTES[site.values]}${measured}Point at a cell or a label; click to hold a row, shift-click a column.`;
  }
  if (query === null || key === null) return;
  const words = shown.tooltip?.(query, key) ?? plane.at(query, key).toFixed(3);
  byId("tip").replaceChildren(
    createHtml("span", { dir: "auto" }, ...tooltipName(asking, query, plane.queryBlock)),
    createHtml("i", {}, " → "),
    createHtml("span", { dir: "auto" }, ...tooltipName(asked, key, plane.keyBlock)),
    " ",
    createHtml("b", {}, hides(plane, site.causal, query, key) ? "masked" : words),
  );
}

/**
 * The three largest of some values with their names, in words.
 * @param {ArrayLike<number>} values
 * @param {(at: number) => string} nameOf
 * @param {boolean} signed
 */
export function largestWeights(values, nameOf, signed) {
  const ranked = Array.from(values, (value, at) => [at, value]).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  return ranked
    .slice(0, 3)
    .filter(([, value]) => Math.abs(value) > 0.005)
    .map(([at, value]) => {
      const name = nameOf(at);
      const sign = value < 0 ? "−" : signed ? "+" : "";
      // After a number of seconds or positions the weight needs a mark of its own.
      return `${name}${name.endsWith("”") ? "" : ":"} ${sign}${Math.abs(value).toFixed(2)}`;
    })
    .join(", ");
}

/**
 * A cell in the tip: a token with its own marks, all else in words.
 * @param {Axis} axis
 * @param {number} cell
 * @param {number} size
 */
export const tooltipName = (axis, cell, size) =>
  size === 1 && !isFrame(axis, cell)
    ? [...tokenNodes(axis.tokens[cell], 60), duplicateSuffix(axis, cell)]
    : [cellName(axis, cell, size, 60)];

/** What the page does not carry, in words; "" where it has everything. */
export function missingDataText() {
  const count = data.omittedSteps.length;
  const all = count + data.steps.length;
  const said = [];
  if (count)
    said.push(
      `${count} of ${all} stored steps of maps are left out: ${truncate(data.omittedSteps.map(formatNumber).join(", "), 160)}`,
    );
  for (const site of data.sites)
    for (const { what, there: carried } of site.missing) {
      const steps = carried ? `at ${data.steps.length - carried} of ${data.steps.length} steps` : "at all steps";
      said.push(`${what} of ${site.name} ${steps}`);
    }
  const damaged = data.damageMessages.map((what) => `${what}: not shown.`).join(" ");
  if (!said.length) return damaged;
  const [first, ...others] = said;
  const words = count ? [first, ...others].join("; so are ") : `${said.join("; ")} are left out`;
  return `${damaged} To keep this file small, ${words}. The run's own store has them all.`.trimStart();
}

/** What the run was, in a few facts. */
export function runFacts() {
  const heads = data.sites.reduce((sum, site) => sum + site.layers.length * site.heads.length, 0);
  const said = [`${pluralize(heads, "head")} at ${pluralize(data.sites.length, "site")}`];
  if (!data.singleText) said.push(`maps at ${pluralize(data.steps.length, "step")}`);
  if (!data.singleText || data.titles.length > 1) said.push(pluralize(data.titles.length, data.singleText ? "text" : "example"));
  const count = data.parameters ?? 0;
  const parameters = count < 1e7 ? formatNumber(count) : formatCompact(count);
  if (count) said.unshift(`${parameters} parameters`);
  if (data.device) said.push(`${data.device.count} × ${data.device.kind}`);
  if (data.started) said.push(data.started.slice(0, 10));
  if (data.commit) said.push(`commit ${data.commit.slice(0, 10)}`);
  return data.singleText ? said : [...said, `config ${data.configHash.slice(0, 8)}`];
}
