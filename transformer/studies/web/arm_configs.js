// What differs between the arms, in full, and what they share.

import { createHtml } from "../../pages/dom.js";
import { formatOrDash, formatValue, pluralize, showInvisible } from "../../pages/formatting.js";
import { armLabel } from "./arms.js";
import { ablation } from "./page_data.js";
import { addPanel, createDetails, createTable, scrollable } from "./panels_and_tables.js";

/** @import { Arm, TableColumn } from "./types.js" */

export function showArmConfigs() {
  const same =
    "All other keys are equal in all arms; with the same seed, every arm reads the same batches in the " +
    "same order.";
  const panel = addPanel("configs", "Configuration differences", same);
  panel.append(createHtml("div", { class: "trio" }, ...ablation.arms.map(armConfig)));
  const versions = ablation.about?.versions;
  if (versions && typeof versions === "object") panel.append(configDetails("Versions", Object.entries(versions)));
  const base = ablation.about?.base;
  if (base) panel.append(configDetails("Base configuration", flattenConfig(base)));
}

/**
 * Keys and values behind a fold.
 * @param {string} title
 * @param {[string, any][]} entries
 */
function configDetails(title, entries) {
  const rows = entries.map(([key, value]) =>
    createHtml(
      "tr",
      {},
      createHtml("th", { scope: "row" }, showInvisible(key)),
      createHtml("td", {}, formatValue(value)),
    ),
  );
  const table = createHtml("table", { class: "config" }, createHtml("tbody", {}, ...rows));
  return createDetails(title, scrollable(table));
}

/** @param {Arm} arm */
function armConfig(arm) {
  const { differences, shared } = arm;
  const block = createHtml("section", { class: "arm-config" }, createHtml("h3", {}, ...armLabel(arm.name)));
  if (arm.name === ablation.reference) block.append(createHtml("p", { class: "note" }, "The reference."));
  if (differences.length) {
    /** @type {TableColumn[]} */
    const columns = [
      { head: "key", cell: ({ key }) => createHtml("code", {}, showInvisible(key)) },
      { head: showInvisible(ablation.reference), cell: ({ reference }) => formatValue(reference) },
      { head: showInvisible(arm.name), cell: (row) => createHtml("b", {}, formatValue(row.arm)) },
    ];
    const table = createTable(`How ${showInvisible(arm.name)} differs`, columns, differences, { class: "figures" });
    block.append(scrollable(table));
  }
  if (shared && arm.name !== ablation.reference)
    block.append(
      createHtml("p", { class: "note" }, sharedParametersText(shared)),
      ...parameterPaths("other values than the reference", shared.differing_paths),
      ...parameterPaths("no counterpart in the reference", shared.unmatched_paths),
    );
  return block;
}

/** @param {{ num_equal_arrays: number, num_arrays: number }} options */
const sharedParametersText = ({ num_equal_arrays: equal, num_arrays: all }) =>
  equal === all
    ? `All ${pluralize(all, "array")} of parameters begin with the reference's values.`
    : `Of ${pluralize(all, "array")} of parameters ${formatOrDash(equal)} begin with the reference's values.`;

/**
 * The parameters that do not begin as the reference's, behind a fold.
 * @param {string} what
 * @param {string[] | undefined} paths
 */
function parameterPaths(what, paths) {
  if (!paths?.length) return [];
  const items = paths.map((path) => createHtml("li", {}, createHtml("code", {}, showInvisible(String(path)))));
  const words = `${pluralize(paths.length, "array")} with ${what}`;
  return [createDetails(words, createHtml("ul", { class: "paths" }, ...items))];
}

/**
 * @param {any} value
 * @param {string} [key]
 * @returns {[string, any][]}
 */
function flattenConfig(value, key = "") {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return [[key, value]];
  const entries = Object.entries(value);
  if (!entries.length) return key ? [[key, {}]] : [];
  return entries.flatMap(([name, each]) => flattenConfig(each, key ? `${key}.${name}` : name));
}
