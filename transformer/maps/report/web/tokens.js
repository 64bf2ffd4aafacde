// Tokens as a person reads them, and those of a site.

import { createHtml } from "../../../pages/dom.js";
import { showInvisible, truncate } from "../../../pages/formatting.js";
import { data } from "./page_data.js";

/** @import { Child } from "../../../pages/types.js" */
/** @import { HeadMap } from "./map_data.js" */
/** @import { Site } from "./types.js" */

/**
 * A text as nodes, the mark of a word's beginning apart: it should not be louder than the word.
 * @param {string} text
 * @param {(start: string) => Child} wrap
 */
export function splitWordStart(text, wrap) {
  return /^▁./su.test(text) ? [wrap(text[0]), text.slice(1)] : [text];
}

/**
 * A token as nodes of running text.
 * @param {string} token
 * @param {number} length
 */
export const tokenNodes = (token, length) =>
  splitWordStart(truncate(showInvisible(token), length), (start) => createHtml("span", { class: "word-start" }, start));

/**
 * The text that tokens were cut from, as near as their own marks tell.
 * @param {string[]} tokens
 */
export function detokenize(tokens) {
  const words = tokens.filter((token) => !/^(<.*>|\[[A-Z]+\])$/s.test(token));
  const marked = words.some((token) => /^▁/.test(token));
  // A character that several tokens share stands where its first part does.
  const whole = words.map((token) =>
    token.replace(/(.)⟨(\d+)\/\d+⟩/gsu, (_, each, part) => (part === "1" ? each : "")),
  );
  const single = whole.every((token) => Array.from(token).length < 2);
  return (marked ? whole.join("").replace(/▁/g, " ") : whole.join(single ? "" : " ")).trim();
}

/**
 * Names of the query and the key positions of one example at one site.
 * @param {Site} site
 * @param {number} example
 */
export function siteTokens(site, example) {
  return { queries: data.tokens[site.query][example], keys: data.tokens[site.key][example] };
}

/**
 * The share of its weight that a head puts on gold alignments, over queries that have one; null where it is not known.
 * @param {Site} site
 * @param {number} example
 * @param {HeadMap} plane
 */
export function goldAlignmentWeight(site, example, plane) {
  const goldAlignments = site.goldAlignments?.[example];
  if (!goldAlignments?.length || plane.pooled) return null;
  const queries = new Set(goldAlignments.map(([query]) => query));
  return goldAlignments.reduce((sum, [query, key]) => sum + plane.at(query, key), 0) / queries.size;
}
