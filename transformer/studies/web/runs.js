// The page of all runs put together: what there is, the studies, the curves over one another, and the table.

import { byId, createHtml, exportDefaults, inputById, smallButton } from "../../pages/dom.js";
import { formatOrDash, pluralize, showInvisible } from "../../pages/formatting.js";
import { showRunsTable, showStudies } from "./listed_runs_table.js";
import { listing } from "./page_data.js";
import { openPage } from "./panels_and_tables.js";
import { choice, drawnRuns, matchingRuns, readChoice, writeChoice } from "./runs_choice.js";
import { showCurves } from "./runs_curves.js";

/** @import { RunsChoice } from "./types.js" */

/** @type {(() => void)[]} What shows the choice. */
const renderers = [];

/** @param {Partial<RunsChoice>} changes */
function changeChoice(changes) {
  Object.assign(choice, changes);
  renderChoice();
}

function renderChoice() {
  for (const render of renderers) render();
  writeChoice();
}

function showOverview() {
  const title = showInvisible(listing.title);
  Object.assign(exportDefaults, { name: listing.title, words: title });
  byId("title").textContent = title;
  const kinds = Map.groupBy(listing.studies, ({ kind }) => kind);
  const facts = [
    pluralize(listing.runs.length, "run"),
    ...[...kinds].map(([kind, studies]) => pluralize(studies.length, kind)),
    `written ${new Date(listing.written).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" })}`,
  ];
  byId("facts").replaceChildren(...facts.map((words) => createHtml("span", {}, words)));
  const metrics = listing.left_out.length;
  const notices = [
    ...(listing.runs.length ? [] : [`There are no runs in ${showInvisible(listing.folder)} yet.`]),
    ...listing.problems.map(showInvisible),
    ...(metrics ? [leftOutText()] : []),
  ];
  byId("notices").replaceChildren(...notices.map((words) => createHtml("li", { class: "notice" }, words)));
}

function leftOutText() {
  const names = showInvisible(listing.left_out.slice(0, 12).join(", "));
  const more = listing.left_out.length > 12 ? " …" : "";
  const count = pluralize(listing.left_out.length, "metric");
  return `To keep this page small, the curves of ${count} are left out; --metric names those to keep: ${names}${more}`;
}

/** The filter and a button for each state, which filters by it. */
function showFilter() {
  const input = inputById("filter");
  input.placeholder = "filter: words, key=value, -word";
  input.addEventListener("input", () => changeChoice({ filter: input.value }));
  const states = Map.groupBy(listing.runs, ({ state }) => state);
  const order = [...states].sort(([, a], [, b]) => b.length - a.length);
  const buttons = order.map(([state, runs]) => {
    const word = `state=${state}`;
    const button = smallButton(`${formatOrDash(runs.length)} ${state}`, () => {
      const words = choice.filter.split(/\s+/).filter(Boolean);
      const others = words.filter((each) => !each.startsWith("state="));
      changeChoice({ filter: (words.includes(word) ? others : [...others, word]).join(" ") });
    });
    return { word, button };
  });
  byId("states").append(...buttons.map(({ button }) => button));
  renderers.push(() => {
    if (input.value !== choice.filter) input.value = choice.filter;
    const words = choice.filter.split(/\s+/);
    for (const { word, button } of buttons) button.setAttribute("aria-pressed", String(words.includes(word)));
    const [matching, drawn] = [matchingRuns().length, drawnRuns().length];
    const all = listing.runs.length;
    const parts = matching < all ? [`${formatOrDash(matching)} of ${formatOrDash(all)}`] : [];
    if (drawn < matching) parts.push(`${formatOrDash(drawn)} drawn`);
    byId("num-shown").textContent = parts.join(", ");
  });
}

function showAllRuns() {
  readChoice();
  showOverview();
  showFilter();
  renderers.push(showCurves(changeChoice));
  showStudies();
  renderers.push(showRunsTable(changeChoice));
  renderChoice();
  addEventListener("hashchange", () => (readChoice(), renderChoice()));
}

openPage(showAllRuns);
