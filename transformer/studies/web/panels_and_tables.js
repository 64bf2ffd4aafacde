// Numbers, tables and panels of a study's page. The files of this folder stand behind those of transformer/pages in one
// module, in the order that page.py or sweep_page.py gives. `study.hyperparameter_values` are the values of each tuned key.

import { onColorSchemeChange } from "../../pages/color_scale.js";
import { byId, createHtml, onResize, showError, smallButton } from "../../pages/dom.js";
import { redrawAllFigures } from "../../pages/figure.js";
import {
  formatNumber,
  formatValue,
  isNumber,
  showInvisible,
  withMinusSign,
  withSpaces,
} from "../../pages/formatting.js";
import { study } from "./page_data.js";

/** @import { Attributes, Child } from "../../pages/types.js" */
/** @import { Interval, SortableColumn, TableColumn } from "./types.js" */

const MAX_DECIMALS = 6;
export const lowerIsBetter = study.direction === "minimize";

// --- numbers ---

const fixedFormats = new Map();

/**
 * A number with so many decimals; a dash where there is none.
 * @param {unknown} value
 * @param {number} decimals
 */
export function formatFixed(value, decimals) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  // What is too small for as many decimals as are ever given is written as a power of ten.
  if (size >= 1e6 || (decimals === MAX_DECIMALS && size !== 0 && size < 1e-5))
    return withMinusSign(formatNumber(value));
  if (!fixedFormats.has(decimals)) {
    const digits = { minimumFractionDigits: decimals, maximumFractionDigits: decimals };
    fixedFormats.set(decimals, new Intl.NumberFormat("en", digits));
  }
  return withMinusSign(fixedFormats.get(decimals).format(value));
}

/** @param {unknown} share */
export const formatPercent = (share) =>
  isNumber(share) ? `${formatNumber(Number((100 * share).toPrecision(3)))}%` : "–";
/**
 * @param {any} value
 * @param {number} decimals
 */
export const formatSignedFixed = (value, decimals) =>
  (isNumber(value) && value > 0 ? "+" : "") + formatFixed(value, decimals);

/**
 * As many decimals as the narrowest of some intervals needs to show two digits of its half.
 * @param {(Interval | undefined)[]} intervals
 * @param {(number | null)[]} [values]
 */
export function decimalsFor(intervals, values = []) {
  const halves = intervals.flatMap((each) => (each ? [(each[1] - each[0]) / 2] : []));
  const sizes = halves.some((half) => half > 0) ? halves : values.filter(isNumber).map((value) => Math.abs(value) / 50);
  const least = Math.min(...sizes.filter((size) => size > 0));
  return Number.isFinite(least) ? Math.min(MAX_DECIMALS, Math.max(0, 1 - Math.floor(Math.log10(least)))) : 3;
}

/**
 * A number in a table, exact in what the element holds, rounded in what is seen.
 * @param {any} value
 * @param {string} words
 */
export const valueNode = (value, words) =>
  isNumber(value) ? createHtml("data", { value: String(value) }, words) : createHtml("span", { class: "none" }, "–");

/**
 * "[0.12, 0.34]", both ends exact underneath; nothing where there is no interval.
 * @param {Interval | undefined} interval
 * @param {number} decimals
 * @param {(value: unknown, decimals: number) => string} [write]
 */
export function intervalNodes(interval, decimals, write = formatFixed) {
  if (!interval) return [];
  // An end beside 0 keeps a digit: nobody is to read that the interval holds 0.
  /** @param {number} end */
  const words = (end) => write(end, end && Math.abs(end) < 0.5 / 10 ** decimals ? decimalsOfFirstDigit(end) : decimals);
  const [low, high] = interval.map((end) => valueNode(end, words(end)));
  return [createHtml("span", { class: "interval" }, "[", low, ", ", high, "]")];
}

/**
 * As many decimals as a number below 1 needs to show its first digit.
 * @param {number} value
 */
const decimalsOfFirstDigit = (value) => Math.min(MAX_DECIMALS, Math.ceil(-Math.log10(Math.abs(value))));

/** @param {string} task */
export const taskName = (task) => (task === "" ? "the task" : showInvisible(String(task)));

/**
 * The last part of a dotted key, or the whole of it where another tuned key ends alike.
 * @param {string} key
 */
export function shortKey(key) {
  const last = String(key).split(".").at(-1);
  const alike = tunedKeys().filter((other) => other.split(".").at(-1) === last);
  return withSpaces(alike.length > 1 ? key : last);
}

export const tunedKeys = () => Object.keys(study.hyperparameter_values ?? {});

/** @param {any} value */
export const formatTunedValue = (value) =>
  isNumber(value) && value !== 0 && Math.abs(value) < 0.01
    ? value.toExponential().replace("e+", "e")
    : formatValue(value);

// --- elements ---

/**
 * A word for a shell: as it is where it is plain, else in single quotes.
 * @param {string} word
 */
export const shellQuote = (word) => (/^[\w./:=@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/**
 * The command that writes the page of the heads of a run in a directory, beside those of `against`; `trust` is quoted already.
 * @param {string} directory
 * @param {string} trust
 * @param {string} [against]
 */
export const mapsCommand = (directory, trust, against) =>
  `${study.maps_command ?? study.about?.maps_command} --workdir=${shellQuote(directory)}` +
  (against ? ` --compare_to=${shellQuote(against)}` : "") +
  (trust ? ` ${trust}` : "");

/**
 * One of many, chosen from a list: [[value, words], ...].
 * @param {string} name
 * @param {[string, string][]} choices
 * @param {string} chosen
 * @param {(value: string) => void} choose
 */
export function createChooser(name, choices, chosen, choose) {
  const select = createHtml("select", {}, ...choices.map(([value, words]) => createHtml("option", { value }, words)));
  select.value = chosen;
  select.addEventListener("change", () => choose(select.value));
  return createHtml("label", { class: "chooser" }, `${name} `, select);
}

/**
 * A button that copies a text.
 * @param {string} text
 * @param {string} [words]
 */
export function createCopyButton(text, words = "copy") {
  const act = async () => {
    button.textContent = (await copyToClipboard(text)) ? "copied" : "not allowed";
    setTimeout(() => (button.textContent = words), 1600);
  };
  const button = smallButton(words, act, { class: "small-button copy" });
  return button;
}

/** Paths in commands are those of the command that started the study, so relative ones start there. */
export const COMMANDS_NOTE = "Run the commands in the directory where the study was started.";

/**
 * A command that can be read and copied.
 * @param {string} command
 */
export const commandNode = (command) =>
  createHtml("p", { class: "command" }, createHtml("code", {}, command), createCopyButton(command));

/** @param {string} text */
async function copyToClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // A page from a disk is not everywhere allowed the clipboard; the old way asks nobody.
    const area = createHtml("textarea", { class: "offscreen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/**
 * Draw the page, and its figures anew wherever there is another width or another color scheme.
 * @param {() => void} show
 */
export function openPage(show) {
  try {
    show();
  } catch (error) {
    showError(
      `This browser cannot draw the page (${error instanceof Error ? error.message : error}): its data are complete; open it in a current browser.`,
    );
    throw error;
  }
  onResize(redrawAllFigures);
  onColorSchemeChange(redrawAllFigures);
  document.body.dataset.shown = "yes";
}

/**
 * A panel of the page: its heading, a note under it, and its content.
 * @param {string} id
 * @param {string} title
 * @param {string} note
 * @param {...Child} content
 */
export function addPanel(id, title, note, ...content) {
  const heading = createHtml("h2", { id: `${id}-title` }, title);
  const words = note ? [createHtml("p", { class: "note" }, note)] : [];
  const head = createHtml("div", { class: "panel-head" }, heading);
  const panel = createHtml(
    "section",
    { id, class: "panel", "aria-labelledby": `${id}-title` },
    head,
    ...words,
    ...content,
  );
  byId("panels").append(panel);
  return panel;
}

/**
 * Content behind a fold.
 * @param {string} title
 * @param {...Child} content
 */
export const createDetails = (title, ...content) =>
  createHtml("details", {}, createHtml("summary", {}, title), ...content);

/** @param {...Child} content */
export const scrollable = (...content) => createHtml("div", { class: "scroll" }, ...content);
/** @param {...Child} content */
export const line = (...content) => createHtml("div", {}, ...content);
/** @param {...Child} content */
export const small = (...content) => createHtml("div", { class: "small" }, ...content);

/**
 * A table from columns { head, title, cell(row) -> nodes }; on a narrow page each row becomes a card that names its
 * cells, so a cell without content is marked and left out of it.
 * @param {string} caption
 * @param {TableColumn[]} columns
 * @param {any[]} rows
 * @param {Attributes} [attributes]
 */
export function createTable(caption, columns, rows, attributes = {}) {
  const head = columns.map(({ head, title }) => createHtml("th", { scope: "col", title }, head));
  const body = rows.map((row) => {
    const cells = columns.map(({ head, cell }, index) => {
      const content = [cell(row)].flat();
      const kind = content.length ? null : "nothing";
      const attributes = { "data-label": head, class: kind, scope: index ? null : "row" };
      return createHtml(index ? "td" : "th", attributes, ...content);
    });
    return createHtml("tr", {}, ...cells);
  });
  const title = createHtml("caption", { class: "offscreen" }, caption);
  return createHtml(
    "table",
    attributes,
    title,
    createHtml("thead", {}, createHtml("tr", {}, ...head)),
    createHtml("tbody", {}, ...body),
  );
}

/**
 * Let the heads of a table's columns sort its rows, which stand in the order of `rows`; a column without `value` stays
 * as it is. `onSort(head, descending)` is called after each; the function that is returned sorts by a head.
 * @param {HTMLTableElement} table
 * @param {SortableColumn[]} columns
 * @param {any[]} rows
 * @param {(head: string, descending: boolean) => void} [onSort]
 */
export function makeSortable(table, columns, rows, onSort = () => {}) {
  const body = table.tBodies[0];
  const elements = new Map(rows.map((row, index) => [row, body.rows[index]]));
  const heads = [...(table.tHead?.rows[0].cells ?? [])];
  let [sorted, descending] = [-1, false];
  /**
   * @param {number} index
   * @param {boolean} down
   */
  const sortBy = (index, down) => {
    [sorted, descending] = [index, down];
    const { value = () => null } = columns[index];
    const order = [...rows].sort((a, b) => compareValues(value(a), value(b), down));
    body.replaceChildren(...order.map((row) => elements.get(row) ?? ""));
    heads.forEach((cell, at) => {
      if (columns[at]?.value) cell.setAttribute("aria-sort", at !== index ? "none" : down ? "descending" : "ascending");
    });
  };
  columns.forEach(({ head, value }, index) => {
    if (!value) return;
    const button = createHtml("button", { type: "button", class: "sort" }, ...heads[index].childNodes);
    button.addEventListener("click", () => {
      sortBy(index, sorted === index && !descending);
      onSort(head, descending);
    });
    heads[index].setAttribute("aria-sort", "none");
    heads[index].replaceChildren(button);
  });
  /**
   * @param {string} head
   * @param {boolean} down
   */
  return (head, down) => {
    const index = columns.findIndex((column) => column.head === head && column.value);
    if (index >= 0) sortBy(index, down);
  };
}

/**
 * What has no value stays last, whichever way is sorted.
 * @param {any} a
 * @param {any} b
 * @param {boolean} down
 */
function compareValues(a, b, down) {
  /** @param {any} value */
  const absent = (value) => value === null || value === undefined;
  if (absent(a) || absent(b)) return Number(absent(a)) - Number(absent(b));
  const order =
    isNumber(a) && isNumber(b) ? a - b : formatValue(a).localeCompare(formatValue(b), "en", { numeric: true });
  return down ? -order : order;
}
