// The arms of a study: how each is told from the others, which are shown, and how its numbers are written. The files
// of this folder are joined into one module behind some of transformer/maps/page, in the order that page.py gives:
// make, draw, byId, readable, visible, shorten, css, niceTicks, compact, quotedCell and `data` come from there. `data`
// is here the result of an ablation, as transformer/studies/analysis.py describes it.

const MOST_DECIMALS = 6;
const SHAPES = 8; // colours, dashes and markers: of the reference, and of seven arms

// The reference is drawn in ink, the others in the order in which the study names them.
const slots = new Map(
  [data.reference, ...data.arms.map((arm) => arm.name).filter((name) => name !== data.reference)].map(
    (name, slot) => [name, slot],
  ),
);
const hiddenArms = new Set();
const severalTasks = data.tasks.length > 1;
const lowerIsBetter = data.better === "lower";

const shownArms = () => data.arms.filter((arm) => !hiddenArms.has(arm.name));
const armNamed = (name) => data.arms.find((arm) => arm.name === name);

/** The entry of a plain object that the object itself has: a key may be called "constructor". */
const own = (object, key) => (object && Object.hasOwn(object, key) ? object[key] : undefined);

/** An arm's colour, and its dash and marker: an eighth arm has the first one's colour and the second one's shape. */
function looksOf(name) {
  const slot = slots.get(name) ?? 0;
  if (slot === 0) return [0, 0];
  const round = Math.floor((slot - 1) / (SHAPES - 1));
  return [slot, slot + round].map((number) => 1 + ((number - 1) % (SHAPES - 1)));
}

/** The classes that give an arm its colour and its dash. */
function armClass(name) {
  const [colour, shape] = looksOf(name);
  return `arm-${colour} dash-${shape}`;
}

/** An arm's marker, about 2 r wide. */
function marker(name, x, y, r = 3.6, attributes = {}) {
  const corners = (count, turn, size = r * 1.2) =>
    polygon(
      Array.from({ length: count }, (_, at) => {
        const angle = ((turn + (360 * at) / count) * Math.PI) / 180;
        return [x + size * Math.sin(angle), y - size * Math.cos(angle)];
      }),
    );
  const round = `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`;
  const third = r * 0.42;
  const plus = polygon([
    [x - third, y - r * 1.15], [x + third, y - r * 1.15], [x + third, y - third], [x + r * 1.15, y - third],
    [x + r * 1.15, y + third], [x + third, y + third], [x + third, y + r * 1.15], [x - third, y + r * 1.15],
    [x - third, y + third], [x - r * 1.15, y + third], [x - r * 1.15, y - third], [x - third, y - third],
  ]); // prettier-ignore
  const path = [
    round,
    corners(4, 45),
    corners(3, 0, r * 1.35),
    corners(4, 0, r * 1.3),
    corners(3, 180, r * 1.35),
    plus,
    corners(6, 0),
    corners(5, 180, r * 1.25),
  ][looksOf(name)[1]];
  return draw("path", { class: `marker ${armClass(name)}`, d: path, ...attributes });
}

const polygon = (points) => `M${points.map(([x, y]) => `${x.toFixed(2)} ${y.toFixed(2)}`).join("L")}Z`;

/** A cross where a run diverged. */
const cross = (x, y, r = 3.6, attributes = {}) =>
  draw("path", {
    class: "cross",
    d: `M${x - r} ${y - r}L${x + r} ${y + r}M${x - r} ${y + r}L${x + r} ${y - r}`,
    ...attributes,
  });

/** An arm's line and marker beside its name. */
function sampleOf(name) {
  const line = draw("line", { class: `stroke ${armClass(name)}`, x1: 0, x2: 30, y1: 6, y2: 6 });
  const svg = { class: "sample", width: 30, height: 12, "aria-hidden": "true", focusable: "false" };
  return draw("svg", svg, line, marker(name, 15, 6));
}

/** An arm's name as it can be seen, behind its sample. */
const named = (name) => [sampleOf(name), make("span", { class: "arm-name", dir: "auto" }, visible(name))];

// --- numbers ---

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
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

const minus = (text) => text.replace(/^-(?=.*[1-9])/, "−").replace(/^-/, "");
const brief = (value) => (isNumber(value) ? minus(readable(value)) : "–");
const signedFixed = (value, decimals) => (isNumber(value) && value > 0 ? "+" : "") + fixed(value, decimals);

/** As many decimals as the narrowest of some intervals needs to show two digits of its half. */
function decimalsFor(intervals, values = []) {
  const halves = intervals.filter(Boolean).map(([low, high]) => (high - low) / 2);
  const sizes = halves.some((half) => half > 0)
    ? halves
    : values.filter(isNumber).map((value) => Math.abs(value) / 50);
  const least = Math.min(...sizes.filter((size) => size > 0));
  return Number.isFinite(least) ? Math.min(MOST_DECIMALS, Math.max(0, 1 - Math.floor(Math.log10(least)))) : 3;
}

/** A number in a table, exact in what the element holds, rounded in what is seen. */
function exact(value, words) {
  return isNumber(value)
    ? make("data", { value: String(value) }, words)
    : make("span", { class: "none" }, "–");
}

/** "[0.12, 0.34]", both ends exact underneath; nothing where there is no interval. */
function intervalOf(interval, decimals, write = fixed) {
  if (!interval) return [];
  const [low, high] = interval.map((end) => exact(end, write(end, decimals)));
  return [make("span", { class: "interval" }, "[", low, ", ", high, "]")];
}

const percent = (share) => (isNumber(share) ? `${readable(Number((100 * share).toPrecision(3)))} %` : "–");

/** "1 seed", "3 seeds". */
const counted = (count, what) => `${brief(count)} ${what}${count === 1 ? "" : "s"}`;

/** Any value of a configuration as text. */
function worded(value) {
  if (value === null || value === undefined) return "none";
  if (typeof value === "number") return String(value).replace("e+", "e");
  return typeof value === "string" ? visible(value) : visible(JSON.stringify(value));
}

/** "test/loss" as a person reads it. */
const metricName = (metric) => visible(String(metric ?? "")).replaceAll("_", " ");
const taskName = (task) => (task === "" ? "the task" : visible(String(task)));

/** The last part of a dotted key, or the whole of it where another tuned key ends alike. */
function shortKey(key) {
  const last = String(key).split(".").at(-1);
  const alike = Object.keys(data.tuned ?? {}).filter((other) => other.split(".").at(-1) === last);
  return visible(alike.length > 1 ? String(key) : last).replaceAll("_", " ");
}

// --- elements ---

/** A button that copies a text. */
function copyButton(text, words = "copy") {
  const button = make("button", { class: "small-button copy", type: "button" }, words);
  button.addEventListener("click", async () => {
    const done = await copied(text);
    button.textContent = done ? "copied" : "not allowed here";
    setTimeout(() => (button.textContent = words), 1600);
  });
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

/** A panel of the page: its heading, what stands beside that, and its content. */
function addPanel(id, title, ...content) {
  const heading = make("h2", { id: `${id}-title` }, title);
  const head = make("div", { class: "panel-head" }, heading);
  const panel = make("section", { id, class: "panel", "aria-labelledby": `${id}-title` }, head, ...content);
  byId("panels").append(panel);
  return panel;
}

/** One of a few, chosen by buttons. */
function segments(name, choices, chosen, choose) {
  const group = make("div", { class: "segments small", role: "group", "aria-label": name });
  for (const [value, words] of choices) {
    const button = make("button", { type: "button", "aria-pressed": String(value === chosen) }, words);
    button.addEventListener("click", () => {
      for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
      choose(value);
    });
    group.append(button);
  }
  return group;
}

/** One of many, chosen from a list. */
function chooser(name, choices, chosen, choose) {
  const select = make("select", {}, ...choices.map(([value, words]) => make("option", { value }, words)));
  select.value = chosen;
  select.addEventListener("change", () => choose(select.value));
  return make("label", { class: "chooser" }, `${name} `, select);
}
