// What else can be drawn than the weights: the difference of two steps or of two runs, and attention rollout.

import { byId, make } from "../../../pages/dom.js";
import { readable, shorten, visible } from "../../../pages/formatting.js";
import { wholePercent } from "./head_grid.js";
import { headName, nearestColumn } from "./head_statistics.js";
import { finestLevel, mapsAt, Plane, planeAt, VIEW_NAMES, views, weightsShown } from "./map_data.js";
import { data } from "./page_data.js";
import { tokensOf } from "./tokens.js";

const ROLLOUT_LONGEST = 384; // positions: matrices of so many are multiplied in about a second
let matchedHeads = true; // of two runs: heads that are alike, or those of the same index
let lastCompared = data.against ? "run" : 0;

VIEW_NAMES.push("rollout");
views.push({ wanted: (state) => otherSide(state) !== null, shown: differenceShown });
views.push({ wanted: (state) => state.view === "rollout" && !whyNoRollout(state), shown: rolloutShown });

/** What is taken off the weights that `state` names: where its maps lie, and how it is called; null for nothing. */
function otherSide(state) {
  const { compare } = state;
  const site = data.sites[state.site];
  if (Number.isInteger(compare) && compare in data.steps)
    return {
      run: "maps",
      step: compare,
      levels: site.levels,
      head: (layer, head) => [layer, head],
      ours: `step ${readable(data.steps[state.step])}`,
      theirs: () => `step ${readable(data.steps[compare])}`,
    };
  if (compare !== "run" || !data.against) return null;
  const { steps, sites, title } = data.against;
  const step = nearestColumn(steps, data.steps[state.step]);
  return {
    run: "against",
    step,
    levels: sites[state.site].levels,
    head: (layer, head) => matchOf(state.site, layer, head)?.slice(3, 5) ?? [layer, head],
    ours: `“${data.title}” step ${readable(data.steps[state.step])}`,
    theirs: (layer, head) => `“${title}” step ${readable(steps[step])} head ${headName(site, layer, head)}`,
  };
}

/** The entry of data.against.matches for a head, where heads that are alike are compared. */
function matchOf(site, layer, head) {
  if (!matchedHeads) return undefined;
  return data.against.matches.find(([s, l, h]) => s === site && l === layer && h === head);
}

/** This minus that, at the finest level that both have. */
async function differenceShown(state) {
  const site = data.sites[state.site];
  const other = otherSide(state);
  const carried = (levels, step) => levels.filter((level) => level.steps.includes(step));
  const theirs = carried(other.levels, other.step);
  const pairs = carried(site.levels, state.step).flatMap((level) => {
    const same = theirs.find(({ name }) => name === level.name);
    return same ? [[level, same]] : [];
  });
  const [[ourWall, theirWall], [ourLevel, theirLevel]] = [pairs[0], pairs.at(-1)];
  const [layer, head] = other.head(state.layer, state.head);
  const { site: s, step, example } = state;
  const [mine, their, plane, theirPlane] = await Promise.all([
    mapsAt(step, s, example, ourWall),
    mapsAt(other.step, s, example, theirWall, other.run),
    planeAt(step, s, example, ourLevel, state.layer, state.head),
    planeAt(other.step, s, example, theirLevel, layer, head, other.run),
  ]);
  const match = other.run === "against" ? matchOf(s, state.layer, state.head) : undefined;
  const alike = match ? ` (${wholePercent(match[5])} alike)` : "";
  return {
    site,
    signed: true,
    said: `${other.ours} minus ${other.theirs(layer, head)}${alike}`,
    wall: (l, h) => lessOther(mine.plane(l, h), their.plane(...other.head(l, h))),
    detail: lessOther(plane, theirPlane),
    tell: (query, key) =>
      `${signed(plane.at(query, key) - theirPlane.at(query, key))} = ` +
      `${plane.at(query, key).toFixed(3)} (${other.ours}) − ` +
      `${theirPlane.at(query, key).toFixed(3)} (${other.theirs(layer, head)})`,
  };
}

/** A difference of two planes; of pooled ones, of the largest weights of their blocks. */
function lessOther(plane, other) {
  return new Plane(
    plane.values.map((value, at) => value - other.values[at]),
    plane,
  );
}

/** A difference with its sign, a minus that is as wide as a plus. */
const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;

/** Whether position i is the same on both sides of a site. */
function isSelf(site, example) {
  const { queries, keys } = tokensOf(site, example);
  return (site.query === site.key || site.causal) && queries.length === keys.length;
}

/** The sites that rollout mixes: the site itself, of a cross-attention its decoder's and its encoder's; or null. */
function stacksOf({ site, example }) {
  if (isSelf(data.sites[site], example)) return { own: site };
  const cross = data.sites[site];
  const alone = (each) => each.values === "probability" && isSelf(each, example);
  const decoder = data.sites.findIndex(
    (each) => alone(each) && each.query === cross.query && String(each.layers) === String(cross.layers),
  );
  const encoder = data.sites.findIndex((each) => alone(each) && each.query === cross.key);
  return decoder < 0 ? null : { cross: site, decoder, encoder: encoder < 0 ? undefined : encoder };
}

/** Why the site, at this step, has no rollout; an empty text where it has one. */
export function whyNoRollout(state) {
  const site = data.sites[state.site];
  const stacks = stacksOf(state);
  if (site.values !== "probability") return "only of rows that sum to one";
  if (!stacks) return "only where a sequence attends to itself, here or beside it in every layer";
  const sites = Object.values(stacks).filter((at) => at !== undefined);
  const whole = (level) => level && level.queryBlock * level.keyBlock === 1;
  if (!sites.every((at) => whole(finestLevel(data.sites[at], state.step))))
    return "this page has no whole maps of this site and step";
  const longest = Math.max(...Object.values(tokensOf(site, state.example)).map((side) => side.length));
  return longest > ROLLOUT_LONGEST ? `only up to ${ROLLOUT_LONGEST} positions` : "";
}

/** Attention rollout up to the chosen layer; the wall stays that of the weights, since rollout has no heads. */
async function rolloutShown(state) {
  const stacks = stacksOf(state);
  const mapsOf = (at) =>
    at !== undefined && mapsAt(state.step, at, state.example, finestLevel(data.sites[at], state.step));
  const [plain, own, cross, decoder, encoder] = await Promise.all([
    weightsShown(state),
    ...[stacks.own, stacks.cross, stacks.decoder, stacks.encoder].map(mapsOf),
  ]);
  const maps = own || cross;
  maps.rollout ??= own ? rollout(own) : rolloutAcross(cross, decoder, encoder);
  const plane = maps.rollout[state.layer];
  const said = "how attention mixes positions, not an attribution";
  return {
    ...plain,
    said: own
      ? `and all below it combined (rollout): ${said}`
      : `and all below it, on both sides, combined (rollout): ${said}`,
    detail: plane,
    layers: maps.rollout,
    heads: "all heads",
    verbs: ["mixes in", "is mixed into"],
    tell: (query, key) => `${plane.at(query, key).toFixed(3)} of the mixture, over all heads`,
  };
}

/**
 * Attention rollout (Abnar and Zuidema 2020, "Quantifying attention flow in transformers"), a plane a layer:
 * R_l = A_l R_(l-1), where A is half the mean of the heads' weights and half the residual's identity, rows summing
 * to one, and R_(-1) is the identity.
 */
function rollout(maps) {
  const planes = [];
  maps.site.layers.forEach((_, layer) => {
    const mixing = mixed(headsOf(maps, layer));
    planes.push(layer ? product(mixing, planes.at(-1)) : mixing);
  });
  return planes;
}

/**
 * The share of each position of the source in the target's, a plane a layer: R_l = half A_l R_(l-1), half C_l E, with
 * R_(-1) = 0, the mean C_l of the heads of cross-attention, A_l as above and E the encoder's rollout, if it has one.
 */
function rolloutAcross(cross, decoder, encoder) {
  const source = encoder && rollout(encoder).at(-1);
  const planes = [];
  cross.site.layers.forEach((_, layer) => {
    const read = meanOf(headsOf(cross, layer));
    const added = source ? product(read, source) : read;
    const before = layer ? product(mixed(headsOf(decoder, layer)), planes.at(-1)) : null;
    const values = added.values.map((value, at) => {
      const row = Math.floor(at / read.keys) * read.keys;
      const sum = read.values.subarray(row, row + read.keys).reduce((a, b) => a + b, 0);
      return (value + (before ? before.values[at] : 0)) / (1 + sum);
    });
    planes.push(new Plane(values, read));
  });
  return planes;
}

const headsOf = (maps, layer) => maps.site.heads.map((_, head) => maps.plane(layer, head));

/** The matrix product of two planes. */
function product(left, right) {
  const [rows, columns] = [left.queries, right.keys];
  const values = new Float32Array(rows * columns);
  for (let row = 0; row < rows; row++) {
    for (let between = 0; between < left.keys; between++) {
      const share = left.at(row, between);
      if (share === 0) continue;
      for (let at = 0; at < columns; at++) values[row * columns + at] += share * right.values[between * columns + at];
    }
  }
  return new Plane(values, { ...left, queries: rows, keys: columns });
}

/** The mean of the heads. */
function meanOf(heads) {
  const values = heads[0].values.map((_, at) => heads.reduce((sum, { values }) => sum + values[at], 0) / heads.length);
  return new Plane(values, heads[0]);
}

/** Half the mean of the heads, half the identity, rows summing to one. */
function mixed(heads) {
  const { queries: size } = heads[0];
  const values = new Float32Array(size * size);
  for (let row = 0; row < size; row++) {
    let sum = 0;
    for (let key = 0; key < size; key++) {
      const mean = heads.reduce((total, plane) => total + plane.at(row, key), 0) / heads.length;
      values[row * size + key] = 0.5 * mean + (row === key ? 0.5 : 0);
      sum += values[row * size + key];
    }
    for (let key = 0; key < size; key++) values[row * size + key] /= sum;
  }
  return new Plane(values, heads[0]);
}

/** Fill the choices of what is compared and viewed; `choose({ compare, view })` is called for a new one. */
export function offerComparisons(state, choose) {
  const none = make("option", { value: "" }, "–");
  const run = data.against ? [make("option", { value: "run" }, `run ${shorten(visible(data.against.title), 32)}`)] : [];
  const others = data.steps.length > 1 ? data.steps : [];
  const steps = others.map((step, at) => make("option", { value: at }, `step ${readable(step)}`));
  byId("compare").replaceChildren(none, ...run, ...steps);
  byId("compare").addEventListener("change", ({ target: { value } }) =>
    choose({ compare: value === "" ? null : value === "run" ? value : Number(value), view: "weights" }),
  );
  byId("matched").addEventListener("change", (event) => {
    matchedHeads = event.target.checked;
    choose({});
  });
  byId("rollout").addEventListener("change", () => choose(toggledRollout(state)));
}

/** The difference that was looked at last, or none: of a page of two runs the other run first, else the first step. */
export function toggledComparison({ compare }) {
  if (compare !== null) lastCompared = compare;
  return { compare: compare === null ? lastCompared : null, view: "weights" };
}

export function toggledRollout(state) {
  const on = state.view !== "rollout" && !whyNoRollout(state);
  return { view: on ? "rollout" : "weights", compare: on ? null : state.compare };
}

/** Show which of the choices holds, and why rollout cannot be had. */
export function showComparison(state) {
  byId("compare").value = state.compare ?? "";
  byId("matched-toggle").hidden = state.compare !== "run";
  byId("matched").checked = matchedHeads;
  const why = whyNoRollout(state);
  byId("rollout").disabled = why !== "";
  byId("rollout").checked = state.view === "rollout" && why === "" && otherSide(state) === null;
  byId("rollout-toggle").title =
    why || "rollout: how attention mixes positions over the layers (Abnar and Zuidema 2020); not an attribution";
}
