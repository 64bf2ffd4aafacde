// The state of the page, its controls, and the address that keeps it.

const FRAME = 650; // milliseconds a step while playing
const first = data.first;
const state = {
  site: first.site,
  example: first.example,
  layer: first.layer,
  head: first.head,
  step: data.steps.length - 1,
  row: null,
  links: true,
};
let pointed = [null, null];
let highlight = () => {};
let markStep = () => {};
let playing = null;
let sampleSplit = data.samples[0]?.split;

/** Change the state and show it. */
function change(changes) {
  Object.assign(state, changes);
  if ("site" in changes || "example" in changes) state.row = null;
  bound();
  show();
}

/** Bring every index back to what there is: an address may be older than the page. */
function bound() {
  const within = (value, size) => Math.min(size - 1, Math.max(0, Number.isInteger(value) ? value : 0));
  state.site = within(state.site, data.sites.length);
  const site = data.sites[state.site];
  state.example = within(state.example, data.titles.length);
  state.layer = within(state.layer, site.layers.length);
  state.head = within(state.head, site.heads.length);
  state.step = within(state.step, data.steps.length);
  const rows = tokensOf(site, state.example).queries.length;
  if (state.row !== within(state.row, rows)) state.row = null;
}

function writeAddress() {
  const site = data.sites[state.site];
  const parts = new URLSearchParams({
    site: site.name,
    example: state.example + 1,
    layer: site.layers[state.layer],
    head: site.heads[state.head],
    step: data.steps[state.step],
  });
  if (state.row !== null) parts.set("row", state.row + 1);
  if (!state.links) parts.set("links", "0");
  const address = `#${parts}`;
  if (location.hash !== address) history.replaceState(null, "", address);
}

function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const place = (list, name, other) => (list.indexOf(name) < 0 ? other : list.indexOf(name));
  state.site = place(
    data.sites.map((site) => site.name),
    parts.get("site"),
    state.site,
  );
  const site = data.sites[state.site];
  state.layer = place(site.layers, parts.get("layer"), state.layer);
  state.head = place(site.heads, parts.get("head"), state.head);
  if (parts.has("example")) state.example = Number(parts.get("example")) - 1;
  if (parts.has("step")) state.step = nearestStep(Number(parts.get("step")));
  state.row = parts.has("row") ? Number(parts.get("row")) - 1 : null;
  state.links = parts.get("links") !== "0";
  bound();
}

const nearestStep = (step) =>
  data.steps.indexOf(
    nearest(
      data.steps.map((each) => [each]),
      step,
    )[0],
  );

async function show() {
  showControls();
  writeAddress();
  const wanted = { ...state };
  let maps;
  try {
    maps = await mapsAt(state.step, state.site);
  } catch (error) {
    byId("problem").textContent =
      `The maps of this page cannot be unpacked here (${error.message}): open it in a current browser.`;
    byId("problem").hidden = false;
    return;
  }
  // While these were unpacked, something else may have been asked for.
  if (wanted.step === state.step && wanted.site === state.site) showMaps(maps);
}

function showMaps(maps) {
  const site = maps.site;
  const [layer, head] = [named("layer", site.layers[state.layer]), named("head", site.heads[state.head])];
  byId("detail-title").textContent = `${layer} · ${head}`;
  byId("links-toggle").hidden = !site.links;
  byId("links").checked = state.links;
  byId("wall-note").textContent = site.links
    ? `${site.name}; the bar is the share of weight on gold links`
    : site.name;
  drawWall(byId("wall"), maps, state, (l, h) => change({ layer: l, head: h }));
  const parts = [
    drawDetail(byId("detail"), maps, state, look, hold),
    drawSentence(byId("sentence"), maps, state, look, hold),
    (query, key) => read(maps, query, key),
  ];
  highlight = (query, key) => parts.forEach((part) => part(query, key));
  highlight(pointed[0] ?? state.row, pointed[0] === null ? null : pointed[1]);
  document.body.dataset.shown = location.hash;
}

function look(query, key, event) {
  pointed = [query, key];
  highlight(query ?? state.row, query === null ? null : key);
  const tip = byId("tip");
  tip.hidden = query === null || key === null || !event;
  if (tip.hidden) return;
  // Against the far edge the tip stands on the other side of the pointer.
  const left =
    event.clientX + 16 + tip.offsetWidth > innerWidth
      ? event.clientX - tip.offsetWidth - 12
      : event.clientX + 16;
  tip.style.transform = `translate(${left}px, ${Math.max(4, event.clientY - tip.offsetHeight - 16)}px)`;
}

const hold = (query) => change({ row: query === state.row ? null : query });

/** Put the row into words, and the cell into the tip. */
function read(maps, query, key) {
  const { queries, keys } = tokensOf(maps.site, state.example);
  const weight = maps.head(state.example, state.layer, state.head);
  const quoted = (token) => `“${shorten(visible(token), 30)}”`;
  const reading = byId("reading");
  if (query === null) {
    const share = linkedShare(maps.site, state.example, weight);
    const measured = share === null ? "" : `${percent(share)} of its weight on gold links in this example. `;
    reading.textContent = `${measured}Point at a cell or a token; click to hold a row.`;
    return;
  }
  const strongest = keys
    .map((token, at) => [token, weight(query, at)])
    .sort((a, b) => b[1] - a[1])
    .slice(0, 3);
  const words = strongest
    .filter(([, value]) => value > 0.005)
    .map(([token, value]) => `${quoted(token)} ${value.toFixed(2)}`);
  reading.textContent = `${quoted(queries[query])} attends to ${words.join(", ") || "nothing"}`;
  if (key === null) return;
  const future = maps.site.causal && key > query;
  const value = make("b", {}, future ? "masked" : weight(query, key).toFixed(3));
  byId("tip").replaceChildren(
    make("span", { dir: "auto" }, ...written(queries[query], 60)),
    make("i", {}, " → "),
    make("span", { dir: "auto" }, ...written(keys[key], 60)),
    " ",
    value,
  );
}

function showControls() {
  byId("step").value = state.step;
  byId("step-shown").textContent = `step ${readable(data.steps[state.step])}`;
  byId("step").setAttribute("aria-valuetext", `step ${data.steps[state.step]}`);
  byId("example").value = state.example;
  [...byId("sites").children].forEach((button, index) =>
    button.setAttribute("aria-pressed", index === state.site),
  );
  markStep(data.steps[state.step]);
  if (sampleSplit === undefined) return;
  byId("samples-panel").hidden = false;
  drawSamples(sampleSplit, data.steps[state.step]);
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
  " ": () => play(!playing),
  Escape: () => change({ row: null }),
};

function listen() {
  byId("step").addEventListener(
    "input",
    (event) => (play(false), change({ step: Number(event.target.value) })),
  );
  byId("play").addEventListener("click", () => play(!playing));
  byId("example").addEventListener("change", (event) => change({ example: Number(event.target.value) }));
  byId("example-before").addEventListener("click", () => turn("example", -1));
  byId("example-after").addEventListener("click", () => turn("example", 1));
  byId("links").addEventListener("change", (event) => change({ links: event.target.checked }));
  document.addEventListener("keydown", (event) => {
    const act = KEYS[event.key];
    const busy =
      event.target.closest("select") || (event.key === " " && event.target.closest("button, input, summary"));
    if (!act || busy || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
  window.addEventListener("hashchange", () => (readAddress(), show()));
  dark.addEventListener("change", () => (renewRamp(), drawLegend(byId("legend")), show()));
  let width = innerWidth;
  window.addEventListener("resize", () => {
    if (width === innerWidth) return;
    width = innerWidth;
    buildCurves();
    show();
  });
}

function buildCurves() {
  for (const place of document.querySelectorAll(".curves")) place.replaceChildren();
  const more = byId("more-curves").cloneNode(true);
  more.open = false;
  delete more.dataset.drawn;
  byId("more-curves").replaceWith(more);
  markStep = drawCurves((step) => (play(false), change({ step: nearestStep(step) })));
}

function build() {
  byId("title").textContent = data.title;
  byId("facts").replaceChildren(...facts().map((fact) => make("span", {}, fact)));
  data.sites.forEach((site, index) => {
    const button = make("button", { type: "button" }, site.name.replace("/", " · "));
    button.addEventListener("click", () => change({ site: index }));
    byId("sites").append(button);
  });
  const words = Object.values(data.tokens)[0];
  data.titles.forEach((title, example) =>
    byId("example").append(
      make(
        "option",
        { value: example },
        shorten(`${example + 1}. ${visible(title)}: ${visible(sentence(words[example]))}`, 72),
      ),
    ),
  );
  byId("step").max = data.steps.length - 1;
  byId("ticks").append(...data.steps.slice(0, 120).map(() => make("i")));
  const count = data.leftOut.length;
  if (count) {
    byId("left-out").hidden = false;
    const [all, steps] = [count + data.steps.length, shorten(data.leftOut.map(readable).join(", "), 160)];
    byId("left-out").textContent =
      `To keep this file small, ${count} of ${all} stored steps of maps are left out: ${steps}. ` +
      "The run's own store has them all.";
  }
  byId("how").textContent =
    "A row is a query, a column a key, and a cell the weight with which the query reads the key, before dropout; " +
    "colour follows the square root of the weight. Weights are stored in eight bits a cell, scaled by the " +
    "largest of their row.";
  for (const [key, value] of data.config)
    byId("config").append(make("tr", {}, make("th", {}, key), make("td", {}, value)));
  drawLegend(byId("legend"));
  drawSampleSplits(sampleSplit, chooseSplit);
  buildCurves();
}

function chooseSplit(split) {
  sampleSplit = split;
  drawSampleSplits(split, chooseSplit);
  drawSamples(split, data.steps[state.step]);
}

function facts() {
  const heads = data.sites.reduce((sum, site) => sum + site.layers.length * site.heads.length, 0);
  const said = [
    `${heads} heads at ${data.sites.length} sites`,
    `maps at ${data.steps.length} steps`,
    `${data.titles.length} examples`,
  ];
  if (data.parameters) said.unshift(`${readable(data.parameters)} parameters`);
  if (data.device) said.push(`${data.device.count} × ${data.device.kind}`);
  if (data.started) said.push(data.started.slice(0, 10));
  if (data.commit) said.push(`commit ${data.commit.slice(0, 10)}`);
  return [...said, `config ${data.configHash.slice(0, 8)}`];
}

build();
readAddress();
listen();
show();
