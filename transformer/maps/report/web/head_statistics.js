// Statistics of heads over steps as the page holds them: their values, names and scales.

import { formatNumber, truncate } from "../../../pages/formatting.js";
import { unpackBlock } from "./map_data.js";
import { data } from "./page_data.js";

/** @import { LoadedTable, Site, StatisticsTable } from "./types.js" */

/**
 * A promise of one table: its facts, and `value(statistic, layer, head, column)`, NaN where it is not defined.
 * @param {number} site
 * @param {string} name
 * @returns {Promise<LoadedTable>}
 */
export async function loadStatisticsTable(site, name) {
  const facts = /** @type {StatisticsTable} */ (data.history.sites[site].tables.find((table) => table.source === name));
  const bytes = await unpackBlock(`history-${site}-${name}`);
  const [layers, heads] = [data.sites[site].layers.length, data.sites[site].heads.length];
  const low = bytes.length / 2;
  return {
    ...facts,
    value(statistic, layer, head, column) {
      const row = facts.names.indexOf(statistic);
      if (row < 0) return NaN;
      const at = ((row * layers + layer) * heads + head) * facts.steps.length + column;
      const code = 256 * bytes[at] + bytes[low + at];
      const [least, most] = facts.ranges[row];
      return code > data.history.codes ? NaN : least + ((most - least) * code) / data.history.codes;
    },
  };
}

/**
 * What a statistic is called, its unit, and the ends of its scale where it has some of its own.
 * @param {string} name
 */
export const statisticScale = (name) => data.history.scales[name];

/**
 * The ends of the scale on which a table's statistic is drawn: its own, else the least and the most of the table.
 * @param {StatisticsTable} table
 * @param {string} statistic
 * @returns {[number, number]}
 */
export function scaleRange(table, statistic) {
  const [least, most] = table.ranges[table.names.indexOf(statistic)];
  const { low, high } = statisticScale(statistic);
  /** @type {[number, number]} */
  const ends = [low ?? least, high ?? most];
  return ends[0] < ends[1] ? ends : [ends[0], ends[0] + 1];
}

/**
 * "1.3" for layer 1 and head 3, both names where they are longer.
 * @param {Site} site
 * @param {number} layer
 * @param {number} head
 */
export function headName(site, layer, head) {
  return truncate(`${site.layers[layer]}.${site.heads[head]}`, 24);
}

/**
 * The column of the stored step that is nearest.
 * @param {number[]} steps
 * @param {number} step
 */
export function nearestColumn(steps, step) {
  let best = 0;
  steps.forEach((each, at) => {
    if (Math.abs(each - step) < Math.abs(steps[best] - step)) best = at;
  });
  return best;
}

/**
 * A value in words with its unit.
 * @param {number} value
 * @param {string} unit
 */
export const formatMeasurement = (value, unit) =>
  Number.isNaN(value) ? "not defined" : `${formatNumber(value)}${unit && ` ${unit}`}`;
