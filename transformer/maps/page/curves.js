// Curves of the metrics over the steps: one chart a metric, all its splits in it, the maps' step marked.

const CHART = { height: 170, left: 46, right: 14, top: 8, bottom: 30 };
const MARKED_POINTS = 40; // a curve with more points than these is a line alone

/** Draw all charts and return the function that marks a step; `jump(step)` is called where one is clicked. */
function drawCurves(jump) {
  const names = orderedMetrics();
  const family = (name) =>
    names.find((other) => other !== name && /^[_/]/.test(name.slice(other.length)) && name.startsWith(other));
  const main = names.filter((name) => !family(name));
  const parts = names.filter(family);
  const once = main.filter((name) => Object.values(data.curves[name]).every((points) => points.length === 1));
  drawOnce(once);
  const charts = main
    .filter((name) => !once.includes(name))
    .map((name) => drawChart(byId("curves"), name, jump));
  let marked = null;
  const more = byId("more-curves");
  if (parts.length) {
    more.hidden = false;
    more.querySelector("summary").textContent = `${parts.length} more, by group`;
    more.addEventListener("toggle", () => {
      // A closed box has no width to draw into.
      if (!more.open || more.dataset.drawn) return;
      more.dataset.drawn = "yes";
      for (const name of parts) charts.push(drawChart(more.querySelector(".curves"), name, jump));
      for (const mark of charts) mark(marked);
    });
  }
  return (step) => {
    marked = step;
    for (const mark of charts) mark(step);
  };
}

/** What was measured at one step alone is a figure, not a curve. */
function drawOnce(names) {
  const figures = names.flatMap((name) =>
    Object.entries(data.curves[name]).map(([split, [[step, value]]]) =>
      make(
        "div",
        {},
        make("dt", {}, `${name.replaceAll("_", " ")}, ${split}, step ${readable(step)}`),
        make("dd", {}, readable(value)),
      ),
    ),
  );
  byId("once").replaceChildren(...figures);
}

/** The loss first, then what is measured on held-out data, then what is known of training alone. */
function orderedMetrics() {
  const rank = (name) =>
    name === "loss" ? 0 : Object.keys(data.curves[name]).some((split) => split !== "train") ? 1 : 2;
  return Object.keys(data.curves).sort((a, b) => rank(a) - rank(b));
}

function drawChart(place, name, jump) {
  const splits = Object.keys(data.curves[name]).sort((a, b) => (b === "train") - (a === "train"));
  const shift = splits[0] === "train" ? 1 : 0;
  const series = splits.map((split, index) => ({
    split,
    points: data.curves[name][split],
    held: index - shift,
  }));
  const values = series.map(() => make("b"));
  const at = make("span", { class: "at" });
  const legend = series.map((each, index) =>
    make("span", { class: "entry" }, lineSample(each), each.split, values[index]),
  );
  const caption = make(
    "figcaption",
    {},
    make("strong", {}, name.replaceAll("_", " ")),
    at,
    make("span", { class: "entries" }, ...legend),
  );
  const figure = make("figure", { class: "chart" }, caption);
  place.append(figure);

  const width = figure.clientWidth;
  const scales = chartScales(series, width);
  const now = draw("line", { class: "now", y1: CHART.top, y2: CHART.height - CHART.bottom });
  const hair = draw("line", {
    class: "hair",
    y1: CHART.top,
    y2: CHART.height - CHART.bottom,
    visibility: "hidden",
  });
  const description =
    `${name.replaceAll("_", " ")} over steps: ` +
    series.map((s) => `${s.split} ${readable(s.points.at(-1)[1])}`).join(", ");
  const svg = draw("svg", {
    width,
    height: CHART.height,
    viewBox: `0 0 ${width} ${CHART.height}`,
    role: "img",
    "aria-label": description,
  });
  svg.append(...axes(scales, width), now, ...series.flatMap((each) => curve(each, scales)), hair);
  figure.append(svg);

  const read = (step) => {
    at.textContent = step === null ? "" : `step ${readable(step)}`;
    series.forEach(({ points }, index) => {
      values[index].textContent = readable((step === null ? points.at(-1) : nearest(points, step))[1]);
    });
  };
  const stepAt = (event) => Math.round(scales.stepAt(event.clientX - svg.getBoundingClientRect().left));
  svg.addEventListener("pointermove", (event) => {
    const step = nearest(
      series.flatMap((each) => each.points),
      stepAt(event),
    )[0];
    for (const end of ["x1", "x2"]) hair.setAttribute(end, scales.x(step));
    hair.setAttribute("visibility", "visible");
    read(step);
  });
  svg.addEventListener("pointerleave", () => {
    hair.setAttribute("visibility", "hidden");
    read(null);
  });
  svg.addEventListener("click", (event) => jump(stepAt(event)));
  read(null);
  return (step) => {
    for (const end of ["x1", "x2"]) now.setAttribute(end, scales.x(step));
  };
}

/** Splits differ by dash and marker too, so that a chart reads without colour. */
const splitClass = (split, index) => (split === "train" ? "train" : `held held-${index % 3}`);

function lineSample({ split, points, held }) {
  const line = draw("line", { class: `line ${splitClass(split, held)}`, x1: 0, x2: 18, y1: 4, y2: 4 });
  const dot = draw("circle", { class: `dot ${splitClass(split, held)}`, cx: 9, cy: 4, r: 2.2 });
  return draw(
    "svg",
    { class: "sample", width: 18, height: 8, "aria-hidden": "true" },
    points.length > 1 ? line : dot,
  );
}

function chartScales(series, width) {
  const every = Object.values(data.curves).flatMap((splits) =>
    Object.values(splits).map((points) => points.at(-1)[0]),
  );
  const last = Math.max(1, ...every);
  const values = series.flatMap(({ points }) => points.map(([, value]) => value));
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (low >= 0 && low < 0.5 * high) low = 0;
  if (low === high) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  const ticks = niceTicks(low, high, 4);
  [low, high] = [Math.min(low, ticks[0]), Math.max(high, ticks.at(-1))];
  const inner = width - CHART.left - CHART.right;
  const depth = CHART.height - CHART.top - CHART.bottom;
  return {
    ticks,
    last,
    x: (step) => CHART.left + (inner * step) / last,
    y: (value) => CHART.top + depth * (1 - (value - low) / (high - low)),
    stepAt: (x) => Math.min(last, Math.max(0, ((x - CHART.left) / inner) * last)),
  };
}

/** About `count` round values that reach from `low` to `high` or a little beyond. */
function niceTicks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999) * power;
  const first = Math.floor(low / step + 1e-9);
  const last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) =>
    Number(((first + index) * step).toPrecision(12)),
  );
}

function axes(scales, width) {
  const bottom = CHART.height - CHART.bottom;
  const parts = scales.ticks.flatMap((value) => [
    draw("line", {
      class: "grid",
      x1: CHART.left,
      x2: width - CHART.right,
      y1: scales.y(value),
      y2: scales.y(value),
    }),
    draw(
      "text",
      { class: "tick", x: CHART.left - 7, y: scales.y(value) + 3.5, "text-anchor": "end" },
      compact(value),
    ),
  ]);
  for (const step of niceTicks(0, scales.last, 4).filter((each) => each <= scales.last)) {
    const anchor = scales.x(step) > width - 30 ? "end" : "middle";
    parts.push(
      draw(
        "text",
        { class: "tick", x: scales.x(step), y: bottom + 14, "text-anchor": anchor },
        compact(step),
      ),
    );
  }
  parts.push(
    draw(
      "text",
      { class: "axis-name", x: width - CHART.right, y: CHART.height - 3, "text-anchor": "end" },
      "step",
    ),
  );
  return parts;
}

function curve({ split, points, held }, scales) {
  const place = ([step, value]) => `${scales.x(step).toFixed(1)} ${scales.y(value).toFixed(1)}`;
  const parts = [
    draw("path", { class: `line ${splitClass(split, held)}`, d: `M${points.map(place).join("L")}` }),
  ];
  if (points.length === 1 || (split !== "train" && points.length <= MARKED_POINTS)) {
    for (const [step, value] of points) {
      parts.push(
        draw("circle", {
          class: `dot ${splitClass(split, held)}`,
          cx: scales.x(step),
          cy: scales.y(value),
          r: 2.2,
        }),
      );
    }
  }
  return parts;
}

function nearest(points, step) {
  return points.reduce((best, point) =>
    Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best,
  );
}

function compact(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e3) return `${Number((value / 1e3).toPrecision(3))}k`;
  if (size !== 0 && size < 1e-3) return value.toExponential(0).replace("e+", "e");
  return String(Number(value.toPrecision(3)));
}
