// The chosen head's statistic over the steps, in line with the heat map above it.

import { byId, draw, make } from "../../../pages/dom.js";
import { compact, readable } from "../../../pages/formatting.js";
import { lineOf } from "../../../pages/line_chart.js";
import { frameOf, linearScale, PLOT } from "../../../pages/scales.js";
import { HEATS } from "./head_history.js";
import { endsOf, headName, measured, scaleFacts } from "./head_statistics.js";
import { data } from "./page_data.js";
import { nearestStep } from "./view_state.js";

const MARKED_POINTS = 40; // a curve of more points than these is a line alone
const HEAD_CURVE = { height: 140, top: 14 };

/** The chosen head's curve under the columns of the heat map, its changes of level marked. */
export function drawHeadCurve(place, state, { table, other, statistic, box }, choose) {
  const site = data.sites[state.site];
  const { height, top } = HEAD_CURVE;
  const plot = { left: box.left, right: box.left + box.across, top, bottom: height - PLOT.bottom };
  const ticks = table.steps.map((step, at) => [at, compact(step)]);
  const columns = { ticks, share: (at) => (at + 0.5) / box.columns };
  const frame = frameOf(plot, columns, linearScale(endsOf(table, statistic), 3), ["stored step"]);
  const values = table.steps.map((_, at) => table.value(statistic, state.layer, state.head, at));
  const now = box.column_of(data.steps[state.step]);
  const changes = changesOf(state, table, statistic);
  const name = `head ${headName(site, state.layer, state.head)}`;
  const words = `${scaleFacts(statistic).words} of ${name}`;
  const svg = draw("svg", { width: plot.right + HEATS.right, height, role: "img", "aria-label": words });
  const upright = (kind, x) => draw("line", { class: kind, x1: x, x2: x, y1: top, y2: plot.bottom });
  svg.append(...frame.parts);
  for (const step of changes) {
    const at = frame.atX(box.column_of(step) - 0.5);
    const d = `M${at - 4} ${top - 10}L${at + 4} ${top - 10}L${at} ${top - 3}Z`;
    svg.append(upright("change", at), draw("path", { class: "change-mark", d }));
  }
  svg.append(upright("now", frame.atX(now)));
  const match = data.against?.matches.find(([s, l, h]) => s === state.site && l === state.layer && h === state.head);
  if (other && match) svg.append(...lineOf(otherCurve(other, table.steps, statistic, match), frame));
  const points = values.map((middle, x) => ({ x, middle }));
  svg.append(...lineOf({ look: { ink: "held", shape: points.length > MARKED_POINTS ? null : 0 }, points }, frame));
  svg.addEventListener("click", (event) => {
    const at = Math.floor((event.clientX - svg.getBoundingClientRect().left - box.left) / box.column);
    if (at >= 0 && at < box.columns) choose({ step: nearestStep(table.steps[at]) });
  });
  place.replaceChildren(svg);
  const said = changes.length ? `; a lasting change at step ${changes.map(readable).join(", ")}` : "";
  byId("head-reading").replaceChildren(
    make("b", {}, name),
    `: ${scaleFacts(statistic).words} ${measured(values[now], scaleFacts(statistic).unit)} ` +
      `at step ${readable(table.steps[now])}${said}.`,
    ...(other && match ? [` Dashed: head ${headName(site, match[3], match[4])} of ${data.against.title}.`] : []),
  );
}

/** The steps at which the chosen head's level changes; known of the probe's mean alone. */
function changesOf(state, table, statistic) {
  if (table.source !== "mean") return [];
  const known = data.history.sites[state.site].changes.find(
    ([name, layer, head]) => name === statistic && layer === state.layer && head === state.head,
  );
  return known ? known[3] : [];
}

/** The other run's curve of the matched head; its steps fall between the columns of ours. */
function otherCurve(other, steps, statistic, [, , , layer, head]) {
  const points = other.steps.flatMap((step, at) => {
    const middle = other.value(statistic, layer, head, at);
    if (Number.isNaN(middle) || step < steps[0] || step > steps.at(-1)) return [];
    const left = Math.max(
      0,
      steps.findLastIndex((each) => each <= step),
    );
    const span = (steps[left + 1] ?? steps[left] + 1) - steps[left];
    return [{ x: left + (step - steps[left]) / span, middle }];
  });
  return { look: { ink: "other", shape: null }, points };
}
