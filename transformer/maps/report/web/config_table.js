// The configuration of the run, and in which keys that of another run differs.

import { byId, make } from "../../../pages/dom.js";
import { visible } from "../../../pages/formatting.js";
import { data } from "./page_data.js";

export function showConfig() {
  byId("config").append(...data.config.map((entry) => configRow(entry)));
  if (!data.against) return;
  const [ours, theirs] = [new Map(data.config), new Map(data.against.config)];
  const keys = [...new Set([...ours.keys(), ...theirs.keys()])].filter((key) => ours.get(key) !== theirs.get(key));
  const head = ["key", data.title, data.against.title].map((words) => make("th", { scope: "col" }, visible(words)));
  const rows = keys.map((key) => configRow([key, ours.get(key) ?? "–", theirs.get(key) ?? "–"]));
  const table = make("table", { class: "config" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
  const words = keys.length ? "Where the configurations differ" : "The configurations are the same";
  byId("config-differences").append(make("h3", {}, words), ...(keys.length ? [table] : []));
}

const configRow = ([key, ...values]) =>
  make("tr", {}, make("th", { scope: "row" }, visible(key)), ...values.map((value) => make("td", {}, visible(value))));
