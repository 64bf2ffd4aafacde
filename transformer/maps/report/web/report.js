// The page of a run: its controls, keys and panels, and what is drawn anew when its state changes.

import { onColorSchemeChange } from "../../../pages/color_scale.js";
import {
  byId,
  createHtml,
  exportDefaults,
  find,
  hideTooltip,
  inputById,
  onResize,
  placeTooltip,
  pressOne,
  renderSegments,
  showError,
} from "../../../pages/dom.js";
import { markFigure, redrawAllFigures } from "../../../pages/figure.js";
import { formatNumber, showInvisible, truncate } from "../../../pages/formatting.js";
import { renderColorBar } from "../../../pages/markers_and_legends.js";
import { drawAttentionDistance } from "./attention_distance.js";
import { drawHeatmap, heatmap } from "./attention_heatmap.js";
import {
  describeAttentionLines,
  drawAttentionLines,
  drawHeadButtons,
  loadLineMaps,
  toggleAllHeads,
  toggleToken,
} from "./attention_lines.js";
import { drawAudioPlayer } from "./audio_player.js";
import { weightScale } from "./canvas_pixels.js";
import { missingDataText, poolingText, runFacts, showReading } from "./captions.js";
import { initComparison, showComparison, toggleComparison } from "./comparison.js";
import { showConfig } from "./config_table.js";
import { reportFrameHeight } from "./frame_height.js";
import { addHeadAblation, showKnockOut } from "./head_ablation.js";
import { EXPORT_ACTIONS, valueName } from "./head_export.js";
import { drawHeadGrid, numberedName } from "./head_grid.js";
import { drawHeadHistory } from "./head_history.js";
import { renderRoles, selectRole, siteLabel } from "./head_roles.js";
import { drawImageOverlay } from "./image_overlay.js";
import { drawImageStrips } from "./image_strip.js";
import { showKeyboardHelp } from "./keyboard_help.js";
import { addMetricCurves, metricCharts } from "./metric_curves.js";
import { drawNeuronView } from "./neuron_view.js";
import { data } from "./page_data.js";
import { toggleRollout } from "./rollout.js";
import { drawSamples, drawSampleSplits } from "./output_samples.js";
import { drawTokenHighlights } from "./token_highlights.js";
import { detokenize, siteTokens } from "./tokens.js";
import { showValueWeighting, toggleValueWeighting } from "./value_weighted.js";
import { nearestStep, readAddress, setState, state, writeAddress } from "./view_state.js";
import { currentView, weightsView } from "./head_views.js";

/** @import { HeadView, Highlight, ViewState } from "./types.js" */

const PLAY_INTERVAL = 650; // milliseconds a step while playing
/** @type {[number | null, number | null]} */
let pointedPosition = [null, null];
/** @type {Highlight} */
let highlightPosition = () => {};
let curvesDrawn = false;
/** @type {ReturnType<typeof setInterval> | undefined} */
export let playTimer = undefined;
let shownStep = -1;
let sampleSplit = data.samples[0]?.split;

/**
 * Change the state and show it.
 * @param {Partial<ViewState>} changes
 */
function changeState(changes) {
  setState(changes);
  render();
}

async function render() {
  renderControls();
  const wanted = { ...state };
  let shown;
  try {
    shown = await currentView(wanted);
    shown.planes = wanted.lines ? await loadLineMaps(wanted, shown) : null;
  } catch (error) {
    showError(
      `This browser cannot unpack the maps of this page (${error instanceof Error ? error.message : error}): open it in a current one.`,
    );
    return;
  }
  // While these were unpacked, something else may have been asked for.
  /** @type {(keyof ViewState)[]} */
  const parts = ["site", "example", "layer", "head", "step", "compare", "view", "lines", "also"];
  if (!parts.every((part) => wanted[part] === state[part])) return;
  renderMaps(shown);
  // For whoever measures how quick a page is.
  performance.mark("maps drawn");
  // What is above is seen before what is below is drawn.
  if (!curvesDrawn) await new Promise((done) => setTimeout(done));
  drawHeadHistory(state, changeState);
  drawAttentionDistance(byId("distances"), state, changeState);
  await drawNeuronView(byId("neurons"), state);
  if (!curvesDrawn) redrawAllFigures();
  curvesDrawn = true;
  // The address is kept once the eye has what it asked for: writing it takes longer than a step.
  writeAddress();
  document.body.dataset.shown = location.hash;
  preloadNextStep();
}

/** @param {HeadView} shown */
function renderMaps(shown) {
  const { site } = shown;
  const drawn = (shown.planes ?? []).map(([head]) => site.heads[head]);
  const several = drawn.length > 1 ? truncate(`heads ${drawn.join(", ")}`, 60) : null;
  const head = shown.heads ?? several ?? numberedName("head", site.heads[state.head]);
  const layer = numberedName("layer", site.layers[state.layer]);
  const suffix = shown.titleSuffix ? [createHtml("span", { class: "title-suffix" }, ` · ${shown.titleSuffix}`)] : [];
  byId("detail-title").replaceChildren(`${layer} · ${head}`, ...suffix);
  byId("detail-title").title = byId("detail-title").textContent ?? "";
  renderGoldAlignmentsToggle(shown);
  const gridWords = poolingText(shown.gridMap(0, 0), shown.signed);
  const bar = site.goldAlignments && !shown.signed && !gridWords ? "bar: weight on gold alignments" : "";
  byId("head-grid-note").textContent = [site.name, bar, gridWords].filter(Boolean).join("; ");
  const detailWords = poolingText(shown.detail, shown.signed);
  byId("level-note").hidden = !detailWords;
  byId("level-note").textContent = detailWords && `Pooled: ${detailWords}.`;
  if (byId("legend").dataset.of !== valueName(shown.signed)) {
    byId("legend").dataset.of = valueName(shown.signed);
    const { name, colorAt, marks } = weightScale(shown.signed);
    renderColorBar(byId("legend"), shown.signed ? name : valueName(false), colorAt, marks);
  }
  drawHeadGrid(byId("head-grid"), shown, state, (l, h) => changeState({ layer: l, head: h }));
  drawImageStrips(byId("image-strips"), shown, state, changeState);
  const own = state.lines
    ? drawAttentionLines(byId("detail"), shown, state, pointAtPosition, toggleHeld, (query) =>
        changeState({ ...toggleToken(state, query), row: null }),
      )
    : drawHeatmap(byId("detail"), shown, state, pointAtPosition, toggleHeld);
  /** @type {Highlight[]} */
  const parts = [
    own,
    drawTokenHighlights(byId("sentence"), shown, state, pointAtPosition, toggleHeld),
    drawImageOverlay(byId("image-overlay"), shown, state, pointAtPosition, toggleHeld),
    drawAudioPlayer(byId("player"), shown, state, pointAtPosition),
    (query, key) =>
      state.lines ? (byId("reading").textContent = describeAttentionLines()) : showReading(shown, query, key),
  ];
  highlightPosition = (query, key) => parts.forEach((part) => part(query, key));
  highlightPosition(...focusedPosition());
}

/**
 * Gold alignments can be asked for where a site of the page has some; here it says why they are not drawn.
 * @param {HeadView} shown
 */
function renderGoldAlignmentsToggle({ site, detail }) {
  const why = !site.goldAlignments
    ? "This site has no gold alignments."
    : detail.pooled
      ? "Gold alignments are not drawn on a pooled map."
      : state.lines
        ? "Gold alignments are drawn on the map alone."
        : "";
  const [toggle, box] = [byId("gold-alignments-toggle"), inputById("gold-alignments")];
  toggle.hidden = data.sites.every(({ goldAlignments }) => !goldAlignments);
  toggle.title = why;
  box.disabled = why !== "";
  box.checked = state.goldAlignments && !why;
}

/**
 * The row and the column that are pointed at, or else held.
 * @returns {[number | null, number | null]}
 */
const focusedPosition = () =>
  pointedPosition[0] === null && pointedPosition[1] === null ? [state.row, state.column] : pointedPosition;

/** Unpack what the next step shows, which lies where the last change of the step went. */
function preloadNextStep() {
  const by = state.step < shownStep || state.step === data.steps.length - 1 ? -1 : 1;
  shownStep = state.step;
  const next = playTimer ? (state.step + 1) % data.steps.length : state.step + by;
  if (!(next in data.steps) || state.view !== "weights" || state.compare !== null) return;
  const later = window.requestIdleCallback ?? ((act) => setTimeout(act, 30));
  /** @param {HeadView} shown */
  const decode = (shown) =>
    shown.site.layers.forEach((_, layer) => shown.site.heads.forEach((_, head) => shown.gridMap(layer, head)));
  weightsView({ ...state, step: next })
    .then((shown) => later(() => decode(shown)))
    .catch(() => {}); // What cannot be unpacked is told of once it is asked for.
}

/**
 * @param {number | null} query
 * @param {number | null} key
 * @param {PointerEvent} [event]
 */
function pointAtPosition(query, key, event) {
  pointedPosition = [query, key];
  highlightPosition(...focusedPosition());
  if (query === null || key === null || !event) hideTooltip();
  else placeTooltip(event.clientX, event.clientY);
}

/**
 * Hold a row or a column, whichever is given; what is held already is released.
 * @param {number | null} query
 * @param {number | null} key
 */
function toggleHeld(query, key) {
  changeState(
    query === null ? { column: key === state.column ? null : key } : { row: query === state.row ? null : query },
  );
}

function renderControls() {
  inputById("step").value = String(state.step);
  byId("step-shown").textContent = `step ${formatNumber(data.steps[state.step])}`;
  byId("step").setAttribute("aria-valuetext", `step ${data.steps[state.step]}`);
  inputById("example").value = String(state.example);
  pressOne([...byId("sites").querySelectorAll("button")], state.site);
  for (const figure of metricCharts) markFigure(figure, data.steps[state.step]);
  showComparison(state);
  showValueWeighting(state);
  selectRole(state);
  showKnockOut(state);
  renderDrawingChoice();
  if (sampleSplit === undefined) return;
  byId("samples-panel").hidden = false;
  drawSamples(sampleSplit, data.steps[state.step]);
}

/** Which of map and lines is drawn, and what belongs to it alone. */
function renderDrawingChoice() {
  /** @type {[boolean, string][]} */
  const choices = [
    [false, "map"],
    [true, "lines"],
  ];
  if (byId("drawing").dataset.lines !== String(state.lines))
    renderSegments(byId("drawing"), choices, state.lines, (lines) => changeState({ lines }));
  byId("drawing").dataset.lines = String(state.lines);
  drawHeadButtons(byId("line-heads"), state, changeState);
  byId("legend").hidden = state.lines;
  showKeyboardHelp(byId("keys"));
}

/** @param {boolean} on */
function setPlaying(on) {
  clearInterval(playTimer);
  playTimer = on
    ? setInterval(() => changeState({ step: (state.step + 1) % data.steps.length }), PLAY_INTERVAL)
    : undefined;
  byId("play").classList.toggle("playing", on);
  byId("play").setAttribute("aria-label", on ? "Stop" : "Play the steps");
}

/**
 * @param {"site" | "example" | "layer" | "head" | "step"} name
 * @param {number} by
 */
function cycleSelection(name, by) {
  const site = data.sites[state.site];
  const size = {
    site: data.sites.length,
    example: data.titles.length,
    layer: site.layers.length,
    head: site.heads.length,
    step: data.steps.length,
  }[name];
  changeState({ [name]: name === "step" ? state.step + by : (state[name] + by + size) % size });
}

/**
 * Move the held row or column by some positions; where none is held, hold the first.
 * @param {"row" | "column"} name
 * @param {number} by
 */
function moveHeld(name, by) {
  const { queries, keys } = siteTokens(data.sites[state.site], state.example);
  const last = (name === "row" ? queries : keys).length - 1;
  changeState({ [name]: state[name] === null ? 0 : Math.min(last, Math.max(0, state[name] + by)) });
}

/**
 * The positions of a cell of the large head.
 * @param {"row" | "column"} name
 */
const cellStride = (name) => (name === "row" ? heatmap?.plane.queryBlock : heatmap?.plane.keyBlock) ?? 1;

/** @type {Record<string, () => unknown>} */
const KEY_ACTIONS = {
  ArrowLeft: () => (setPlaying(false), cycleSelection("step", -1)),
  ArrowRight: () => (setPlaying(false), cycleSelection("step", 1)),
  ArrowUp: () => cycleSelection("layer", -1),
  ArrowDown: () => cycleSelection("layer", 1),
  h: () => cycleSelection("head", -1),
  l: () => cycleSelection("head", 1),
  s: () => cycleSelection("site", 1),
  e: () => cycleSelection("example", 1),
  E: () => cycleSelection("example", -1),
  g: () => changeState({ goldAlignments: !state.goldAlignments }),
  j: () => moveHeld("row", 1),
  k: () => moveHeld("row", -1),
  J: () => moveHeld("row", cellStride("row")),
  K: () => moveHeld("row", -cellStride("row")),
  ".": () => moveHeld("column", 1),
  ",": () => moveHeld("column", -1),
  ">": () => moveHeld("column", cellStride("column")),
  "<": () => moveHeld("column", -cellStride("column")),
  t: () => changeState({ lines: !state.lines }),
  a: () => changeState(toggleAllHeads(state)),
  x: () => state.lines && state.row !== null && changeState(toggleToken(state, state.row)),
  p: EXPORT_ACTIONS.png,
  v: EXPORT_ACTIONS.svg,
  c: EXPORT_ACTIONS.csv,
  d: () => changeState(toggleComparison(state)),
  r: () => changeState(toggleRollout(state)),
  w: () => changeState(toggleValueWeighting(state)),
  " ": () => setPlaying(!playTimer),
  Escape: () => changeState({ row: null, column: null, tokens: [] }),
};

function addListeners() {
  byId("step").addEventListener(
    "input",
    () => (setPlaying(false), changeState({ step: Number(inputById("step").value) })),
  );
  byId("play").addEventListener("click", () => setPlaying(!playTimer));
  byId("example").addEventListener("change", () => changeState({ example: Number(inputById("example").value) }));
  byId("example-before").addEventListener("click", () => cycleSelection("example", -1));
  byId("example-after").addEventListener("click", () => cycleSelection("example", 1));
  byId("gold-alignments").addEventListener("change", () => changeState({ goldAlignments: inputById("gold-alignments").checked }));
  byId("value-weighted").addEventListener("change", () => changeState(toggleValueWeighting(state)));
  byId("statistic").addEventListener("change", () => changeState({ statistic: inputById("statistic").value }));
  for (const [kind, act] of Object.entries(EXPORT_ACTIONS)) byId(`export-${kind}`).addEventListener("click", act);
  // Whether what has the focus has it from a click: then the space bar is the page's.
  let pressed = false;
  document.addEventListener("pointerdown", () => (pressed = true), true);
  document.addEventListener("keydown", (event) => {
    const act = KEY_ACTIONS[event.key];
    if (event.key === "Tab") pressed = false;
    const target = /** @type {Element} */ (event.target);
    const pushed = event.key === " " && target.closest("button, input:not([type=range]), summary");
    const busy = target.closest("select, audio, input[type=text], input[type=number]") || (pushed && !pressed);
    if (!act || busy || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    // Else the button that was clicked would be pushed once more.
    if (pushed && document.activeElement instanceof HTMLElement) document.activeElement.blur();
    act();
  });
  window.addEventListener("hashchange", () => (readAddress(), render()));
  const renew = () => {
    delete byId("legend").dataset.of;
    redrawAllFigures();
    render();
  };
  onColorSchemeChange(renew);
  onResize(renew);
}

function buildPage() {
  Object.assign(exportDefaults, { name: data.title, words: data.title });
  byId("title").textContent = data.otherRun ? `${data.title} minus ${data.otherRun.title}` : data.title;
  if (data.configName && data.configName !== data.title)
    byId("title").append(" ", createHtml("span", { class: "config-name" }, showInvisible(data.configName)));
  if (data.singleText) byId("eyebrow").textContent = "Headwise · what every head attends to";
  const still = data.steps.length === 1;
  byId("steps").hidden = still;
  byId("compare-chooser").hidden = still && !data.otherRun;
  byId("curves-panel").hidden = !Object.keys(data.curves).length;
  byId("facts").replaceChildren(...runFacts().map((fact) => createHtml("span", {}, fact)));
  /** @type {[number, string][]} */
  const sites = data.sites.length > 1 ? data.sites.map((site, index) => [index, siteLabel(site)]) : [];
  renderSegments(byId("sites"), sites, state.site, (site) => changeState({ site }));
  // Names of patches or frames say nothing of an example; words do.
  const inWords = Object.keys(data.axes).find((name) => data.axes[name].kind === "tokens");
  const asText = data.titles.map((title, example) => {
    const words = inWords ? showInvisible(detokenize(data.tokens[inWords][example])) : "";
    // A title that is the text's own beginning says nothing beside it.
    /** @param {string} text */
    const letters = (text) => text.toLowerCase().replace(/\[MASK\]|[^\p{L}\p{N}]/giu, "");
    const [of, said] = [letters(title), letters(words)];
    if (!said.startsWith(of.slice(0, 16)) && said && of.includes(said.slice(0, 16))) return showInvisible(title);
    if (said.startsWith(of.slice(0, 16))) return title.length + 8 < words.length ? words : showInvisible(title);
    return [showInvisible(title), words].filter(Boolean).join(": ");
  });
  asText.forEach((text, example) =>
    byId("example").append(createHtml("option", { value: example }, truncate(`${example + 1}. ${text}`, 72))),
  );
  if (data.singleText && asText.length === 1) {
    byId("text").hidden = false;
    byId("text").textContent = truncate(asText[0], 400);
    byId("examples").hidden = true;
  }
  find(document, ".controls").hidden = !sites.length && still && byId("examples").hidden;
  inputById("step").max = String(data.steps.length - 1);
  byId("ticks").append(...data.steps.slice(0, 120).map(() => createHtml("i")));
  const missing = missingDataText();
  byId("left-out").hidden = !missing;
  byId("left-out").textContent = missing;
  const stored = data.singleText ? "as they are" : "as the run stored them";
  const bits = data.codes === 255 ? stored : "in seven bits, within 0.01 of what the run stored";
  byId("how").textContent =
    "A row is a query, a column a key, and a cell the weight with which the query reads the key, before dropout; " +
    "color follows the square root of the weight. Weights stand for codes of eight bits a cell, scaled by the " +
    `largest of their row; this page draws them ${bits}.`;
  showConfig();
  drawSampleSplits(sampleSplit, chooseSplit);
  renderRoles((chosen) => changeState(chosen));
  initComparison(state, changeState);
  addHeadAblation();
  addMetricCurves((step) => (setPlaying(false), changeState({ step: nearestStep(step) })));
}

/** @param {string} split */
function chooseSplit(split) {
  sampleSplit = split;
  drawSampleSplits(split, chooseSplit);
  drawSamples(split, data.steps[state.step]);
}

buildPage();
readAddress();
addListeners();
reportFrameHeight();
render();
