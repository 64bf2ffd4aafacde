// The table of all runs: what each is, how far it is, what it has reached, and the commands that go on with it.

import { createHtml, smallButton } from "../../pages/dom.js";
import { downloadCsv } from "../../pages/figure_export.js";
import { formatCompact, formatOrDash, isNumber, pluralize, showInvisible, withSpaces } from "../../pages/formatting.js";
import { listing } from "./page_data.js";
import {
  addPanel,
  createCopyButton,
  createTable,
  formatTunedValue,
  makeSortable,
  shellQuote,
  valueNode,
} from "./panels_and_tables.js";
import { choice, configValue, markRun, matchesFilter, matchingRuns } from "./runs_choice.js";
import { bestPoint, curveOf } from "./runs_curves.js";

/** @import { Child } from "../../pages/types.js" */
/** @import { ListedRun, ListedStudy, RunsChoice, SortableColumn, TableColumn } from "./types.js" */

const NUM_KEYS = 8; // config keys that have columns
const NUM_BEST = 10; // runs that a button draws alone
const RESUMABLE = ["stopped", "failed", "diverged"];
/** @type {[number, string][]} */
const AGES = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]]; // prettier-ignore

/**
 * A time before the page was written, as 5m or 3h.
 * @param {number} modified
 */
function formatAge(modified) {
  const seconds = Math.max(0, (listing.written - modified) / 1000);
  const [size, unit] = AGES.find(([size]) => seconds >= size) ?? [1, "s"];
  const words = `${Math.round(seconds / size)}${unit}`;
  return createHtml("span", { class: "nowrap", title: new Date(modified).toString() }, words);
}

/** @param {number} bytes */
function formatBytes(bytes) {
  const words = `${formatCompact(bytes, 2).replace(/(?=[a-zA-Z]|$)/, " ")}B`;
  return createHtml("data", { value: String(bytes), class: "nowrap" }, words);
}

/**
 * The path of a file of a run or a study from the page, every part of it escaped.
 * @param {string} name
 * @param {string} file
 */
function fileAddress(name, file) {
  const parts = [...(name === "." ? [] : name.split("/")), file];
  return `./${parts.map((part) => encodeURIComponent(part.toWellFormed())).join("/")}`;
}

/**
 * A name that is a link to a page where there is one; a served page reaches no files.
 * @param {string} name
 * @param {string | null} file
 */
function nameNode(name, file) {
  const words = showInvisible(name);
  if (!file || listing.served) return createHtml("span", {}, words);
  return createHtml("a", { href: fileAddress(name, file) }, words);
}

/** @param {string} name */
const directoryOf = (name) => (name === "." ? listing.folder : `${listing.folder}/${name}`);

/**
 * @param {string} command
 * @param {ListedRun} run
 */
const runCommand = (command, { name, trust }) =>
  `${command} --workdir=${shellQuote(directoryOf(name))}${trust ? ` ${trust}` : ""}`;

/** @param {string[]} problems */
const problemNodes = (problems) =>
  problems.length ? [createHtml("div", { class: "problems" }, showInvisible(problems.join("; ")))] : [];

/** @param {string} state */
const stateNode = (state) =>
  createHtml("span", { class: `state ${state === "unreadable" ? "failed" : state}` }, state);

/** @returns {(TableColumn & SortableColumn)[]} */
function listedColumns() {
  const metrics = listing.metrics.slice(0, listing.num_columns).flatMap(({ name, direction }, index) => {
    /** @type {(point: import("./types.js").CurvePoint | null | undefined) => Child} */
    const node = (point) => valueNode(point?.value, formatOrDash(point?.value));
    /** @param {ListedRun} run */
    const last = (run) => curveOf(run, index).at(-1);
    const lastColumn = {
      head: withSpaces(name),
      value: (/** @type {ListedRun} */ run) => last(run)?.value ?? null,
      cell: (/** @type {ListedRun} */ run) => [node(last(run))],
    };
    const bestColumn = {
      head: listing.num_columns > 1 ? `best ${withSpaces(name.split("/").slice(1).join("/"))}` : "best",
      title: `the ${direction === "minimize" ? "lowest" : "highest"} ${name}`,
      value: (/** @type {ListedRun} */ run) => bestPoint(run, index)?.value ?? null,
      cell: (/** @type {ListedRun} */ run) => [node(bestPoint(run, index))],
    };
    return direction ? [lastColumn, bestColumn] : [lastColumn];
  });
  const keys = listing.keys.slice(0, NUM_KEYS).map(({ name, label }) => ({
    head: showInvisible(label),
    title: name,
    value: (/** @type {ListedRun} */ run) => configValue(run, name) ?? null,
    cell: (/** @type {ListedRun} */ run) => {
      const value = configValue(run, name);
      return value === undefined ? [] : [formatTunedValue(value)];
    },
  }));
  return [
    { head: "run", value: ({ name }) => name, cell: (run) => [runNameNode(run)] },
    { head: "state", value: ({ state }) => state, cell: ({ state }) => [stateNode(state)] },
    { head: "step", value: ({ step }) => step, cell: ({ step, steps }) => [stepNode(step, steps)] },
    ...metrics,
    ...keys,
    // By age, so that the newest comes first.
    { head: "age", value: ({ modified }) => -modified, cell: ({ modified }) => [formatAge(modified)] },
    { head: "size", value: ({ bytes }) => bytes, cell: ({ bytes }) => [formatBytes(bytes)] },
    { head: "copy", cell: (run) => [commandButtons(run)] },
  ];
}

/**
 * @param {number} step
 * @param {number | null} steps
 */
const stepNode = (step, steps) =>
  createHtml(
    "span",
    { class: "nowrap" },
    formatOrDash(step) + (isNumber(steps) && steps !== step ? ` / ${formatOrDash(steps)}` : ""),
  );

/** @param {ListedRun} run */
function runNameNode(run) {
  const box = createHtml("input", { type: "checkbox", "aria-label": `draw ${showInvisible(run.name)}` });
  const config = run.config && run.config !== run.name.split("/").at(-1) ? [run.config] : [];
  const names = [
    nameNode(run.name, run.report ? "report.html" : null),
    ...config.flatMap((name) => [" ", createHtml("span", { class: "config-name" }, showInvisible(name))]),
  ];
  const words = createHtml("span", {}, createHtml("span", { dir: "auto" }, ...names), ...problemNodes(run.problems));
  return createHtml("span", { class: "run-name" }, box, words);
}

/** @param {ListedRun} run */
function commandButtons(run) {
  const report = createCopyButton(runCommand(listing.maps_command, run), "report");
  const resume = RESUMABLE.includes(run.state) && !run.study;
  const train = resume ? [createCopyButton(runCommand(listing.train_command, run), "resume")] : [];
  return createHtml("span", { class: "command-buttons" }, report, ...train);
}

/**
 * Add the panel of the table; `change` changes the choice. The function that is returned shows the choice in it.
 * @param {(changes: Partial<RunsChoice>) => void} change
 */
export function showRunsTable(change) {
  const columns = listedColumns();
  const table = createTable("Runs", columns, listing.runs, { id: "runs-table", class: "figures cards" });
  const heads = [...(table.tHead?.rows[0].cells ?? [])];
  heads.forEach((cell, index) => cell.replaceChildren(...breakable(columns[index].head)));
  const rows = new Map(listing.runs.map((run, index) => [run, table.tBodies[0].rows[index]]));
  for (const [run, row] of rows) {
    row.setAttribute("data-series", run.name);
    row.addEventListener("pointerenter", () => markRun(run.name));
    const box = /** @type {HTMLInputElement} */ (row.querySelector("input"));
    box.addEventListener("change", () => {
      const hidden = new Set(choice.hidden);
      if (box.checked) hidden.delete(run.name);
      else hidden.add(run.name);
      change({ hidden });
    });
  }
  const sort = makeSortable(table, columns, listing.runs, (head, descending) => change({ sort: head, descending }));
  if (choice.sort) sort(choice.sort, choice.descending);
  const scroll = createHtml("div", { class: "scroll long", tabindex: 0, role: "region", "aria-label": "Runs" }, table);
  const panel = addPanel("runs", "Runs", `${keysNote()}${commandsNote()}`, scroll);
  const names = listing.runs.map(({ name }) => name);
  const tools = [
    smallButton("draw all", () => change({ hidden: new Set() }), { id: "draw-all" }),
    smallButton("draw none", () => change({ hidden: new Set(names) }), { id: "draw-none" }),
    smallButton(`draw the best ${NUM_BEST}`, () => change({ hidden: allButBest() }), { id: "draw-best" }),
    smallButton("CSV", () => downloadCsv(runsAsTable(), ["runs"]), { id: "save-csv" }),
  ];
  panel.querySelector(".panel-head")?.append(createHtml("div", { class: "table-tools" }, ...tools));
  return () => {
    for (const [run, row] of rows) {
      row.hidden = !matchesFilter(run);
      const box = /** @type {HTMLInputElement} */ (row.querySelector("input"));
      box.checked = !choice.hidden.has(run.name);
    }
  };
}

/**
 * A name of the code that may be broken after each of its parts.
 * @param {string} name
 * @returns {Child[]}
 */
const breakable = (name) => name.split(/(?<=[/_.])/).flatMap((part) => [part, createHtml("wbr")]);

/** Paths in commands are those of the command that wrote the page, so relative ones start there. */
const commandsNote = () =>
  listing.folder.startsWith("/") || listing.folder.startsWith("gs://")
    ? ""
    : "Run the copied commands in the directory where this page was made.";

function keysNote() {
  const more = listing.keys.length - NUM_KEYS + listing.num_keys_left_out;
  return more > 0 ? `${pluralize(more, "more config key")} differ: the CSV has them. ` : "";
}

/** The names of all runs but those with the best values of the chosen metric among the ones that match. */
function allButBest() {
  const metric = listing.metrics.findIndex(({ name }) => name === choice.metric);
  if (metric < 0) return new Set(choice.hidden);
  const sign = listing.metrics[metric].direction === "maximize" ? -1 : 1;
  const best = matchingRuns()
    .flatMap((run) => {
      const point = bestPoint(run, metric);
      return point ? [{ name: run.name, value: sign * point.value }] : [];
    })
    .sort((a, b) => a.value - b.value)
    .slice(0, NUM_BEST)
    .map(({ name }) => name);
  return new Set(listing.runs.map(({ name }) => name).filter((name) => !best.includes(name)));
}

/** The runs that match the filter as rows, with every key in which runs differ. */
function runsAsTable() {
  const metrics = listing.metrics.slice(0, listing.num_columns);
  const heads = ["run", "config", "state", "step", "steps", ...metrics.flatMap(({ name }) => [name, `best ${name}`])];
  const rows = matchingRuns().map((run) => [
    ...[run.name, run.config, run.state, run.step, run.steps],
    ...metrics.flatMap((_, index) => [curveOf(run, index).at(-1)?.value, bestPoint(run, index)?.value]),
    ...listing.keys.map(({ name }) => configValue(run, name)),
    ...[new Date(run.modified).toISOString(), run.bytes, run.problems.join("; ")],
  ]);
  const keys = listing.keys.map(({ name }) => `config.${name}`);
  return [[...heads, ...keys, "modified", "bytes", "problems"], ...rows];
}

/** Add the panel of the sweeps and ablations, if there are any. */
export function showStudies() {
  if (!listing.studies.length) return;
  /** @type {(TableColumn & SortableColumn)[]} */
  const columns = [
    { head: "study", value: ({ name }) => name, cell: ({ name, page }) => [nameNode(name, page)] },
    { head: "kind", value: ({ kind }) => kind, cell: ({ kind }) => [kind] },
    {
      head: "state",
      value: ({ state }) => state,
      cell: (/** @type {ListedStudy} */ { state, problems }) => [stateNode(state), ...problemNodes(problems)],
    },
    { head: "runs", cell: ({ counts }) => [counts] },
    { head: "age", value: ({ modified }) => -modified, cell: ({ modified }) => [formatAge(modified)] },
    { head: "size", value: ({ bytes }) => bytes, cell: ({ bytes }) => [formatBytes(bytes)] },
  ];
  const attributes = { id: "studies-table", class: "figures cards" };
  const table = createTable("Sweeps and ablations", columns, listing.studies, attributes);
  makeSortable(table, columns, listing.studies);
  addPanel("studies", "Sweeps and ablations", "", createHtml("div", { class: "scroll" }, table));
}
