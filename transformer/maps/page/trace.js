// The chosen head's statistic over the steps, in line with the heat map above it.

const HEAD_CURVE = { height: 138, top: 14, bottom: 34 };

/** The chosen head's curve under the columns of the heat map, its changes of level marked. */
function drawHeadCurve(place, state, { table, other, statistic, box }, choose) {
  const site = data.sites[state.site];
  const [low, high] = endsOf(table, statistic);
  const { height, top, bottom } = HEAD_CURVE;
  const ticks = niceTicks(low, high, 3);
  const [least, most] = [Math.min(low, ticks[0]), Math.max(high, ticks.at(-1))];
  const y = (value) => top + (height - top - bottom) * (1 - (value - least) / (most - least));
  const x = (at) => box.x(at) + box.column / 2;
  const values = table.steps.map((_, at) => table.value(statistic, state.layer, state.head, at));
  const now = box.column_of(data.steps[state.step]);
  const width = box.left + box.across + HEATS.right;
  const changes = changesOf(state, table, statistic);
  const name = `head ${headName(site, state.layer, state.head)}`;
  const svg = draw("svg", { width, height, role: "img", "aria-label": `${scaleFacts(statistic).words} of ${name}` });
  for (const value of ticks) {
    svg.append(
      draw("line", { class: "grid", x1: box.left, x2: box.left + box.across, y1: y(value), y2: y(value) }),
      draw("text", { class: "tick", x: box.left - 8, y: y(value) + 3.5, "text-anchor": "end" }, compact(value)),
    );
  }
  svg.append(...stepTicks(table.steps, x, box, height));
  for (const step of changes) {
    const at = x(box.column_of(step)) - box.column / 2;
    svg.append(
      draw("line", { class: "change", x1: at, x2: at, y1: top - 4, y2: height - bottom }),
      draw("path", { class: "change-mark", d: `M${at - 4} ${top - 10}L${at + 4} ${top - 10}L${at} ${top - 3}Z` }),
    );
  }
  svg.append(draw("line", { class: "now", x1: x(now), x2: x(now), y1: top, y2: height - bottom }));
  const match = data.against?.matches.find(
    ([s, l, h]) => s === state.site && l === state.layer && h === state.head,
  );
  if (other && match) svg.append(otherCurve(other, table.steps, statistic, match, x, y));
  svg.append(...headCurve(values, x, y));
  svg.addEventListener("click", (event) => {
    const at = Math.floor((event.clientX - svg.getBoundingClientRect().left - box.left) / box.column);
    if (at >= 0 && at < box.columns) choose({ step: nearestStep(table.steps[at]) });
  });
  place.replaceChildren(svg);
  const said = changes.length ? `; its level changes at step ${changes.map(readable).join(", ")}` : "";
  byId("head-reading").replaceChildren(
    make("b", {}, name),
    `: ${scaleFacts(statistic).words} ${measured(values[now], unitOf(site, statistic))} ` +
      `at step ${readable(table.steps[now])}${said}.`,
    ...(other && match ? [` Dashed: head ${headName(site, match[3], match[4])} of ${data.against.title}.`] : []),
  );
}

/** The steps at which the chosen head's level changes; known of the probe's mean alone. */
function changesOf(state, table, statistic) {
  if (table.source !== "mean") return [];
  const found = data.history.sites[state.site].changes.find(
    ([name, layer, head]) => name === statistic && layer === state.layer && head === state.head,
  );
  return found ? found[3] : [];
}

/** A line with its points, broken where the statistic is not defined. */
function headCurve(values, x, y) {
  let path = "";
  values.forEach((value, at) => {
    if (Number.isNaN(value)) return;
    const joined = at > 0 && !Number.isNaN(values[at - 1]);
    path += `${joined ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
  });
  const known = values.flatMap((value, at) => (Number.isNaN(value) ? [] : [[at, value]]));
  const dots = known.length > MARKED_POINTS ? [] : known;
  return [
    draw("path", { class: "line held", d: path || "M0 0" }),
    ...dots.map(([at, value]) => draw("circle", { class: "dot held", cx: x(at), cy: y(value), r: 2.2 })),
  ];
}

/** The other run's curve of the matched head; its steps fall between the columns of ours. */
function otherCurve(other, steps, statistic, [, , , layer, head], x, y) {
  let path = "";
  other.steps.forEach((step, at) => {
    const value = other.value(statistic, layer, head, at);
    if (Number.isNaN(value) || step < steps[0] || step > steps.at(-1)) return;
    const left = Math.max(0, steps.findLastIndex((each) => each <= step));
    const span = (steps[left + 1] ?? steps[left] + 1) - steps[left];
    const place = x(left) + (x(1) - x(0)) * ((step - steps[left]) / span);
    path += `${path ? "L" : "M"}${place.toFixed(1)} ${y(value).toFixed(1)}`;
  });
  return draw("path", { class: "line other", d: path || "M0 0" });
}

/** The steps under their columns, as many as have room. */
function stepTicks(steps, x, box, height) {
  const every = Math.ceil(44 / box.column);
  const ticks = steps.flatMap((step, at) =>
    at % every && at !== steps.length - 1
      ? []
      : [draw("text", { class: "tick", x: x(at), y: height - 18, "text-anchor": "middle" }, compact(step))],
  );
  // The last step is named in any case, and its neighbour gives way.
  if (steps.length > 1 && (steps.length - 1) % every && (steps.length - 1) % every < every) ticks.splice(-2, 1);
  const name = { class: "axis-name", x: box.left + box.across, y: height - 3, "text-anchor": "end" };
  return [...ticks, draw("text", name, "stored step")];
}
