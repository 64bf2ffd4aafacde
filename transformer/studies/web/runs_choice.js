// What the reader has chosen of the page of all runs, and the address of the page that keeps it.

import { listing } from "./page_data.js";

/** @import { ListedRun, RunsChoice } from "./types.js" */

const BANDS = ["range", "deviation", "none"];

/** @type {RunsChoice} */
export const choice = initialChoice();

/** @returns {RunsChoice} */
function initialChoice() {
  return {
    metric: listing.metrics[0]?.name ?? "",
    group: listing.group,
    band: "range",
    smoothing: 0,
    logX: false,
    logY: false,
    filter: "",
    hidden: new Set(),
    sort: "",
    descending: false,
  };
}

/** Keep the choice in the address of the page, so that a link opens the same view. */
export function writeChoice() {
  // A page inside another document, as in a notebook, has no address of its own.
  if (location.protocol === "about:") return;
  const start = initialChoice();
  const parts = new URLSearchParams();
  if (choice.metric !== start.metric) parts.set("metric", choice.metric);
  if (choice.group.join() !== start.group.join())
    for (const key of choice.group.length ? choice.group : [""]) parts.append("group", key);
  if (choice.band !== start.band) parts.set("band", choice.band);
  if (choice.smoothing) parts.set("smoothing", String(choice.smoothing));
  if (choice.logX) parts.set("log", choice.logY ? "xy" : "x");
  else if (choice.logY) parts.set("log", "y");
  if (choice.filter) parts.set("filter", choice.filter);
  const drawn = listing.runs.filter(({ name }) => !choice.hidden.has(name));
  // The shorter of both lists.
  if (drawn.length && drawn.length < choice.hidden.size) for (const { name } of drawn) parts.append("run", name);
  else for (const name of choice.hidden) parts.append("without", name);
  if (choice.sort) parts.set("sort", choice.descending ? `-${choice.sort}` : choice.sort);
  const address = `#${parts}`;
  if (location.hash !== address && (location.hash || address !== "#"))
    history.replaceState(null, "", address === "#" ? location.pathname + location.search : address);
}

/** Take the choice from the address of the page, which may be older than the page. */
export function readChoice() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const keys = listing.keys.map(({ name }) => name);
  const start = initialChoice();
  const metric = parts.get("metric") ?? "";
  const [log, band] = [parts.get("log") ?? "", parts.get("band") ?? ""];
  const smoothing = Number(parts.get("smoothing") ?? 0);
  const only = parts.getAll("run");
  const without = only.length
    ? listing.runs.map(({ name }) => name).filter((name) => !only.includes(name))
    : parts.getAll("without");
  const sort = parts.get("sort") ?? "";
  Object.assign(choice, start, {
    metric: listing.metrics.some(({ name }) => name === metric) ? metric : start.metric,
    group: parts.has("group") ? parts.getAll("group").filter((key) => keys.includes(key)) : start.group,
    band: BANDS.includes(band) ? band : start.band,
    smoothing: smoothing > 0 && smoothing <= 100 ? smoothing : 0,
    logX: log.includes("x"),
    logY: log.includes("y"),
    filter: parts.get("filter") ?? "",
    hidden: new Set(without),
    sort: sort.replace(/^-/, ""),
    descending: sort.startsWith("-"),
  });
}

/**
 * The value of a key in a run; undefined where it has none.
 * @param {ListedRun} run
 * @param {string} key
 */
export function configValue(run, key) {
  const index = listing.keys.findIndex(({ name }) => name === key);
  const value = run.values[index] ?? -1;
  return value < 0 ? undefined : listing.keys[index].values[value];
}

/** @type {Map<ListedRun, string>} */
const searchedTexts = new Map();

/**
 * What the words of the filter are searched in.
 * @param {ListedRun} run
 */
function searchedText(run) {
  const known = searchedTexts.get(run);
  if (known !== undefined) return known;
  const values = listing.keys.map(({ name, values }, index) => {
    const value = run.values[index] < 0 ? "" : values[run.values[index]];
    return `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`;
  });
  const text = [run.name, run.config, `state=${run.state}`, ...values, ...run.problems].join(" \n ").toLowerCase();
  searchedTexts.set(run, text);
  return text;
}

/**
 * Whether a run has every word of the filter, and none of those after a "-"; a word like width=128 ends with its value.
 * @param {ListedRun} run
 */
export function matchesFilter(run) {
  return choice.filter
    .toLowerCase()
    .split(/\s+/)
    .filter(Boolean)
    .every((word) => {
      const excluded = word.startsWith("-") && word.length > 1;
      const searched = excluded ? word.slice(1) : word;
      const text = searchedText(run);
      const matches = /^[^=]+=[^=]/.test(searched) ? `${text} `.includes(`${searched} `) : text.includes(searched);
      return matches !== excluded;
    });
}

/** The runs that match the filter. */
export const matchingRuns = () => listing.runs.filter(matchesFilter);

/** The runs whose curves are drawn. */
export const drawnRuns = () => matchingRuns().filter(({ name }) => !choice.hidden.has(name));

/**
 * The label of a key: its end, as far as that tells it from the others.
 * @param {string} key
 */
export const keyLabel = (key) => listing.keys.find(({ name }) => name === key)?.label ?? key;

let readRun = "";

/**
 * Mark a run's line and its row.
 * @param {string} name
 */
export function markRun(name) {
  if (readRun === name) return;
  readRun = name;
  showMark();
}

/** Mark the run that is read in what was drawn since. */
export function showMark() {
  for (const element of document.querySelectorAll("[data-series]"))
    element.classList.toggle("read", readRun !== "" && element.getAttribute("data-series") === readRun);
}
