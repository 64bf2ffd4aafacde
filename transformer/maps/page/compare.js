// What else can be drawn than the weights: the difference of two steps or of two runs, and attention rollout.

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

/** Why the site, at this step, has no rollout; an empty text where it has one. */
function whyNoRollout(state) {
  const site = data.sites[state.site];
  const { queries, keys } = tokensOf(site, state.example);
  const level = finestLevel(site, state.step);
  if (site.values !== "probability") return "only of rows that sum to one";
  if (site.query !== site.key && !site.causal) return "only where a sequence attends to itself";
  if (queries.length !== keys.length) return "only where a sequence attends to itself";
  if (level.queryBlock * level.keyBlock > 1) return "this page has no whole maps of this site and step";
  if (queries.length > ROLLOUT_LONGEST) return `only up to ${ROLLOUT_LONGEST} positions`;
  return "";
}

/** Attention rollout up to the chosen layer; the wall stays that of the weights, since rollout has no heads. */
async function rolloutShown(state) {
  const site = data.sites[state.site];
  const maps = await mapsAt(state.step, state.site, state.example, finestLevel(site, state.step));
  const plain = await weightsShown(state);
  maps.rollout ??= rollout(site, maps);
  return {
    ...plain,
    said: `and all below it combined (rollout): how attention mixes positions, not an attribution`,
    detail: maps.rollout[state.layer],
    heads: "all heads",
    verbs: ["mixes in", "is mixed into"],
    tell: (query, key) => `${maps.rollout[state.layer].at(query, key).toFixed(3)} of the mixture, over all heads`,
  };
}

/**
 * Attention rollout (Abnar and Zuidema 2020, "Quantifying attention flow in transformers"), a plane a layer:
 * R_l = A_l R_(l-1), where A is half the mean of the heads' weights and half the residual's identity, rows summing
 * to one, and R_(-1) is the identity.
 */
function rollout(site, maps) {
  const planes = [];
  site.layers.forEach((_, layer) => {
    const mixing = mixed(site.heads.map((_, head) => maps.plane(layer, head)));
    const { queries: size } = mixing;
    const below = planes.at(-1);
    const values = new Float32Array(size * size);
    for (let row = 0; row < size && below; row++) {
      for (let middle = 0; middle < size; middle++) {
        const share = mixing.at(row, middle);
        if (share === 0) continue;
        for (let at = 0; at < size; at++) values[row * size + at] += share * below.values[middle * size + at];
      }
    }
    planes.push(below ? new Plane(values, mixing) : mixing);
  });
  return planes;
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
function offerComparisons(state, choose) {
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
function toggledComparison({ compare }) {
  if (compare !== null) lastCompared = compare;
  return { compare: compare === null ? lastCompared : null, view: "weights" };
}

function toggledRollout(state) {
  const on = state.view !== "rollout" && !whyNoRollout(state);
  return { view: on ? "rollout" : "weights", compare: on ? null : state.compare };
}

/** Show which of the choices holds, and why rollout cannot be had. */
function showComparison(state) {
  byId("compare").value = state.compare ?? "";
  byId("matched-toggle").hidden = state.compare !== "run";
  byId("matched").checked = matchedHeads;
  const why = whyNoRollout(state);
  byId("rollout").disabled = why !== "";
  byId("rollout").checked = state.view === "rollout" && why === "" && otherSide(state) === null;
  byId("rollout-toggle").title =
    why || "rollout: how attention mixes positions over the layers (Abnar and Zuidema 2020); not an attribution";
}
