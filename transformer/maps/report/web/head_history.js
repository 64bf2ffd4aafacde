// Every head over training: one statistic as a heat map of heads and steps, and the chosen head's curve beneath it.

import { colorForValue, cssColor, darkScheme } from "../../../pages/color_scale.js";
import {
  byId,
  context2d,
  createHtml,
  createSvg,
  hideTooltip,
  inputById,
  renderSegments,
  showTooltip,
} from "../../../pages/dom.js";
import { formatNumber, truncate } from "../../../pages/formatting.js";
import { renderColorBar } from "../../../pages/markers_and_legends.js";
import { tickLabels } from "../../../pages/scales.js";
import { drawHeadCurve, HISTORY_LAYOUT } from "./head_curve.js";
import { numberedName } from "./head_grid.js";
import {
  formatMeasurement,
  headName,
  loadStatisticsTable,
  nearestColumn,
  scaleRange,
  statisticScale,
} from "./head_statistics.js";
import { data } from "./page_data.js";
import { nearestStep } from "./view_state.js";

/** @import { Choose, HistoryLayout, LoadedTable, Site, StatisticsTable, ViewState } from "./types.js" */

const MAX_ROLES_SHOWN = 6;
/** @type {Record<string, string>} */
const SOURCES = { mean: "these examples (mean)", example: "this example", training: "training batches" };

let selectedSource = "mean";
/** @type {string | null} The statistic that was last asked for. */
let requestedStatistic = null;
/** @type {{ key: string, box: HistoryLayout, point: (state: ViewState) => void }} What is drawn now. */
let headHistory = /** @type {any} */ (null);
let historyRequests = 0;

/**
 * Draw the panel for what `state` names; `choose({ layer, head, step })` is called where a cell is picked.
 * @param {ViewState} state
 * @param {Choose} choose
 */
export async function drawHeadHistory(state, choose) {
  const asked = ++historyRequests;
  const { tables } = data.history.sites[state.site];
  byId("head-history-panel").hidden = tables.length === 0;
  if (!tables.length) return;
  const facts = showSources(state, tables, choose);
  const statistic = showStatistics(state, facts, tables);
  const table = await loadStatisticsTable(state.site, facts.source);
  // The other run has the mean over the probe alone, which is to be laid over no other curve.
  const both = facts.source === "mean" && tables.some((each) => each.source === "other");
  const other = both ? await loadStatisticsTable(state.site, "other") : null;
  // While this was unpacked, something else may have been asked for.
  if (asked !== historyRequests) return;
  const place = byId("head-history");
  // The window's width, not the place's own: to ask for that would lay the whole page out once more at every step.
  const key = [state.site, facts.source, statistic, innerWidth, darkScheme.matches].join(" ");
  if (headHistory?.key !== key) {
    headHistory = { key, ...buildHistoryHeatmap(place, state, table, statistic, choose) };
    drawRoleList(state, choose);
  }
  headHistory.point(state);
  drawHeadCurve(byId("head-curve"), state, { table, other, statistic, box: headHistory.box }, choose);
  byId("head-history").dataset.shown = location.hash;
}

/**
 * The buttons of what can be measured on; returns the facts of the table that is shown.
 * @param {ViewState} state
 * @param {StatisticsTable[]} tables
 * @param {Choose} choose
 * @returns {StatisticsTable}
 */
function showSources(state, tables, choose) {
  /** @param {string} name */
  const find = (name) => tables.find((table) => table.source === (name === "example" ? String(state.example) : name));
  const names = Object.keys(SOURCES).filter(find);
  if (!names.includes(selectedSource)) selectedSource = names[0];
  if (state.statistic !== requestedStatistic) {
    requestedStatistic = state.statistic;
    // One that is newly chosen is shown where it was measured; a source that is chosen later stays.
    /** @param {string} name */
    const has = (name) => find(name)?.names.includes(state.statistic ?? "");
    if (!has(selectedSource)) selectedSource = names.find(has) ?? selectedSource;
  }
  /** @type {[string, string][]} */
  const choices = names.length > 1 ? names.map((name) => [name, SOURCES[name]]) : [];
  renderSegments(byId("sources"), choices, selectedSource, (name) => {
    selectedSource = name;
    // What this source lacks is no longer asked for, so that it can be chosen again.
    if (state.statistic === null || find(name)?.names.includes(state.statistic)) drawHeadHistory(state, choose);
    else choose({ statistic: null });
  });
  return find(selectedSource) ?? tables[0];
}

/**
 * The choice of a statistic, those of other sources last; returns the one that is shown: the asked one, else the one
 * that tells most.
 * @param {ViewState} state
 * @param {StatisticsTable} facts
 * @param {StatisticsTable[]} tables
 */
function showStatistics(state, { names }, tables) {
  const shown =
    state.statistic !== null && names.includes(state.statistic)
      ? state.statistic
      : names.includes("induction")
        ? "induction"
        : names[0];
  const choices = inputById("statistic");
  const others = tables.filter((table) => table.source !== "other").flatMap((table) => table.names);
  const offered = [...new Set([...names, ...others])];
  if (choices.dataset.names !== String(offered)) {
    choices.dataset.names = String(offered);
    const options = offered.map((name) => createHtml("option", { value: name }, statisticScale(name).words));
    choices.replaceChildren(...options);
  }
  choices.value = shown;
  return shown;
}

/**
 * @param {HTMLElement} place
 * @param {ViewState} state
 * @param {LoadedTable} table
 * @param {string} statistic
 * @param {Choose} choose
 */
function buildHistoryHeatmap(place, state, table, statistic, choose) {
  const site = data.sites[state.site];
  const [layers, heads, columns] = [site.layers.length, site.heads.length, table.steps.length];
  const room = Math.floor((HISTORY_LAYOUT.depth - HISTORY_LAYOUT.between * (layers - 1)) / (layers * heads));
  const row = Math.min(HISTORY_LAYOUT.highest, Math.max(HISTORY_LAYOUT.lowest, room));
  const fit = Math.max(1, (place.clientWidth - HISTORY_LAYOUT.left - HISTORY_LAYOUT.right) / columns);
  const column = fit >= 3 ? Math.floor(fit) : fit;
  /** @type {HistoryLayout["y"]} */
  const y = (layer, head) => layer * (heads * row + HISTORY_LAYOUT.between) + head * row;
  /** @type {HistoryLayout} */
  const box = {
    ...{ row, column, columns, heads, left: HISTORY_LAYOUT.left, across: column * columns, y },
    down: y(layers - 1, heads),
    x: (at) => HISTORY_LAYOUT.left + at * column,
    column_of: (step) => nearestColumn(table.steps, step),
  };
  const ends = scaleRange(table, statistic);
  /** @type {[number, string][]} */
  const marks = tickLabels([ends[0], (ends[0] + ends[1]) / 2, ends[1]]).map(([, words], at) => [at / 2, words]);
  renderColorBar(byId("head-history-legend"), statisticScale(statistic).unit, (share) => cssColor(share ** 2), marks);
  const size = { width: HISTORY_LAYOUT.left + box.across + HISTORY_LAYOUT.right, height: box.down + 4 };
  const svg = createSvg("svg", {
    ...size,
    tabindex: 0,
    role: "application",
    "aria-roledescription": "heat map",
    "aria-label": `${statisticScale(statistic).words} of every head at every step; arrow keys move over heads and steps`,
  });
  const labels = rowLabels(site, box);
  const pointer = createSvg("g", { class: "pointer" });
  svg.append(...labels.map(([, label]) => label), roleMarks(state.site, box), pointer);
  const sheet = createHtml("div", { class: "sheet" }, paintHistoryHeatmap(site, table, statistic, ends, box), svg);
  sheet.style.width = `${size.width}px`;
  sheet.style.height = `${size.height}px`;
  const focused = place.contains(document.activeElement);
  place.replaceChildren(sheet);
  if (focused) svg.focus({ preventScroll: true });
  addHistoryListeners(svg, state, { site, table, statistic, box }, choose);
  return { box, point: (/** @type {ViewState} */ now) => highlightHistoryCell(place, now, box, pointer, labels) };
}

/**
 * The cells, a pixel of the canvas each: luminance runs evenly from one end of the scale to the other.
 * @param {Site} site
 * @param {LoadedTable} table
 * @param {string} statistic
 * @param {[number, number]} options
 * @param {HistoryLayout} box
 */
function paintHistoryHeatmap(site, table, statistic, [low, high], box) {
  const scale = Math.max(1, window.devicePixelRatio || 1);
  const canvas = createHtml("canvas", { width: Math.round(box.across * scale), height: Math.round(box.down * scale) });
  canvas.style.cssText = `left:${box.left}px;top:0;width:${box.across}px;height:${box.down}px`;
  const context = context2d(canvas);
  context.scale(scale, scale);
  context.imageSmoothingEnabled = false;
  site.layers.forEach((_, layer) => {
    const small = createHtml("canvas", { width: box.columns, height: box.heads });
    const image = new ImageData(box.columns, box.heads);
    for (let head = 0; head < box.heads; head++) {
      for (let at = 0; at < box.columns; at++) {
        const value = table.value(statistic, layer, head, at);
        // What is not defined stays the panel's own ground.
        if (Number.isNaN(value)) continue;
        const share = Math.min(1, Math.max(0, (value - low) / (high - low)));
        image.data.set([...colorForValue(share * share), 255], 4 * (head * box.columns + at));
      }
    }
    context2d(small).putImageData(image, 0, 0);
    context.drawImage(small, 0, box.y(layer, 0), box.across, box.heads * box.row);
    // Rows that have room stand apart, as the cells of a large head do.
    for (let head = 0; head < box.heads && box.row >= 12; head++)
      context.clearRect(0, box.y(layer, head) + box.row - 1, box.across, 1);
  });
  return canvas;
}

/**
 * Names beside the rows: of every head where there is room, else of every layer; [row, element] each.
 * @param {Site} site
 * @param {HistoryLayout} box
 * @returns {[string, SVGElement][]}
 */
function rowLabels(site, box) {
  const roomy = box.row >= 11;
  return site.layers.flatMap((layer, l) =>
    site.heads.map((_, h) => {
      const y = Math.max(10, box.y(l, h) + box.row / 2 + 4);
      const text = truncate(headName(site, l, h), 9);
      const label = createSvg("text", { class: "row-label", x: box.left - 8, y, "text-anchor": "end" }, text);
      // The first row of a layer names the layer; one that is pointed at names itself.
      if (!roomy && h > 0) label.classList.add("unshown");
      if (!roomy && h === 0) label.dataset.layer = truncate(numberedName("layer", layer), 9);
      if (label.dataset.layer) label.textContent = label.dataset.layer;
      return /** @type {[string, SVGElement]} */ ([text, label]);
    }),
  );
}

/**
 * A diamond where a head began to play a role: a shape with a rim, so that it is seen on any color.
 * @param {number} site
 * @param {HistoryLayout} box
 */
function roleMarks(site, box) {
  const marks = data.history.roles
    .filter((role) => role.site === site)
    .map((role) => {
      const size = Math.max(3.5, Math.min(5.5, box.row / 2 - 1));
      const [x, y] = [box.x(box.column_of(role.onset)) + box.column / 2, box.y(role.layer, role.head) + box.row / 2];
      return createSvg("path", {
        class: "role-mark",
        d: `M${x} ${y - size}L${x + size} ${y}L${x} ${y + size}L${x - size} ${y}Z`,
      });
    });
  return createSvg("g", {}, ...marks);
}

/**
 * @param {SVGSVGElement} svg
 * @param {ViewState} state
 * @param {{ site: Site, table: LoadedTable, statistic: string, box: HistoryLayout }} options
 * @param {Choose} choose
 */
function addHistoryListeners(svg, state, { site, table, statistic, box }, choose) {
  /** @param {MouseEvent} event */
  const cellAt = (event) => {
    const frame = svg.getBoundingClientRect();
    const y = event.clientY - frame.top;
    const layer = Math.min(site.layers.length - 1, Math.floor(y / box.y(1, 0)));
    const head = Math.floor((y - box.y(layer, 0)) / box.row);
    const at = Math.floor((event.clientX - frame.left - box.left) / box.column);
    if (y < 0 || head < 0 || head >= box.heads || at >= box.columns) return null;
    return { layer, head, at: at < 0 ? null : at };
  };
  svg.addEventListener("pointermove", (event) => {
    const cell = cellAt(event);
    if (!cell || cell.at === null) return hideTooltip();
    const value = table.value(statistic, cell.layer, cell.head, cell.at);
    const roles = data.history.roles.filter(
      (role) =>
        role.site === state.site &&
        role.layer === cell.layer &&
        role.head === cell.head &&
        box.column_of(role.onset) === cell.at,
    );
    const text = `head ${headName(site, cell.layer, cell.head)}, step ${formatNumber(table.steps[cell.at])} `;
    const told = roles.map((role) => createHtml("div", { class: "told" }, `◆ ${role.sentence}`));
    showTooltip(
      event.clientX,
      event.clientY,
      text,
      createHtml("b", {}, formatMeasurement(value, statisticScale(statistic).unit)),
      ...told,
    );
  });
  svg.addEventListener("pointerleave", hideTooltip);
  svg.addEventListener("click", (event) => {
    const cell = cellAt(event);
    if (!cell) return;
    const step = cell.at === null ? {} : { step: nearestStep(table.steps[cell.at]) };
    choose({ layer: cell.layer, head: cell.head, ...step });
  });
  svg.addEventListener("keydown", (event) => {
    /** @type {Record<string, [number, number]>} */
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const move = moves[event.key];
    const end = event.key === "Home" ? 0 : event.key === "End" ? data.steps.length - 1 : undefined;
    if ((!move && end === undefined) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    // The page's own arrow keys go over layers, these over rows.
    event.stopPropagation();
    const rows = site.layers.length * box.heads;
    const row = Math.min(rows - 1, Math.max(0, state.layer * box.heads + state.head + (move?.[0] ?? 0)));
    const step = end ?? Math.min(data.steps.length - 1, Math.max(0, state.step + (move?.[1] ?? 0)));
    choose({ layer: Math.floor(row / box.heads), head: row % box.heads, step });
  });
}

/**
 * Frame the row of the chosen head and the column of the step, and bring the row into sight.
 * @param {HTMLElement} place
 * @param {ViewState} state
 * @param {HistoryLayout} box
 * @param {SVGGElement} pointer
 * @param {[string, SVGElement][]} labels
 */
function highlightHistoryCell(place, state, box, pointer, labels) {
  const [y, x] = [box.y(state.layer, state.head), box.x(box.column_of(data.steps[state.step]))];
  const height = box.row + (box.row >= 12 ? 1 : 2);
  pointer.replaceChildren(
    createSvg("rect", { class: "frame", x: box.left - 1, y: y - 1, width: box.across + 2, height, rx: 2 }),
    createSvg("rect", { class: "frame column", x, y: 0, width: box.column, height: box.down }),
  );
  const chosen = state.layer * box.heads + state.head;
  // A step along the same row is quick: nothing else has to be looked at.
  if (chosen === box.chosen) return;
  box.chosen = chosen;
  labels.forEach(([text, label], at) => {
    label.classList.toggle("lit", at === chosen);
    label.textContent = at === chosen ? text : (label.dataset.layer ?? text);
    // Beside a name that is shown out of turn, its layer's own would only be in the way.
    const near = at !== chosen && Math.abs(at - chosen) * box.row < 14;
    label.classList.toggle("aside", near && box.row < 11);
  });
  if (y < place.scrollTop || y + box.row > place.scrollTop + place.clientHeight)
    place.scrollTop = y - place.clientHeight / 2;
}

/**
 * The roles of the site's heads in words, each a door to the step since which it is played.
 * @param {ViewState} state
 * @param {Choose} choose
 */
function drawRoleList(state, choose) {
  const roles = data.history.roles.filter((role) => role.site === state.site);
  const items = roles.map((role) => {
    const button = createHtml("button", { type: "button", class: "role" }, createHtml("i", {}, "◆"), ` ${role.sentence}`);
    button.addEventListener("click", () =>
      choose({ layer: role.layer, head: role.head, step: nearestStep(role.onset) }),
    );
    return createHtml("li", {}, button);
  });
  const [first, rest] = [items.slice(0, MAX_ROLES_SHOWN), items.slice(MAX_ROLES_SHOWN)];
  const more = createHtml(
    "details",
    {},
    createHtml("summary", {}, `${rest.length} more`),
    createHtml("ul", {}, ...rest),
  );
  byId("roles").replaceChildren(createHtml("ul", {}, ...first), ...(rest.length ? [more] : []));
  byId("head-history-note").textContent = roles.length
    ? "A diamond marks the step since which a head has had its role; roles are those of the last step."
    : "Of the roles that are followed over the steps (induction, previous token, first token, diagonal, alignment) no " +
      "head here has one at the last step.";
}
