// Over training: the metrics as bands over the seeds, and what heads do.

import { make, own } from "../../pages/dom.js";
import { redraw } from "../../pages/figure.js";
import { isNumber, spaced, visible } from "../../pages/formatting.js";
import { addLines } from "../../pages/line_chart.js";
import { linearScale, worthLog } from "../../pages/scales.js";
import { bandSeries } from "./arms.js";
import { data } from "./page_data.js";
import { addPanel, chooser } from "./panels_and_tables.js";

// From this ratio on the end of a curve is flattened by its beginning.
const CURVE_LOG_WORTH = 6;
const banding = { metric: null, logarithmic: false };

export function showBands() {
  const metrics = [...new Set(data.arms.flatMap(({ bands }) => Object.keys(bands ?? {})))].filter((metric) =>
    data.arms.some(({ bands }) => own(bands, metric)?.steps.length),
  );
  if (!metrics.length) return;
  banding.metric = metrics.includes(data.chosen_by) ? data.chosen_by : metrics[0];
  const place = make("div", {});
  const note =
    "Mean over the seeds at the chosen values, from the least seed to the most; runs that diverged are in it as far " +
    "as they went.";
  const panel = addPanel("bands", "Over training", note, place);
  const title = () => spaced(banding.metric);
  const figure = addLines(place, {
    id: "bands-figure",
    title: title(),
    height: 300,
    look: () => ({
      series: bandSeries(({ bands }) => own(bands, banding.metric)),
      xScale: (steps) => linearScale(steps, 5, { tight: true }),
      xName: "step",
      yName: title(),
      logarithmic: banding.logarithmic,
      level: banding.metric === data.chosen_by ? data.target : null,
      levelName: "target",
    }),
  });
  const renew = () => {
    figure.title = title();
    figure.element.querySelector("strong").textContent = title();
    redraw(figure);
  };
  const box = make("input", { type: "checkbox", id: "bands-log" });
  const values = (metric) => data.arms.flatMap(({ bands }) => own(bands, metric)?.middle ?? []).filter(isNumber);
  const suit = () => (box.checked = banding.logarithmic = worthLog(values(banding.metric), CURVE_LOG_WORTH));
  box.addEventListener("change", () => {
    banding.logarithmic = box.checked;
    renew();
  });
  suit();
  const head = panel.querySelector(".panel-head");
  const choices = metrics.map((metric) => [metric, spaced(metric)]);
  const choose = (metric) => {
    banding.metric = metric;
    suit();
    renew();
  };
  if (metrics.length > 1) head.append(chooser("metric", choices, banding.metric, choose));
  head.append(make("label", { class: "toggle" }, box, " logarithmic"));
}

const STATISTICS = {
  entropy: "Entropy of the attention weights, in nats",
  sink: "Weight on the first token (sink)",
};

export function showHeads() {
  const statistics = [...new Set(data.arms.flatMap(({ heads }) => Object.keys(heads ?? {})))];
  const pairs = statistics.flatMap((statistic) => {
    const sites = [...new Set(data.arms.flatMap(({ heads }) => Object.keys(own(heads, statistic) ?? {})))];
    return sites.map((site) => [statistic, site]);
  });
  if (!pairs.length) return;
  const note =
    "Mean over the layers and heads of a site, then over the seeds at the chosen values, with the least and the " +
    "most seed.";
  const panel = addPanel("heads", "Heads over training", note);
  for (const statistic of statistics) {
    const place = make("div", { class: "trio" });
    panel.append(make("h3", {}, own(STATISTICS, statistic) ?? visible(statistic)), place);
    for (const [number, [, site]] of pairs.filter(([name]) => name === statistic).entries())
      addLines(place, {
        id: `heads-${statistics.indexOf(statistic)}-${number}`,
        title: visible(site),
        height: 200,
        look: () => ({
          series: bandSeries(({ heads }) => own(own(heads, statistic), site)),
          xScale: (steps) => linearScale(steps, 3, { tight: true }),
          xName: "step",
          yName: visible(statistic),
          logarithmic: false,
        }),
      });
  }
}
