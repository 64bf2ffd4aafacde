// The configuration of the run, and in which keys that of another run differs.

import { byId, createHtml } from "../../../pages/dom.js";
import { showInvisible } from "../../../pages/formatting.js";
import { data } from "./page_data.js";

export function showConfig() {
  byId("config").append(...data.config.map((entry) => configRow(entry)));
  if (!data.otherRun) return;
  const [ours, theirs] = [new Map(data.config), new Map(data.otherRun.config)];
  const keys = [...new Set([...ours.keys(), ...theirs.keys()])].filter((key) => ours.get(key) !== theirs.get(key));
  const head = ["key", data.title, data.otherRun.title].map((words) =>
    createHtml("th", { scope: "col" }, showInvisible(words)),
  );
  const rows = keys.map((key) => configRow([key, ours.get(key) ?? "–", theirs.get(key) ?? "–"]));
  const table = createHtml(
    "table",
    { class: "config" },
    createHtml("thead", {}, createHtml("tr", {}, ...head)),
    createHtml("tbody", {}, ...rows),
  );
  const words = keys.length ? "Where the configurations differ" : "The configurations are the same";
  byId("config-differences").append(createHtml("h3", {}, words), ...(keys.length ? [table] : []));
}

/** @param {string[]} options */
const configRow = ([key, ...values]) =>
  createHtml(
    "tr",
    {},
    createHtml("th", { scope: "row" }, showInvisible(key)),
    ...values.map((value) => createHtml("td", {}, showInvisible(value))),
  );
