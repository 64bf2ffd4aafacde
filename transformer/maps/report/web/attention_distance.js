// How far each head looks on an image: its distance against its layer, as in figure 7 of Dosovitskiy et al. (2021).

import { createHtml, createSvg } from "../../../pages/dom.js";
import { addFigure, redrawFigure } from "../../../pages/figure.js";
import { pluralize } from "../../../pages/formatting.js";
import { marker, tooltipTitle } from "../../../pages/markers_and_legends.js";
import { drawAxes, linearScale, PLOT_MARGIN, verticalAxisWidth } from "../../../pages/scales.js";
import { formatMeasurement, headName, loadStatisticsTable, nearestColumn, scaleRange } from "./head_statistics.js";
import { data } from "./page_data.js";

/** @import { Figure } from "../../../pages/types.js" */
/** @import { Choose, HeadDistance, LoadedTable, ViewState } from "./types.js" */

const DISTANCE_STATISTIC = "distance_in_pixels";
/** @type {{ figure: Figure, table: LoadedTable, site: number, step: number, chosen: number[] }} What is drawn; nothing before the first plot. */
let distancePlot = /** @type {any} */ (null); // what is drawn: the figure, the table of its site, the column of the step, and the chosen head

/**
 * Draw the distances of the site that `state` names into `place`; `choose({ layer, head })` where a dot is picked.
 * @param {HTMLElement} place
 * @param {ViewState} state
 * @param {Choose} choose
 */
export async function drawAttentionDistance(place, state, choose) {
  const known = data.history.sites[state.site].tables.some(
    ({ source, names }) => source === "mean" && names.includes(DISTANCE_STATISTIC),
  );
  place.hidden = !known;
  if (!known) return;
  const now = { site: state.site, step: state.step, chosen: [state.layer, state.head] };
  const table = await loadStatisticsTable(now.site, "mean");
  // While this was unpacked, another site may have been asked for.
  if (now.site !== state.site) return;
  const figure =
    distancePlot?.figure ??
    addFigure(place, {
      id: "distance-by-layer",
      title: "How far each head looks",
      note:
        "A dot is a head: the mean, over patches and images, of the distance from a patch to the patches that it reads, " +
        "by weight; the class token is left out. Dotted: uniform attention over all patches.",
      table: () => [["layer", "head", "pixels"], ...headDistances().map(({ name, pixels }) => [...name, pixels])],
      act: ([layer, head]) => choose({ layer, head }),
      paint: paintDistancePlot,
    });
  distancePlot = { figure, table, ...now };
  redrawFigure(figure);
}

/**
 * Every head with its distance at the step that is shown.
 * @returns {HeadDistance[]}
 */
function headDistances() {
  const site = data.sites[distancePlot.site];
  const column = nearestColumn(distancePlot.table.steps, data.steps[distancePlot.step]);
  return site.layers.flatMap((layer, l) =>
    site.heads.map((head, h) => ({
      at: [l, h],
      name: [layer, head],
      pixels: distancePlot.table.value(DISTANCE_STATISTIC, l, h, column),
    })),
  );
}

/** @param {number} width */
function paintDistancePlot(width) {
  const site = data.sites[distancePlot.site];
  const known = headDistances().filter(({ pixels }) => !Number.isNaN(pixels));
  const uniform = data.roles.distances[distancePlot.site]?.uniform ?? 0;
  // One scale for all steps: a dot that moves has moved.
  const y = linearScale([0, uniform, scaleRange(distancePlot.table, DISTANCE_STATISTIC)[1]], 4);
  const every = Math.ceil(site.layers.length / 12);
  const ticks = site.layers.flatMap((name, at) =>
    at % every === 0 ? [/** @type {[number, string]} */ ([at, name])] : [],
  );
  const x = { ticks, share: (/** @type {number} */ at) => (at + 0.5) / site.layers.length };
  const height = 190;
  const box = {
    left: verticalAxisWidth(y.ticks),
    right: width - PLOT_MARGIN.right,
    top: PLOT_MARGIN.top,
    bottom: height - PLOT_MARGIN.bottom,
  };
  const frame = drawAxes(box, x, y, ["layer", "pixels"]);
  /** @param {HeadDistance} head */
  const is = ({ at }) => String(at) === String(distancePlot.chosen);
  // The chosen one lies on top.
  const ordered = [...known.filter((each) => !is(each)), ...known.filter(is)];
  /**
   * @param {HeadDistance} head
   * @returns {[number, number]}
   */
  const place = ({ at: [layer], pixels }) => [frame.atX(layer), frame.atY(pixels)];
  const dots = ordered.map((each) =>
    marker({ ink: is(each) ? "held" : "other", shape: 0 }, ...place(each), is(each) ? 4.6 : 3.6),
  );
  const level = createSvg("line", {
    class: "level",
    x1: box.left,
    x2: box.right,
    y1: frame.atY(uniform),
    y2: frame.atY(uniform),
  });
  const stops = known.map((each) => {
    const [left, top] = place(each);
    const words = () => [
      tooltipTitle(`head ${headName(site, ...each.at)}`),
      createHtml("b", {}, formatMeasurement(each.pixels, "pixels")),
    ];
    return { x: left, y: top, value: each.at, words };
  });
  const description = `Distance in pixels of ${pluralize(known.length, "head")}, by layer.`;
  return { height, parts: [...frame.parts, level, ...dots], description, stops };
}
