// Over training: the metrics as bands over the seeds, and what heads do.

import { createHtml, find, ownValue } from "../../pages/dom.js";
import { redrawFigure } from "../../pages/figure.js";
import { isNumber, showInvisible, withSpaces } from "../../pages/formatting.js";
import { addLineChart } from "../../pages/line_chart.js";
import { linearScale, needsLogScale } from "../../pages/scales.js";
import { bandSeries } from "./arms.js";
import { ablation } from "./page_data.js";
import { addPanel, createChooser } from "./panels_and_tables.js";

// From this ratio on the end of a curve is flattened by its beginning.
const CURVE_LOG_RATIO = 6;
const bandOptions = { metric: "", logarithmic: false };

/**
 * The scale of training steps; that of one evaluation alone begins with training, not beside it.
 * @param {number[]} steps
 * @param {number} count
 */
const stepScale = (steps, count) =>
  linearScale(new Set(steps).size > 1 ? steps : [0, ...steps], count, { tight: true });

export function showTrainingCurves() {
  const metrics = [...new Set(ablation.arms.flatMap(({ bands }) => Object.keys(bands ?? {})))].filter((metric) =>
    ablation.arms.some(({ bands }) => ownValue(bands, metric)?.steps.length),
  );
  if (!metrics.length) return;
  bandOptions.metric = metrics.includes(ablation.selection_metric) ? ablation.selection_metric : metrics[0];
  const place = createHtml("div", {});
  const note =
    "Mean over seeds at the chosen values, with a band from the lowest to the highest seed; diverged runs count as far " +
    "as they went.";
  const panel = addPanel("bands", "Over training", note, place);
  const title = () => withSpaces(bandOptions.metric);
  const figure = addLineChart(place, {
    id: "bands-figure",
    title: title(),
    height: 300,
    look: () => ({
      series: bandSeries(({ bands }) => ownValue(bands, bandOptions.metric)),
      xScale: (steps) => stepScale(steps, 5),
      xName: "step",
      yName: title(),
      logarithmic: bandOptions.logarithmic,
      level: bandOptions.metric === ablation.selection_metric ? ablation.target : null,
      levelName: "target",
    }),
  });
  const renew = () => {
    figure.title = title();
    find(figure.element, "strong").textContent = title();
    redrawFigure(figure);
  };
  const box = createHtml("input", { type: "checkbox", id: "bands-log" });
  /** @param {string} metric */
  const values = (metric) =>
    ablation.arms.flatMap(({ bands }) => ownValue(bands, metric)?.middle ?? []).filter(isNumber);
  const suit = () =>
    (box.checked = bandOptions.logarithmic = needsLogScale(values(bandOptions.metric), CURVE_LOG_RATIO));
  box.addEventListener("change", () => {
    bandOptions.logarithmic = box.checked;
    renew();
  });
  suit();
  const head = find(panel, ".panel-head");
  /** @type {[string, string][]} */
  const choices = metrics.map((metric) => [metric, withSpaces(metric)]);
  /** @param {string} metric */
  const choose = (metric) => {
    bandOptions.metric = metric;
    suit();
    renew();
  };
  if (metrics.length > 1) head.append(createChooser("metric", choices, bandOptions.metric, choose));
  head.append(createHtml("label", { class: "toggle" }, box, " logarithmic"));
}

export function showPerformanceProfiles() {
  // Of one seed all that a profile says is its value.
  if (!ablation.arms.some(({ profile, n }) => profile && n > 1)) return;
  const [metric, sign] = [withSpaces(ablation.reported_metric), ablation.direction === "minimize" ? "≤" : "≥"];
  const note =
    "The share of runs at the chosen values that are at least as good as each value, mean over tasks; diverged runs " +
    "reach none. The band is the pointwise 95% bootstrap interval, from 5 seeds on.";
  const place = createHtml("div", {});
  addPanel("profiles", "Performance profiles", note, place);
  addLineChart(place, {
    id: "profiles-figure",
    title: `Share of runs with ${metric} ${sign} x`,
    height: 260,
    look: () => ({
      series: bandSeries(
        ({ profile: drawn }) => drawn && { ...drawn, low: drawn.low ?? drawn.middle, high: drawn.high ?? drawn.middle },
      ),
      xScale: (values) => linearScale(values, 5, { tight: true }),
      xName: metric,
      yName: "share of runs",
      // From one value of a run to the next nothing changes: of "at least x" the share falls right behind a value.
      stepped: ablation.direction === "minimize" ? "after" : "before",
      logarithmic: false,
    }),
  });
}

const STATISTICS = {
  entropy: "Entropy of the attention weights, in nats",
  sink: "Weight on the first token (sink)",
};

export function showHeadStatistics() {
  const statistics = [...new Set(ablation.arms.flatMap(({ heads }) => Object.keys(heads ?? {})))];
  const pairs = statistics.flatMap((statistic) => {
    const sites = [...new Set(ablation.arms.flatMap(({ heads }) => Object.keys(ownValue(heads, statistic) ?? {})))];
    return sites.map((site) => [statistic, site]);
  });
  if (!pairs.length) return;
  const note =
    "Mean over the layers and heads of a site, then over the seeds at the chosen values, with the least and the " +
    "most seed.";
  const panel = addPanel("heads", "Heads over training", note);
  for (const statistic of statistics) {
    const place = createHtml("div", { class: "trio" });
    panel.append(createHtml("h3", {}, ownValue(STATISTICS, statistic) ?? showInvisible(statistic)), place);
    for (const [number, [, site]] of pairs.filter(([name]) => name === statistic).entries())
      addLineChart(place, {
        id: `heads-${statistics.indexOf(statistic)}-${number}`,
        title: showInvisible(site),
        height: 200,
        look: () => ({
          series: bandSeries(({ heads }) => ownValue(ownValue(heads, statistic), site)),
          xScale: (steps) => stepScale(steps, 3),
          xName: "step",
          yName: showInvisible(statistic),
          logarithmic: false,
        }),
      });
  }
}
