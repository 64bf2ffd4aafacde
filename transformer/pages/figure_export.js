// What is seen, as files: a drawing as SVG and PNG that need no page, numbers as CSV.

import { themeColor } from "./color_scale.js";
import { context2d, createHtml, createSvg, exportDefaults, setAttributes } from "./dom.js";
import { showInvisible, truncate } from "./formatting.js";
import { labelWidth, legendKeyParts, svgText, xmlText } from "./markers_and_legends.js";

/** @import { CellValue, SeriesStyle } from "./types.js" */

// What a drawing takes from the style of the page, so that it looks alike alone.
const INLINED_STYLES = [
  ...["fill", "fill-opacity", "opacity", "paint-order"],
  ...["stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linejoin"],
  ...["font-size", "font-weight", "font-style", "text-anchor"],
];
const MARGIN = 16;
const MAX_PNG_SIDE = 8000; // pixels of a PNG

/**
 * Hand a file to the person, named by the page and by these parts.
 * @param {Blob} blob
 * @param {string[]} parts
 * @param {string} kind
 */
export function downloadBlob(blob, parts, kind) {
  const words = [exportDefaults.name, ...parts].filter(Boolean).map((part) => showInvisible(part));
  const name = words.map((part) => part.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40)).join("_");
  const link = createHtml("a", { download: `${name}.${kind}` });
  link.href = URL.createObjectURL(blob);
  link.click();
  // The browser reads the file a moment later.
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/**
 * @param {SVGElement} drawing
 * @param {string[]} parts
 * @param {string} kind
 */
export async function downloadDrawing(drawing, parts, kind) {
  const text = new XMLSerializer().serializeToString(drawing);
  if (kind === "svg") return downloadBlob(new Blob([text, "\n"], { type: "image/svg+xml" }), parts, "svg");
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const sides = ["width", "height"].map((side) => Number(drawing.getAttribute(side)));
  const scale = Math.min(2, MAX_PNG_SIDE / Math.max(...sides));
  const [width, height] = sides.map((side) => Math.round(scale * side));
  const canvas = createHtml("canvas", { width, height });
  context2d(canvas).drawImage(image, 0, 0, width, height);
  canvas.toBlob((blob) => blob && downloadBlob(blob, parts, "png"), "image/png");
}

/**
 * A drawing as one that needs no page: { drawing, body }, the body being the group of what `svg` and `parts` draw.
 * Above it stand a title, words in small print, and the series of `legend`: [[look, name], ...].
 * @param {Element} svg
 * @param {{ title: string, words: string, legend?: [SeriesStyle, string][], parts?: Node[], least?: number, below?: number }} options
 */
export function standaloneSvg(svg, { title, words, legend = [], parts = [], least = 0, below = 0 }) {
  const width = Math.max(least, Number(svg.getAttribute("width"))) + 2 * MARGIN;
  const room = Math.floor((width - 2 * MARGIN) / 6);
  /** @type {SVGElement[]} */
  const heads = [
    svgText(truncate(title, room), MARGIN, MARGIN + 12, { class: "drawing-title" }),
    svgText(truncate(words, room), MARGIN, MARGIN + 30, { class: "drawing-words" }),
  ];
  let [x, y] = [MARGIN, MARGIN + (legend.length ? 48 : 36)];
  for (const [look, name] of legend) {
    const shown = truncate(showInvisible(name), 30);
    const wide = 36 + labelWidth(shown) + 22;
    if (x > MARGIN && x + wide > width - MARGIN) [x, y] = [MARGIN, y + 17];
    const sample = createSvg("g", { transform: `translate(${x} ${y - 10})` }, ...legendKeyParts(look));
    heads.push(sample, svgText(shown, x + 36, y, { class: "drawing-entry" }));
    x += wide;
  }
  y += 12;
  const copies = [...svg.children].map((child) => child.cloneNode(true));
  const body = createSvg("g", { transform: `translate(${MARGIN} ${y})` }, ...copies, ...parts);
  const height = Math.ceil(y + Number(svg.getAttribute("height")) + below + MARGIN);
  const font = getComputedStyle(document.body).fontFamily;
  const size = { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": font };
  const ground = createSvg("rect", { width, height, fill: themeColor("panel") });
  const drawing = createSvg("svg", size, createSvg("title", {}, xmlText(title)), ground, ...heads, body);
  // It takes its style from the page while it stands in it.
  const place = createHtml("div", { class: "offscreen" }, drawing);
  document.body.append(place);
  inlineStyles(drawing);
  place.remove();
  return { drawing, body };
}

/**
 * Write the style that the page gives the parts of a drawing into each of them; what is hidden goes.
 * @param {Element} drawing
 */
function inlineStyles(drawing) {
  for (const child of [...drawing.children]) {
    const style = getComputedStyle(child);
    if (style.display === "none" || style.visibility === "hidden" || child.matches(".pointer, desc")) {
      child.remove();
      continue;
    }
    // A text of several parts becomes one.
    if (child.tagName === "text") child.textContent = xmlText(child.textContent);
    inlineStyles(child);
    const values = ["g", "title"].includes(child.tagName)
      ? []
      : INLINED_STYLES.map((name) => [name, style.getPropertyValue(name)]);
    setAttributes(child, Object.fromEntries(values.filter(([, value]) => value && value !== "normal")), []);
    child.removeAttribute("class");
    child.removeAttribute("style");
  }
}

/**
 * @param {CellValue[][]} rows
 * @param {string[]} parts
 */
export function downloadCsv(rows, parts) {
  const text = rows.map((row) => `${row.map(csvCell).join(",")}\r\n`);
  downloadBlob(new Blob(["\ufeff", ...text], { type: "text/csv" }), parts, "csv");
}

/**
 * A value as one cell of a table: numbers whole, text such that no spreadsheet takes it for a formula.
 * @param {CellValue} value
 */
function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const safe = /^[\s\u0000]*[=+\-@\t\r\n|%＝＋－＠]/.test(text) ? `'${text}` : text;
  return `"${safe.toWellFormed().replaceAll("\u0000", "␀").replaceAll('"', '""')}"`;
}
