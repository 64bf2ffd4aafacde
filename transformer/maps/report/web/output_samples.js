// What the model said: its images, and one row a sample, beside its source and its reference.

import { byId, createHtml, renderSegments } from "../../../pages/dom.js";
import { formatNumber } from "../../../pages/formatting.js";
import { data } from "./page_data.js";

// The fields of a sample that have a column, and what it is called; others stand together as its kind.
/** @type {Record<string, string>} */
const SAMPLE_COLUMNS = { source: "source", prompt: "prompt", target: "reference", output: "output" };

/**
 * Show the samples of `split` that were taken last at or before `step`; only what has a reference is right or wrong.
 * @param {string} split
 * @param {number} step
 */
export function drawSamples(split, step) {
  const taken = data.samples.filter((group) => group.split === split).sort((a, b) => a.step - b.step);
  const group = taken.findLast((each) => each.step <= step) ?? taken[0];
  byId("samples-title").textContent = `Samples at step ${formatNumber(group.step)}`;
  const compared = group.rows.filter((row) => "target" in row);
  const right = compared.filter((row) => row.output === row.target).length;
  const shown = group.rows.length < group.total ? `the first ${group.rows.length} of ${group.total}` : `${group.total}`;
  const judged = `, ${right} exactly as the reference; words that differ from it are underlined`;
  byId("samples-note").textContent = `${shown} samples${compared.length ? judged : ""}.`;
  /** @param {string} src */
  const image = (src) => createHtml("img", { src, alt: `images made at step ${formatNumber(group.step)}` });
  byId("sample-images").replaceChildren(...group.images.map(image));
  const fields = Object.keys(SAMPLE_COLUMNS).filter((field) => group.rows.some((row) => field in row));
  /** @param {Record<string, string>} row */
  const kindOf = (row) =>
    Object.keys(row)
      .filter((field) => !(field in SAMPLE_COLUMNS))
      .map((field) => row[field])
      .join(" ");
  const head = createHtml(
    "tr",
    {},
    createHtml("th", { "aria-label": "exact" }),
    createHtml("th", { "aria-label": "kind" }),
  );
  head.append(...fields.map((field) => createHtml("th", {}, SAMPLE_COLUMNS[field])));
  const rows = group.rows.map((row) => {
    const same = "target" in row && row.output === row.target;
    const [sign, words] = same ? ["✓", "exact"] : "target" in row ? ["≠", "different"] : ["", "no reference"];
    const cells = fields.map((field) => {
      const cell = createHtml("td", { dir: "auto", "data-label": SAMPLE_COLUMNS[field] }, row[field] ?? "");
      if (field === "output" && "target" in row && !same)
        cell.replaceChildren(...markDifferences(row.output ?? "", row.target));
      return cell;
    });
    const mark = createHtml("td", { class: "mark", "aria-label": words, "data-label": words }, sign);
    const kind = createHtml("td", { class: "kind", "data-label": "kind" }, kindOf(row));
    return createHtml("tr", { class: same ? "same" : null }, mark, kind, ...cells);
  });
  byId("samples").replaceChildren(createHtml("thead", {}, head), createHtml("tbody", {}, ...rows));
}

/**
 * The words of `text`, those that are no part of its longest common subsequence with `reference` marked.
 * @param {string} text
 * @param {string} reference
 */
function markDifferences(text, reference) {
  const a = text.split(" ").slice(0, 400);
  const b = reference.split(" ").slice(0, 400);
  const length = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      length[i][j] = a[i] === b[j] ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
    }
  }
  const nodes = [];
  for (let i = 0, j = 0; i < a.length; i++) {
    while (j < b.length && a[i] !== b[j] && length[i][j + 1] >= length[i + 1][j]) j++;
    const common = j < b.length && a[i] === b[j];
    if (common) j++;
    nodes.push(common ? a[i] : createHtml("mark", {}, a[i]), " ");
  }
  return nodes;
}

/**
 * The splits that have samples, as buttons; `choose(split)` is called when one is picked.
 * @param {string | undefined} chosen
 * @param {(split: string) => void} choose
 */
export function drawSampleSplits(chosen, choose) {
  const splits = [...new Set(data.samples.map((group) => group.split))];
  renderSegments(
    byId("sample-splits"),
    splits.length > 1 ? splits.map((split) => /** @type {[string, string]} */ ([split, split])) : [],
    chosen,
    choose,
  );
}
