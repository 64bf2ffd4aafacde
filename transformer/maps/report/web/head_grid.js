// The head grid: every head of one site on one example, a row of thumbnails a layer.

import { createHtml, find, focusChild, focusedChild, pressOne } from "../../../pages/dom.js";
import { paintPlane } from "./canvas_pixels.js";
import { describeRole, roleBadge, roleOf } from "./head_roles.js";
import { data } from "./page_data.js";
import { goldAlignmentWeight } from "./tokens.js";

/** @import { HeadMap } from "./map_data.js" */
/** @import { GridCell, HeadView, ViewState } from "./types.js" */

// Pixels of the screen: a thumbnail is at most so wide and as high as all layers' share of the depth, within these.
const THUMBNAIL = { width: 300, depth: 640, lowest: 180, highest: 320 };
/** @type {{ name: string, cells: GridCell[] } | null} */
let headGrid = null;

/**
 * Draw the head grid into `place`; `choose(layer, head)` is called when a thumbnail is picked.
 *
 * Its elements are made anew only where the site or the sizes change: a step repaints them.
 * @param {HTMLElement} place
 * @param {HeadView} shown
 * @param {ViewState} state
 * @param {(layer: number, head: number) => void} choose
 */
export function drawHeadGrid(place, shown, state, choose) {
  const { site } = shown;
  const name = [state.site, state.example, place.clientWidth].join(" ");
  if (headGrid?.name !== name) headGrid = { name, cells: buildHeadGrid(place, state.site, shown.gridMap(0, 0), choose) };
  const goldAlignments = site.goldAlignments?.[state.example];
  for (const { layer, head, button, canvas, bar, role } of headGrid.cells) {
    const plane = shown.gridMap(layer, head);
    paintPlane(canvas, plane, site.causal);
    const share = goldAlignments && !shown.signed ? goldAlignmentWeight(site, state.example, plane) : null;
    const label =
      `layer ${site.layers[layer]}, head ${site.heads[head]}: ${role}` +
      (share === null ? "" : `, ${formatPercent(share)} on gold alignments`);
    if (button.title !== label) {
      button.title = label;
      button.setAttribute("aria-label", label);
    }
    if (bar.hidden !== (share === null)) bar.hidden = share === null;
    if (share !== null) find(bar, "span").style.width = formatPercent(Math.min(1, share));
  }
  const chosen = headGrid.cells.findIndex(({ layer, head }) => layer === state.layer && head === state.head);
  pressOne(
    headGrid.cells.map(({ button }) => button),
    chosen,
  );
}

/**
 * @param {HTMLElement} place
 * @param {number} at
 * @param {HeadMap} plane
 * @param {(layer: number, head: number) => void} choose
 */
function buildHeadGrid(place, at, plane, choose) {
  const site = data.sites[at];
  place.style.setProperty("--heads", String(site.heads.length));
  const room = (place.clientWidth - 34) / site.heads.length - (site.heads.length > 12 ? 4 : 8);
  const depth = Math.min(THUMBNAIL.highest, Math.max(THUMBNAIL.lowest, THUMBNAIL.depth / site.layers.length));
  const [width, height] = thumbnailSize([Math.min(room, THUMBNAIL.width), depth], plane.queries, plane.keys);
  place.classList.toggle("dense", width < 60);
  const children = [createHtml("span")];
  const short = width < 46;
  for (const head of site.heads)
    children.push(
      createHtml(
        "span",
        { class: "column-name", title: numberedName("head", head) },
        short ? head : numberedName("head", head),
      ),
    );
  /** @type {GridCell[]} */
  const cells = [];
  site.layers.forEach((name, layer) => {
    const small = height < 46;
    children.push(
      createHtml("span", { class: `row-name${small ? " upright" : ""}` }, small ? name : numberedName("layer", name)),
    );
    site.heads.forEach((_, head) => {
      const canvas = createHtml("canvas");
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      // Where cells are smaller than pixels they are averaged: none is dropped.
      const fine = Math.min(width / plane.keys, height / plane.queries) * devicePixelRatio < 1;
      if (fine) canvas.style.imageRendering = "auto";
      const bar = createHtml("span", { class: "share" }, createHtml("span"));
      const entry = roleOf(at, layer, head);
      const badge = createHtml("span", { class: entry.role ? "badge" : "badge none" }, roleBadge(entry));
      const button = createHtml("button", { type: "button", class: "thumbnail" }, canvas, bar, badge);
      button.addEventListener("click", () => choose(layer, head));
      children.push(button);
      cells.push({ layer, head, button, canvas, bar, role: describeRole(entry) });
    });
  });
  // A redraw during keyboard use must not lose the focus.
  const focused = focusedChild(place);
  place.replaceChildren(...children);
  focusChild(place, focused);
  return cells;
}

/**
 * Whole pixels of the screen a cell where there is room: no row looks thicker than another.
 * @param {[number, number]} room
 * @param {number} queries
 * @param {number} keys
 */
function thumbnailSize([room, depth], queries, keys) {
  const cell = Math.min(room / Math.max(keys, 1), depth / Math.max(queries, 1));
  const whole = cell >= 2 ? Math.floor(cell) : cell;
  // Few positions beside many are drawn out, as in the large head.
  /** @param {number} count */
  const least = (count) => (count <= 12 ? Math.min(40, 6 * count, room) : 0);
  return [Math.max(8, least(keys), whole * keys), Math.max(8, least(queries), whole * queries)];
}

/**
 * "head 3" for a number, the name itself where it is one.
 * @param {string} what
 * @param {string} name
 */
export function numberedName(what, name) {
  return /^\d+$/.test(name) ? `${what} ${name}` : name;
}

/** @param {number} share */
export const formatPercent = (share) => `${Math.round(100 * share)}%`;
