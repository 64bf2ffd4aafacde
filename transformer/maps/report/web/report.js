// The page of a run: its controls, keys and panels, and what is drawn anew when its state changes.

import { onNewScheme } from "../../../pages/color_scale.js";
import { byId, fillSegments, hideTip, make, onNewWidth, page, placeTip, tellProblem } from "../../../pages/dom.js";
import { markFigure, redrawAll } from "../../../pages/figure.js";
import { readable, shorten, visible } from "../../../pages/formatting.js";
import { showRamp } from "../../../pages/plot_marks.js";
import { drawDistances } from "./attention_distance.js";
import { drawDetail, sheet } from "./attention_heatmap.js";
import {
  drawStrandHeads, drawStrands, readStrands, strandPlanes, toggledAll, toggledToken,
} from "./attention_lines.js";
import { drawPlayer } from "./audio_player.js";
import { weightScale } from "./canvas_pixels.js";
import { facts, missingWords, poolingWords, read } from "./captions.js";
import { offerComparisons, showComparison, toggledComparison, toggledRollout } from "./comparison.js";
import { showConfig } from "./config_table.js";
import { EXPORTS, valueWord } from "./head_export.js";
import { drawWall, named } from "./head_grid.js";
import { drawTimeline } from "./head_history.js";
import { buildRoles, markRole, siteWords } from "./head_roles.js";
import { drawPicture } from "./image_overlay.js";
import { drawStrips } from "./image_strip.js";
import { tellKeys } from "./keyboard_help.js";
import { mapsShown, weightsShown } from "./map_data.js";
import { addCurves, charts } from "./metric_curves.js";
import { drawNeurons } from "./neuron_view.js";
import { data } from "./page_data.js";
import { drawSamples, drawSampleSplits } from "./samples.js";
import { drawBeside } from "./token_highlights.js";
import { sentence, tokensOf } from "./tokens.js";
import { nearestStep, readAddress, setState, state, writeAddress } from "./view_state.js";
import { showNorms, toggledNorms } from "./value_weighted.js";

const FRAME = 650; // milliseconds a step while playing
let pointed = [null, null];
let highlight = () => {};
let curvesDrawn = false;
export let playing = null;
let shownStep = -1;
let sampleSplit = data.samples[0]?.split;

/** Change the state and show it. */
function change(changes) {
  setState(changes);
  show();
}

async function show() {
  showControls();
  const wanted = { ...state };
  let shown;
  try {
    shown = await mapsShown(wanted);
    shown.planes = wanted.lines ? await strandPlanes(wanted, shown) : null;
  } catch (error) {
    tellProblem(`This browser cannot unpack the maps of this page (${error.message}): open it in a current one.`);
    return;
  }
  // While these were unpacked, something else may have been asked for.
  const parts = ["site", "example", "layer", "head", "step", "compare", "view", "lines", "also"];
  if (!parts.every((part) => wanted[part] === state[part])) return;
  showMaps(shown);
  // For whoever measures how quick a page is.
  performance.mark("maps drawn");
  // What is above is seen before what is below is drawn.
  if (!curvesDrawn) await new Promise((done) => setTimeout(done));
  drawTimeline(state, change);
  drawDistances(byId("distances"), state, change);
  await drawNeurons(byId("neurons"), state);
  if (!curvesDrawn) redrawAll();
  curvesDrawn = true;
  // The address is kept once the eye has what it asked for: writing it takes longer than a step.
  writeAddress();
  document.body.dataset.shown = location.hash;
  unpackAhead();
}

function showMaps(shown) {
  const { site } = shown;
  const drawn = (shown.planes ?? []).map(([head]) => site.heads[head]);
  const several = drawn.length > 1 ? shorten(`heads ${drawn.join(", ")}`, 60) : null;
  const head = shown.heads ?? several ?? named("head", site.heads[state.head]);
  const layer = named("layer", site.layers[state.layer]);
  const said = shown.said ? [make("span", { class: "said" }, ` · ${shown.said}`)] : [];
  byId("detail-title").replaceChildren(`${layer} · ${head}`, ...said);
  byId("links-toggle").hidden = !site.links || shown.detail.pooled || state.lines;
  byId("links").checked = state.links;
  const wallWords = poolingWords(shown.wall(0, 0), shown.signed);
  const bar = site.links && !shown.signed && !wallWords ? "bar: share of weight on known links" : "";
  byId("wall-note").textContent = [site.name, bar, wallWords].filter(Boolean).join("; ");
  const detailWords = poolingWords(shown.detail, shown.signed);
  byId("level-note").hidden = !detailWords;
  byId("level-note").textContent = detailWords && `Pooled: ${detailWords}.`;
  if (byId("legend").dataset.of !== valueWord(shown.signed)) {
    byId("legend").dataset.of = valueWord(shown.signed);
    const { name, colorAt, marks } = weightScale(shown.signed);
    showRamp(byId("legend"), shown.signed ? name : valueWord(false), colorAt, marks);
  }
  drawWall(byId("wall"), shown, state, (l, h) => change({ layer: l, head: h }));
  drawStrips(byId("strips"), shown, state, change);
  const own = state.lines
    ? drawStrands(byId("detail"), shown, state, look, hold, (query) =>
        change({ ...toggledToken(state, query), row: null }),
      )
    : drawDetail(byId("detail"), shown, state, look, hold);
  const parts = [
    own,
    drawBeside(byId("sentence"), shown, state, look, hold),
    drawPicture(byId("picture"), shown, state, look, hold),
    drawPlayer(byId("player"), shown, state, look),
    (query, key) => (state.lines ? (byId("reading").textContent = readStrands()) : read(shown, query, key)),
  ];
  highlight = (query, key) => parts.forEach((part) => part(query, key));
  highlight(...focused());
}

/** The row and the column that are pointed at, or else held. */
const focused = () => (pointed[0] === null && pointed[1] === null ? [state.row, state.column] : pointed);

/** Unpack what the next step shows, which lies where the last change of the step went. */
function unpackAhead() {
  const by = state.step < shownStep || state.step === data.steps.length - 1 ? -1 : 1;
  shownStep = state.step;
  const next = playing ? (state.step + 1) % data.steps.length : state.step + by;
  if (!(next in data.steps) || state.view !== "weights" || state.compare !== null) return;
  const later = window.requestIdleCallback ?? ((act) => setTimeout(act, 30));
  const decode = (shown) =>
    shown.site.layers.forEach((_, layer) => shown.site.heads.forEach((_, head) => shown.wall(layer, head)));
  weightsShown({ ...state, step: next })
    .then((shown) => later(() => decode(shown)))
    .catch(() => {}); // What cannot be unpacked is told of once it is asked for.
}

function look(query, key, event) {
  pointed = [query, key];
  highlight(...focused());
  if (query === null || key === null || !event) hideTip();
  else placeTip(event.clientX, event.clientY);
}

/** Hold a row or a column, whichever is given; what is held already is released. */
function hold(query, key) {
  change(query === null ? { column: key === state.column ? null : key } : { row: query === state.row ? null : query });
}

function showControls() {
  byId("step").value = state.step;
  byId("step-shown").textContent = `step ${readable(data.steps[state.step])}`;
  byId("step").setAttribute("aria-valuetext", `step ${data.steps[state.step]}`);
  byId("example").value = state.example;
  [...byId("sites").children].forEach((button, index) => button.setAttribute("aria-pressed", index === state.site));
  for (const figure of charts) markFigure(figure, data.steps[state.step]);
  showComparison(state);
  showNorms(state);
  markRole(state);
  showDrawing();
  if (sampleSplit === undefined) return;
  byId("samples-panel").hidden = false;
  drawSamples(sampleSplit, data.steps[state.step]);
}

/** Which of map and lines is drawn, and what belongs to it alone. */
function showDrawing() {
  const choices = [
    [false, "map"],
    [true, "lines"],
  ];
  if (byId("drawing").dataset.lines !== String(state.lines))
    fillSegments(byId("drawing"), choices, state.lines, (lines) => change({ lines }));
  byId("drawing").dataset.lines = state.lines;
  drawStrandHeads(byId("strand-heads"), state, change);
  byId("legend").hidden = state.lines;
  tellKeys(byId("keys"));
}

function play(on) {
  clearInterval(playing);
  playing = on ? setInterval(() => change({ step: (state.step + 1) % data.steps.length }), FRAME) : null;
  byId("play").classList.toggle("playing", on);
  byId("play").setAttribute("aria-label", on ? "Stop" : "Play the steps");
}

function turn(name, by) {
  const site = data.sites[state.site];
  const size = {
    site: data.sites.length,
    example: data.titles.length,
    layer: site.layers.length,
    head: site.heads.length,
    step: data.steps.length,
  }[name];
  change({ [name]: name === "step" ? state.step + by : (state[name] + by + size) % size });
}

/** Move the held row or column by some positions; where none is held, hold the first. */
function move(name, by) {
  const { queries, keys } = tokensOf(data.sites[state.site], state.example);
  const last = (name === "row" ? queries : keys).length - 1;
  change({ [name]: state[name] === null ? 0 : Math.min(last, Math.max(0, state[name] + by)) });
}

/** The positions of a cell of the large head. */
const stride = (name) => (name === "row" ? sheet?.plane.queryBlock : sheet?.plane.keyBlock) ?? 1;

const KEYS = {
  ArrowLeft: () => (play(false), turn("step", -1)),
  ArrowRight: () => (play(false), turn("step", 1)),
  ArrowUp: () => turn("layer", -1),
  ArrowDown: () => turn("layer", 1),
  h: () => turn("head", -1),
  l: () => turn("head", 1),
  s: () => turn("site", 1),
  e: () => turn("example", 1),
  E: () => turn("example", -1),
  g: () => change({ links: !state.links }),
  j: () => move("row", 1),
  k: () => move("row", -1),
  J: () => move("row", stride("row")),
  K: () => move("row", -stride("row")),
  ".": () => move("column", 1),
  ",": () => move("column", -1),
  ">": () => move("column", stride("column")),
  "<": () => move("column", -stride("column")),
  t: () => change({ lines: !state.lines }),
  a: () => change(toggledAll(state)),
  x: () => state.lines && state.row !== null && change(toggledToken(state, state.row)),
  p: EXPORTS.png,
  v: EXPORTS.svg,
  c: EXPORTS.csv,
  d: () => change(toggledComparison(state)),
  r: () => change(toggledRollout(state)),
  w: () => change(toggledNorms(state)),
  " ": () => play(!playing),
  Escape: () => change({ row: null, column: null, tokens: [] }),
};

function listen() {
  byId("step").addEventListener("input", (event) => (play(false), change({ step: Number(event.target.value) })));
  byId("play").addEventListener("click", () => play(!playing));
  byId("example").addEventListener("change", (event) => change({ example: Number(event.target.value) }));
  byId("example-before").addEventListener("click", () => turn("example", -1));
  byId("example-after").addEventListener("click", () => turn("example", 1));
  byId("links").addEventListener("change", (event) => change({ links: event.target.checked }));
  byId("normed").addEventListener("change", () => change(toggledNorms(state)));
  byId("statistic").addEventListener("change", (event) => change({ statistic: event.target.value }));
  for (const [kind, act] of Object.entries(EXPORTS)) byId(`export-${kind}`).addEventListener("click", act);
  // Whether what has the focus has it from a click: then the space bar is the page's.
  let pressed = false;
  document.addEventListener("pointerdown", () => (pressed = true), true);
  document.addEventListener("keydown", (event) => {
    const act = KEYS[event.key];
    if (event.key === "Tab") pressed = false;
    const pushed = event.key === " " && event.target.closest("button, input:not([type=range]), summary");
    const busy = event.target.closest("select, audio, input[type=text], input[type=number]") || (pushed && !pressed);
    if (!act || busy || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    // Else the button that was clicked would be pushed once more.
    if (pushed) document.activeElement.blur();
    act();
  });
  window.addEventListener("hashchange", () => (readAddress(), show()));
  const renew = () => {
    delete byId("legend").dataset.of;
    redrawAll();
    show();
  };
  onNewScheme(renew);
  onNewWidth(renew);
}

function build() {
  Object.assign(page, { name: data.title, words: data.title });
  byId("title").textContent = data.against ? `${data.title} minus ${data.against.title}` : data.title;
  if (data.alone) byId("eyebrow").textContent = "Headwise · what every head attends to";
  const still = data.steps.length === 1;
  byId("steps").hidden = still;
  byId("compare-chooser").hidden = still && !data.against;
  byId("curves-panel").hidden = !Object.keys(data.curves).length;
  byId("facts").replaceChildren(...facts().map((fact) => make("span", {}, fact)));
  const sites = data.sites.length > 1 ? data.sites.map((site, index) => [index, siteWords(site)]) : [];
  fillSegments(byId("sites"), sites, state.site, (site) => change({ site }));
  // Names of patches or frames say nothing of an example; words do.
  const inWords = Object.keys(data.axes).find((name) => data.axes[name].kind === "tokens");
  const asText = data.titles.map((title, example) => {
    const words = inWords ? visible(sentence(data.tokens[inWords][example])) : "";
    // A title that is the text's own beginning says nothing beside it.
    const letters = (text) => text.toLowerCase().replace(/\[MASK\]|[^\p{L}\p{N}]/giu, "");
    const [of, said] = [letters(title), letters(words)];
    if (!said.startsWith(of.slice(0, 16)) && said && of.includes(said.slice(0, 16))) return visible(title);
    if (said.startsWith(of.slice(0, 16))) return title.length + 8 < words.length ? words : visible(title);
    return [visible(title), words].filter(Boolean).join(": ");
  });
  asText.forEach((text, example) =>
    byId("example").append(make("option", { value: example }, shorten(`${example + 1}. ${text}`, 72))),
  );
  if (data.alone && asText.length === 1) {
    byId("text").hidden = false;
    byId("text").textContent = shorten(asText[0], 400);
    byId("examples").hidden = true;
  }
  document.querySelector(".controls").hidden = !sites.length && still && byId("examples").hidden;
  byId("step").max = data.steps.length - 1;
  byId("ticks").append(...data.steps.slice(0, 120).map(() => make("i")));
  const missing = missingWords();
  byId("left-out").hidden = !missing;
  byId("left-out").textContent = missing;
  const stored = data.alone ? "as they are" : "as the run stored them";
  const bits = data.codes === 255 ? stored : "in seven bits, within 0.01 of what the run stored";
  byId("how").textContent =
    "A row is a query, a column a key, and a cell the weight with which the query reads the key, before dropout; " +
    "color follows the square root of the weight. Weights stand for codes of eight bits a cell, scaled by the " +
    `largest of their row; this page draws them ${bits}.`;
  showConfig();
  drawSampleSplits(sampleSplit, chooseSplit);
  buildRoles((chosen) => change(chosen));
  offerComparisons(state, change);
  addCurves((step) => (play(false), change({ step: nearestStep(step) })));
}

function chooseSplit(split) {
  sampleSplit = split;
  drawSampleSplits(split, chooseSplit);
  drawSamples(split, data.steps[state.step]);
}

build();
readAddress();
listen();
show();
