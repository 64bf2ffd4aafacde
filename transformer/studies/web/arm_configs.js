// What differs between the arms, in full, and what they share.

import { make } from "../../pages/dom.js";
import { brief, counted, visible, worded } from "../../pages/formatting.js";
import { named } from "./arms.js";
import { data } from "./page_data.js";
import { addPanel, fold, makeTable, scrolling } from "./panels_and_tables.js";

export function showConfigs() {
  const same =
    "Keys that are neither named nor tuned are equal in all arms; with a seed every arm reads the same batches in the " +
    "same order.";
  const panel = addPanel("configs", "What differs", same);
  panel.append(make("div", { class: "trio" }, ...data.arms.map(armConfig)));
  const versions = data.about?.versions;
  if (versions && typeof versions === "object") panel.append(foldOf("Versions", Object.entries(versions)));
  const base = data.about?.base;
  if (base) panel.append(foldOf("The configuration that all arms begin with", flatKeys(base)));
}

/** Keys and values behind a fold. */
function foldOf(title, entries) {
  const rows = entries.map(([key, value]) =>
    make("tr", {}, make("th", { scope: "row" }, visible(key)), make("td", {}, worded(value))),
  );
  const table = make("table", { class: "config" }, make("tbody", {}, ...rows));
  return fold(title, scrolling(table));
}

function armConfig(arm) {
  const { differences, shared } = arm;
  const block = make("section", { class: "arm-config" }, make("h3", {}, ...named(arm.name)));
  if (arm.name === data.reference) block.append(make("p", { class: "note" }, "The reference."));
  if (differences.length) {
    const columns = [
      { head: "key", cell: ({ key }) => make("code", {}, visible(key)) },
      { head: visible(data.reference), cell: ({ reference }) => worded(reference) },
      { head: visible(arm.name), cell: (row) => make("b", {}, worded(row.arm)) },
    ];
    const table = makeTable(`How ${visible(arm.name)} differs`, columns, differences, { class: "figures" });
    block.append(scrolling(table));
  }
  if (shared && arm.name !== data.reference)
    block.append(
      make("p", { class: "note" }, sharedWords(shared)),
      ...pathsOf("other values than the reference", shared.differing),
      ...pathsOf("no counterpart in the reference", shared.apart),
    );
  return block;
}

const sharedWords = ({ same, of }) =>
  same === of
    ? `All ${counted(of, "array")} of parameters begin with the reference's values.`
    : `Of ${counted(of, "array")} of parameters ${brief(same)} begin with the reference's values.`;

/** The parameters that do not begin as the reference's, behind a fold. */
function pathsOf(what, paths) {
  if (!paths?.length) return [];
  const items = paths.map((path) => make("li", {}, make("code", {}, visible(String(path)))));
  const words = `${counted(paths.length, "array")} with ${what}`;
  return [fold(words, make("ul", { class: "paths" }, ...items))];
}

function flatKeys(value, key = "") {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return [[key, value]];
  const entries = Object.entries(value);
  if (!entries.length) return key ? [[key, {}]] : [];
  return entries.flatMap(([name, each]) => flatKeys(each, key ? `${key}.${name}` : name));
}
