// The arms of a study: how each is told from the others, which are shown, and how its numbers are written. The files
// of this folder stand behind those of transformer/pages in one module, in the order that page.py gives. `data` is the
// result of an ablation, as transformer/studies/analysis.py describes it.

const MOST_DECIMALS = 6;

Object.assign(page, {
  name: data.name || "study",
  words: visible(data.question || data.name),
  legend: () => shownArms().map(({ name }) => [lookOf(name), name]),
});

// The reference is drawn in ink, the others in the order in which the study names them.
const slots = new Map(
  [data.reference, ...data.arms.map((arm) => arm.name).filter((name) => name !== data.reference)].map((name, slot) => [
    name,
    slot,
  ]),
);
const hiddenArms = new Set();
const severalTasks = data.tasks.length > 1;
const lowerIsBetter = data.better === "lower";

const shownArms = () => data.arms.filter((arm) => !hiddenArms.has(arm.name));
const armNamed = (name) => data.arms.find((arm) => arm.name === name);

/** An arm's colour, dash and marker: an eighth arm has the first one's colour and the second one's shape. */
function lookOf(name) {
  const slot = slots.get(name) ?? 0;
  const round = Math.floor((slot - 1) / (SHAPES.length - 1));
  const turned = (number) => (slot === 0 ? 0 : 1 + ((number - 1) % (SHAPES.length - 1)));
  const [colour, shape] = [turned(slot), turned(slot + round)];
  return { ink: `arm-${colour} dash-${shape}`, shape };
}

/** The classes that give an arm its colour and its dash. */
const armClass = (name) => lookOf(name).ink;

/** A row of a tip that begins with an arm. */
const armRow = (name, value, more) => tipRow(lookOf(name), name, value, more);

/** An arm's name as it can be seen, behind its sample. */
const named = (name) => [sampleOf(lookOf(name)), make("span", { class: "arm-name", dir: "auto" }, visible(name))];

/** What an arm has over steps or layers, as a series of a figure of lines. */
const armSeries = (name, points) => ({ name, look: lookOf(name), points });

/** The shown arms as series: `bandOf(arm)` is { steps, middle, low, high, n }, or nothing for an arm without one. */
const bandSeries = (bandOf) =>
  shownArms().flatMap((arm) => {
    const { steps, middle, low, high, n } = bandOf(arm) ?? {};
    if (!steps) return [];
    const points = steps.map((x, at) => ({ x, middle: middle[at], low: low[at], high: high[at], n: n?.[at] }));
    return [armSeries(arm.name, points)];
  });

// --- numbers ---

const fixedFormats = new Map();

/** A number with so many decimals; a dash where there is none. */
function fixed(value, decimals) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  // What is too small for as many decimals as are ever given is written as a power of ten.
  if (size >= 1e6 || (decimals === MOST_DECIMALS && size !== 0 && size < 1e-5)) return minus(readable(value));
  if (!fixedFormats.has(decimals)) {
    const digits = { minimumFractionDigits: decimals, maximumFractionDigits: decimals };
    fixedFormats.set(decimals, new Intl.NumberFormat("en", digits));
  }
  return minus(fixedFormats.get(decimals).format(value));
}

const percent = (share) => (isNumber(share) ? `${readable(Number((100 * share).toPrecision(3)))} %` : "–");
const signedFixed = (value, decimals) => (isNumber(value) && value > 0 ? "+" : "") + fixed(value, decimals);

/** As many decimals as the narrowest of some intervals needs to show two digits of its half. */
function decimalsFor(intervals, values = []) {
  const halves = intervals.filter(Boolean).map(([low, high]) => (high - low) / 2);
  const sizes = halves.some((half) => half > 0) ? halves : values.filter(isNumber).map((value) => Math.abs(value) / 50);
  const least = Math.min(...sizes.filter((size) => size > 0));
  return Number.isFinite(least) ? Math.min(MOST_DECIMALS, Math.max(0, 1 - Math.floor(Math.log10(least)))) : 3;
}

/** A number in a table, exact in what the element holds, rounded in what is seen. */
const exact = (value, words) =>
  isNumber(value) ? make("data", { value: String(value) }, words) : make("span", { class: "none" }, "–");

/** "[0.12, 0.34]", both ends exact underneath; nothing where there is no interval. */
function intervalOf(interval, decimals, write = fixed) {
  if (!interval) return [];
  const [low, high] = interval.map((end) => exact(end, write(end, decimals)));
  return [make("span", { class: "interval" }, "[", low, ", ", high, "]")];
}

const taskName = (task) => (task === "" ? "the task" : visible(String(task)));

/** The last part of a dotted key, or the whole of it where another tuned key ends alike. */
function shortKey(key) {
  const last = String(key).split(".").at(-1);
  const alike = tunedKeys().filter((other) => other.split(".").at(-1) === last);
  return spaced(alike.length > 1 ? key : last);
}

const tunedKeys = () => Object.keys(data.tuned ?? {});

const tunedWords = (value) =>
  isNumber(value) && value !== 0 && Math.abs(value) < 0.01 ? value.toExponential().replace("e+", "e") : worded(value);

// --- elements ---

/** One of many, chosen from a list: [[value, words], ...]. */
function chooser(name, choices, chosen, choose) {
  const select = make("select", {}, ...choices.map(([value, words]) => make("option", { value }, words)));
  select.value = chosen;
  select.addEventListener("change", () => choose(select.value));
  return make("label", { class: "chooser" }, `${name} `, select);
}

/** A button that copies a text. */
function copyButton(text, words = "copy") {
  const act = async () => {
    button.textContent = (await copied(text)) ? "copied" : "not allowed";
    setTimeout(() => (button.textContent = words), 1600);
  };
  const button = smallButton(words, act, { class: "small-button copy" });
  return button;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // A page from a disk is not everywhere allowed the clipboard; the old way asks nobody.
    const area = make("textarea", { class: "offscreen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/** A panel of the page: its heading, a note under it, and its content. */
function addPanel(id, title, note, ...content) {
  const heading = make("h2", { id: `${id}-title` }, title);
  const words = note ? [make("p", { class: "note" }, note)] : [];
  const head = make("div", { class: "panel-head" }, heading);
  const panel = make("section", { id, class: "panel", "aria-labelledby": `${id}-title` }, head, ...words, ...content);
  byId("panels").append(panel);
  return panel;
}

/** Content behind a fold. */
const fold = (title, ...content) => make("details", {}, make("summary", {}, title), ...content);

const scrolling = (...content) => make("div", { class: "scroll" }, ...content);
const line = (...content) => make("div", {}, ...content);
const small = (...content) => make("div", { class: "small" }, ...content);

/**
 * A table from columns { head, title, cell(row) -> nodes }; on a narrow page each row becomes a card that names its
 * cells, so a cell without content is marked and left out of it.
 */
function makeTable(caption, columns, rows, attributes = {}) {
  const head = columns.map(({ head, title }) => make("th", { scope: "col", title }, head));
  const body = rows.map((row) => {
    const cells = columns.map(({ head, cell }, index) => {
      const content = [cell(row)].flat();
      const kind = content.length ? null : "nothing";
      const attributes = { "data-label": head, class: kind, scope: index ? null : "row" };
      return make(index ? "td" : "th", attributes, ...content);
    });
    return make("tr", {}, ...cells);
  });
  const title = make("caption", { class: "offscreen" }, caption);
  return make("table", attributes, title, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
}
