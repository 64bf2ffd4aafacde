// Every run: what it was, how it ended, and the commands that show its heads and that train it again.

import { createHtml, find, ownValue, smallButton } from "../../pages/dom.js";
import { downloadBlob, downloadCsv } from "../../pages/figure_export.js";
import { formatOrDash, showInvisible, withSpaces } from "../../pages/formatting.js";
import { armLabel, findArm, hasSeveralTasks } from "./arms.js";
import { ablation } from "./page_data.js";
import {
  addPanel,
  COMMANDS_NOTE,
  createCopyButton,
  formatTunedValue,
  line,
  makeSortable,
  mapsCommand,
  shortKey,
  tunedKeys,
  valueNode,
} from "./panels_and_tables.js";

/** @import { Run, RunColumn } from "./types.js" */

/**
 * The columns of the runs: their heads, and the value by which a column sorts.
 * @returns {RunColumn[]}
 */
function runColumns() {
  return [
    { head: "arm", value: ({ arm }) => arm, cell: ({ arm }) => line(...armLabel(arm)) },
    ...(hasSeveralTasks ? [{ head: "task", value: (/** @type {Run} */ { task }) => task }] : []),
    { head: "seed", value: ({ seed }) => seed },
    ...tunedKeys().map((key) => ({
      head: shortKey(key),
      value: (/** @type {Run} */ { hyperparameters }) => ownValue(hyperparameters, key) ?? null,
      cell: (/** @type {Run} */ { hyperparameters }) => formatTunedValue(ownValue(hyperparameters, key)),
    })),
    { head: "state", value: ({ state }) => state, cell: (cell) => runStateCell(cell) },
    { head: withSpaces(ablation.selection_metric), value: ({ selection_value: value }) => value },
    { head: withSpaces(ablation.reported_metric), value: ({ reported_value: value }) => value },
    { head: "steps", value: ({ steps }) => steps },
  ];
}

/** @param {Run} run */
function runStateCell({ arm, task, directory, state }) {
  const taken = findArm(arm)?.seeds.some((each) => each.task === task && each.directory === directory);
  const words = createHtml("span", { class: `state ${showInvisible(state)}` }, showInvisible(state));
  return taken && tunedKeys().length
    ? [words, createHtml("span", { class: "taken-mark", title: "at the arm's chosen values" }, " chosen")]
    : [words];
}

export function showRuns() {
  const columns = runColumns();
  const head = columns.map(({ head }) => createHtml("th", { scope: "col" }, head));
  const last = ["attention maps", "training command"].map((words) => createHtml("th", { scope: "col" }, words));
  const body = createHtml("tbody", {});
  const table = createHtml(
    "table",
    { id: "cells-table", class: "figures" },
    createHtml("thead", {}, createHtml("tr", {}, ...head, ...last)),
    body,
  );
  body.append(...ablation.runs.map((run) => runRow(run, columns)));
  makeSortable(table, columns, ablation.runs);
  const scroll = createHtml(
    "div",
    { class: "scroll long", tabindex: 0, role: "region", "aria-label": "Every run" },
    table,
  );
  const panel = addPanel("cells", "Every run", COMMANDS_NOTE, scroll);
  const saving = [
    smallButton("CSV of the runs", () => downloadCsv(runTable(), ["runs"]), { id: "save-csv" }),
    smallButton("JSON of everything", () => downloadBlob(resultAsJson(), [], "json"), { id: "save-json" }),
  ];
  find(panel, ".panel-head").append(createHtml("div", { class: "exports" }, ...saving));
}

/**
 * @param {Run} cell
 * @param {RunColumn[]} columns
 */
function runRow(cell, columns) {
  const parts = columns.map(({ value, cell: write }) => {
    if (write) return createHtml("td", {}, ...[write(cell)].flat());
    const held = value(cell);
    return createHtml("td", {}, typeof held === "string" ? showInvisible(held) : valueNode(held, formatOrDash(held)));
  });
  return createHtml(
    "tr",
    {},
    ...parts,
    commandCell(runMapsCommand(cell), cell),
    commandCell(String(cell.command ?? ""), cell),
  );
}

/**
 * @param {string} command
 * @param {Run} run
 */
const commandCell = (command, { directory }) =>
  createHtml(
    "td",
    { class: "of-command" },
    ...(command
      ? [
          createHtml(
            "span",
            {},
            createCopyButton(command),
            createHtml("code", { title: showInvisible(directory ?? "") }, showInvisible(command)),
          ),
        ]
      : []),
  );

/**
 * What writes the page of a run's heads, beside those of the reference with the same seed and values.
 * @param {Run} run
 */
function runMapsCommand({ arm, task, seed, hyperparameters, directory, state, trust }) {
  if (!directory || !ablation.about?.maps_command || !["done", "stuck"].includes(state)) return "";
  const alike = JSON.stringify(hyperparameters);
  const other = ablation.runs.find(
    (each) =>
      each.arm === ablation.reference &&
      each.task === task &&
      each.seed === seed &&
      JSON.stringify(each.hyperparameters) === alike,
  );
  const study = ablation.about?.workdir;
  /** @param {string} each */
  const path = (each) => (study ? `${study}/${each}` : each);
  const against = arm !== ablation.reference && other?.directory ? path(other.directory) : "";
  return mapsCommand(path(directory), trust, against);
}

const resultAsJson = () => new Blob([JSON.stringify(ablation, null, 1), "\n"], { type: "application/json" });

/** The runs as a table, a row a run, with the columns of the CSV that stands beside the page. */
function runTable() {
  const [before, after] = [
    ["arm", "task", "seed"],
    ["state", "selection_value", "reported_value", "steps", "started", "commit", "hardware", "directory", "command"],
  ];
  const rows = ablation.runs.map((cell) => [
    ...before.map((name) => cell[name]),
    ...tunedKeys().map((key) => ownValue(cell.hyperparameters, key)),
    ...after.map((name) => cell[name]),
  ]);
  return [[...before, ...tunedKeys(), ...after], ...rows];
}
