// Every run: what it was, how it ended, and the commands that show its heads and that train it again.

import { make, own, smallButton } from "../../pages/dom.js";
import { handOut, handOutTable } from "../../pages/figure_export.js";
import { brief, isNumber, spaced, visible, worded } from "../../pages/formatting.js";
import { armNamed, named, severalTasks } from "./arms.js";
import { data } from "./page_data.js";
import {
  addPanel, COMMANDS_RUN_FROM, copyButton, exact, line, mapsCommand, shortKey, tunedKeys, tunedWords,
} from "./panels_and_tables.js";

const sorting = { column: null, descending: false };

/** The columns of the runs: their heads, and the value by which a column sorts. */
function cellColumns() {
  return [
    { head: "arm", value: ({ arm }) => arm, cell: ({ arm }) => line(...named(arm)) },
    ...(severalTasks ? [{ head: "task", value: ({ task }) => task }] : []),
    { head: "seed", value: ({ seed }) => seed },
    ...tunedKeys().map((key) => ({
      head: shortKey(key),
      value: ({ tuned }) => own(tuned, key) ?? null,
      cell: ({ tuned }) => tunedWords(own(tuned, key)),
    })),
    { head: "state", value: ({ state }) => state, cell: (cell) => stateOf(cell) },
    { head: spaced(data.chosen_by), value: ({ chosen }) => chosen },
    { head: spaced(data.reported), value: ({ reported }) => reported },
    { head: "steps", value: ({ steps }) => steps },
  ];
}

function stateOf({ arm, task, directory, state }) {
  const taken = armNamed(arm)?.seeds.some((each) => each.task === task && each.directory === directory);
  const words = make("span", { class: `state ${visible(state)}` }, visible(state));
  return taken && tunedKeys().length
    ? [words, make("span", { class: "taken-mark", title: "at the arm's chosen values" }, " chosen")]
    : [words];
}

export function showCells() {
  const columns = cellColumns();
  const head = columns.map(({ head }, index) => {
    const button = make("button", { type: "button", class: "sort" }, head);
    const cell = make("th", { scope: "col", "aria-sort": "none" }, button);
    button.addEventListener("click", () => sortBy(index));
    return cell;
  });
  const last = ["its maps", "the command that trains it"].map((words) => make("th", { scope: "col" }, words));
  const body = make("tbody", {});
  const table = make(
    "table",
    { id: "cells-table", class: "figures" },
    make("thead", {}, make("tr", {}, ...head, ...last)),
    body,
  );
  const rows = data.cells.map((cell) => [cell, cellRow(cell, columns)]);
  body.append(...rows.map(([, row]) => row));
  const scroll = make("div", { class: "scroll long", tabindex: 0, role: "region", "aria-label": "Every run" }, table);
  const panel = addPanel("cells", "Every run", COMMANDS_RUN_FROM, scroll);
  const saving = [
    smallButton("CSV of the runs", () => handOutTable(runRows(), ["runs"]), { id: "save-csv" }),
    smallButton("JSON of everything", () => handOut(wholeResult(), [], "json"), { id: "save-json" }),
  ];
  panel.querySelector(".panel-head").append(make("div", { class: "exports" }, ...saving));

  function sortBy(index) {
    sorting.descending = sorting.column === index && !sorting.descending;
    sorting.column = index;
    const order = [...rows].sort(([a], [b]) => compared(columns[index].value(a), columns[index].value(b)));
    body.replaceChildren(...order.map(([, row]) => row));
    head.forEach((cell, at) => {
      const direction = sorting.descending ? "descending" : "ascending";
      cell.setAttribute("aria-sort", at === index ? direction : "none");
    });
  }
}

/** What has no value stays last, whichever way is sorted. */
function compared(a, b) {
  const absent = (value) => value === null || value === undefined;
  if (absent(a) || absent(b)) return absent(a) - absent(b);
  const order = isNumber(a) && isNumber(b) ? a - b : worded(a).localeCompare(worded(b), "en", { numeric: true });
  return sorting.descending ? -order : order;
}

function cellRow(cell, columns) {
  const parts = columns.map(({ value, cell: write }) => {
    if (write) return make("td", {}, ...[write(cell)].flat());
    const held = value(cell);
    return make("td", {}, typeof held === "string" ? visible(held) : exact(held, brief(held)));
  });
  return make("tr", {}, ...parts, commandCell(mapsOf(cell), cell), commandCell(String(cell.command ?? ""), cell));
}

const commandCell = (command, { directory }) =>
  make(
    "td",
    { class: "of-command" },
    ...(command
      ? [make("span", {}, copyButton(command), make("code", { title: visible(directory ?? "") }, visible(command)))]
      : []),
  );

/** What writes the page of a run's heads, beside those of the reference with the same seed and values. */
function mapsOf({ arm, task, seed, tuned, directory, state, trust }) {
  if (!directory || !data.about?.maps_command || !["done", "stuck"].includes(state)) return "";
  const alike = JSON.stringify(tuned);
  const other = data.cells.find(
    (each) =>
      each.arm === data.reference && each.task === task && each.seed === seed && JSON.stringify(each.tuned) === alike,
  );
  const study = data.about?.workdir;
  const path = (each) => (study ? `${study}/${each}` : each);
  const against = arm !== data.reference && other?.directory ? path(other.directory) : "";
  return mapsCommand(path(directory), trust, against);
}

const wholeResult = () => new Blob([JSON.stringify(data, null, 1), "\n"], { type: "application/json" });

/** The runs as a table, a row a run, with the columns of the CSV that stands beside the page. */
function runRows() {
  const [before, after] = [
    ["arm", "task", "seed"],
    ["state", "chosen", "reported", "steps", "directory", "command"],
  ];
  const rows = data.cells.map((cell) => [
    ...before.map((name) => cell[name]),
    ...tunedKeys().map((key) => own(cell.tuned, key)),
    ...after.map((name) => cell[name]),
  ]);
  return [[...before, ...tunedKeys(), ...after], ...rows];
}
