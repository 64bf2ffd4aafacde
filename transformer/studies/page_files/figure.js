// Figures: one SVG each, drawn anew whenever the arms, a choice, the width or the colour scheme changes. What can be
// read off a figure are its stops: places with words, reached with the pointer or with the arrow keys.

const figures = [];
let keyed = null; // the figure that the arrow keys read
const PLOT = { right: 14, top: 12, bottom: 36 };

/**
 * Add a figure to a place. `paint(width)` returns
 *   { height, parts, description, stops: [{ x, y, words() }], along: true where a stop is a whole column }
 * or null, where nothing of it is to be seen now.
 */
function addFigure(place, { id, title, note = "", paint }) {
  const name = make("strong", { id: `${id}-name` }, title);
  const saving = ["svg", "png"].map((kind) => {
    const label = `Save ${title} as ${kind.toUpperCase()}`;
    return make(
      "button",
      { class: "small-button", type: "button", "data-save": kind, "aria-label": label },
      kind.toUpperCase(),
    );
  });
  const exports = make("span", { class: "exports" }, ...saving);
  const about = make("span", { class: "at" }, note);
  const svg = draw("svg", {
    role: "img",
    tabindex: 0,
    "aria-labelledby": `${id}-name`,
    "aria-describedby": `${id}-description`,
  });
  const caption = make("figcaption", {}, make("span", { class: "figure-head" }, name, exports), about);
  const element = make("figure", { id, class: "chart study-figure" }, caption, svg);
  place.append(element);
  const figure = { id, title, note, element, svg, paint, stops: [], along: false, at: null };
  figures.push(figure);
  saving.forEach((button) => button.addEventListener("click", () => saveFigure(figure, button.dataset.save)));
  listen(figure);
  return figure;
}

function redraw(figure, width = figure.element.clientWidth) {
  if (!width) return;
  const painted = figure.paint(width);
  figure.element.classList.toggle("empty", !painted);
  if (!painted) return;
  const { height, parts, description, stops = [], along = false } = painted;
  const pointer = draw("g", { class: "pointer" });
  const size = { width, height, viewBox: `0 0 ${width} ${height}` };
  for (const [name, value] of Object.entries(size)) figure.svg.setAttribute(name, value);
  figure.svg.replaceChildren(
    draw("desc", { id: `${figure.id}-description` }, description),
    ...parts,
    pointer,
  );
  Object.assign(figure, { stops, along, pointer, height, at: null });
}

/** All widths are read before anything is drawn: in turns the page would be laid out once a figure. */
function redrawAll() {
  const widths = figures.map(({ element }) => element.clientWidth);
  figures.forEach((figure, index) => redraw(figure, widths[index]));
}

function listen(figure) {
  const { svg } = figure;
  const leave = () => {
    keyed = null;
    point(figure, null);
  };
  svg.addEventListener("pointermove", (event) => {
    keyed = null;
    const box = svg.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const distance = (stop) => (figure.along ? Math.abs(stop.x - x) : Math.hypot(stop.x - x, stop.y - y));
    let best = null;
    for (const stop of figure.stops) if (!best || distance(stop) < distance(best)) best = stop;
    const reach = figure.along ? Infinity : (best?.reach ?? 18);
    point(figure, best && distance(best) <= reach ? figure.stops.indexOf(best) : null, event);
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") leave();
    if (!by || !figure.stops.length) return;
    event.preventDefault();
    const last = figure.stops.length - 1;
    const from = figure.at ?? (by > 0 ? -1 : last + 1);
    keyed = figure;
    point(figure, Math.min(last, Math.max(0, from + by)));
  });
}

/** Mark a stop and say what is there; null marks none. */
function point(figure, at, event = null) {
  figure.at = at;
  if (!figure.pointer) return;
  if (at === null) {
    figure.pointer.replaceChildren();
    byId("tip").hidden = true;
    return;
  }
  const stop = figure.stops[at];
  const { x, y } = stop;
  figure.pointer.replaceChildren(
    figure.along
      ? draw("line", {
          class: "hair",
          x1: x,
          x2: x,
          y1: stop.from ?? PLOT.top,
          y2: stop.to ?? figure.height - PLOT.bottom,
        })
      : draw("circle", { class: "ring", cx: x, cy: y, r: 8 }),
  );
  const box = figure.svg.getBoundingClientRect();
  showWords(
    event?.clientX ?? box.left + x,
    event?.clientY ?? box.top + (figure.along ? 60 : y),
    stop.words(),
  );
}

/** What the keys read goes with its figure; what the pointer read is no longer under it. */
function followScroll() {
  if (keyed) point(keyed, keyed.at);
  else byId("tip").hidden = true;
}

function showWords(x, y, words) {
  const tip = byId("tip");
  tip.replaceChildren(...words);
  tip.hidden = false;
  // Against the far edge the tip stands on the other side of the pointer; it never leaves the window.
  const over = x + 16 + tip.offsetWidth > innerWidth;
  const left = Math.max(4, over ? x - tip.offsetWidth - 12 : x + 16);
  tip.style.transform = `translate(${left}px, ${Math.max(4, y - tip.offsetHeight - 16)}px)`;
}

/** A row of a tip: an arm's sample and name, then what it has there. */
function tipRow(name, value, more = "") {
  return make(
    "div",
    { class: "tip-row" },
    sampleOf(name),
    make("span", { class: "arm-name" }, shorten(visible(name), 28)),
    make("b", {}, value),
    make("i", {}, more),
  );
}

const tipHead = (words) => make("div", { class: "tip-head" }, words);

// --- scales and axes ---

/** Text in a figure, as it can be seen and as any XML can hold it. */
const seenText = (words) =>
  visible(String(words))
    .toWellFormed()
    .replace(/[\ufffe\uffff]/g, "\ufffd");
const label = (words, x, y, attributes = {}) =>
  draw("text", { x: x.toFixed(1), y: y.toFixed(1), ...attributes }, seenText(words));

/** About how wide a label of the axes is. */
const widthOf = (words) => 6.4 * Array.from(String(words)).length;

/** Room on the left for the labels of a vertical axis and its name. */
const roomFor = (ticks) => Math.ceil(Math.max(18, ...ticks.map(([, words]) => widthOf(words)))) + 26;

/** A linear scale with round ticks; `extra` values are inside it, too. */
function linearScale(values, count = 4, { zero = false } = {}) {
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (zero || (low >= 0 && low < 0.35 * high)) low = Math.min(0, low);
  if (low === high) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 20, high + Math.abs(high) / 20];
  const ticks = niceTicks(low, high, count);
  const [first, last] = [Math.min(low, ticks[0]), Math.max(high, ticks.at(-1))];
  return {
    ticks: ticks.map((value) => [value, minus(compact(value))]),
    share: (value) => (value - first) / (last - first),
  };
}

/** A logarithmic scale over positive values: ticks at 1, 2, 5 where it is short, at powers of ten where it is long. */
function logScale(values) {
  const positive = values.filter((value) => value > 0);
  let [low, high] = [Math.log10(Math.min(...positive)), Math.log10(Math.max(...positive))];
  if (high - low < 0.3) [low, high] = [low - 0.15, high + 0.15];
  const finest = high - low > 0.9 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7];
  const factors = high - low > 3 ? [1] : high - low > 1.4 ? [1, 3] : finest;
  const all = [];
  for (let power = Math.floor(low) - 1; power <= Math.ceil(high); power++)
    for (const factor of factors) all.push(Math.log10(factor) + power);
  const inside = all.filter((tick) => tick >= low - 0.02 && tick <= high + 0.02);
  const every = Math.ceil(inside.length / 7);
  const ticks = inside.filter((_, at) => at % every === 0);
  [low, high] = [low - 0.02 * (high - low), high + 0.02 * (high - low)];
  return {
    ticks: ticks.map((tick) => [10 ** tick, compact(Number((10 ** tick).toPrecision(3)))]),
    share: (value) => (Math.log10(Math.max(value, 10 ** low)) - low) / (high - low),
  };
}

/** Places side by side for values that are no numbers, or that stand for themselves. */
function placesScale(values) {
  const share = (value) => (values.findIndex((other) => sameValue(other, value)) + 0.5) / values.length;
  return { ticks: values.map((value) => [value, shorten(worded(value), 14)]), share };
}

const sameValue = (a, b) => a === b || JSON.stringify(a) === JSON.stringify(b);

/** Whether values that were tried lie evenly by their logarithms rather than by themselves. */
function logSpaced(values) {
  if (values.length < 2 || !values.every((value) => isNumber(value) && value > 0)) return false;
  const sorted = [...values].sort((a, b) => a - b);
  if (sorted.length === 2) return sorted[1] / sorted[0] >= 2;
  const uneven = (places) => {
    const gaps = places.slice(1).map((place, at) => place - places[at]);
    const mean = gaps.reduce((sum, gap) => sum + gap, 0) / gaps.length;
    return Math.max(...gaps.map((gap) => Math.abs(gap - mean))) / mean;
  };
  return uneven(sorted.map(Math.log)) < uneven(sorted);
}

/** The scale of one tuned key: its very values are the ticks. */
function tunedScale(values) {
  if (!values.every(isNumber)) return placesScale(values);
  const scale = logSpaced(values) ? logScale(values) : linearScale(values);
  return { ...scale, ticks: values.map((value) => [value, tunedWords(value)]) };
}

const tunedWords = (value) =>
  isNumber(value) && value !== 0 && Math.abs(value) < 0.01
    ? value.toExponential().replace("e+", "e")
    : worded(value);

/** Grid, labels and names of two axes around a box { left, right, top, bottom }, and where values lie in it. */
function frameOf(box, x, y, names) {
  const [across, up] = [box.right - box.left, box.bottom - box.top];
  const atX = (value) => box.left + across * x.share(value);
  const atY = (value) => box.bottom - up * y.share(value);
  const parts = [];
  for (const [value, words] of y.ticks) {
    const place = atY(value);
    if (place < box.top - 1 || place > box.bottom + 1) continue;
    parts.push(draw("line", { class: "grid", x1: box.left, x2: box.right, y1: place, y2: place }));
    parts.push(label(words, box.left - 7, place + 3.5, { class: "tick", "text-anchor": "end" }));
  }
  let free = -Infinity;
  for (const [value, words] of [...x.ticks].sort((a, b) => x.share(a[0]) - x.share(b[0]))) {
    const [place, half] = [atX(value), widthOf(words) / 2];
    if (place - half < free || place < box.left - 1 || place > box.right + 1) continue;
    free = place + half + 5;
    parts.push(draw("line", { class: "grid", x1: place, x2: place, y1: box.bottom, y2: box.bottom + 4 }));
    const outside = place + half > box.right + PLOT.right;
    const anchor = outside
      ? { x: box.right + PLOT.right, "text-anchor": "end" }
      : { "text-anchor": "middle" };
    parts.push(label(words, place, box.bottom + 16, { class: "tick", ...anchor }));
  }
  parts.push(label(names[0], box.right, box.bottom + 31, { class: "axis-name", "text-anchor": "end" }));
  if (names[1]) {
    const [x, y] = [12, (box.top + box.bottom) / 2];
    const place = { class: "axis-name", "text-anchor": "middle", transform: `rotate(-90 ${x} ${y})` };
    parts.push(label(names[1], x, y, place));
  }
  return { parts, atX, atY };
}
