// How the maps of the page are unpacked.
//
// A Plane { values: Float32Array, row by row; queries, keys: cells a side; queryBlock, keyBlock: positions a cell }
// has .at(query, key) in CELLS; where a block is larger than one position, a cell is the largest weight of its block.
// loadMaps(step, site, example, level, run = "maps") has all heads of a level: { plane(layer, head) -> Plane };
// loadHeadMap(step, site, example, level, layer, head, run = "maps") has one head, from its layer's block alone.
// step and site are indices of data.steps and data.sites, level is an entry of data.sites[site].levels, coarse to fine:
//   { name, queries, keys, queryBlock, keyBlock, triangular, split, steps: the indices of data.steps that carry it }
// finestLevel(site, step) and coarsestLevel(site) choose one. A page written with `compare_to` has
//   data.otherRun = { title, steps, codes, sites: [{ levels, ... }], matches: [[site, layer, head, its layer, its
//   head, similarity], ...] }, without one it is null; its maps are read with run = "other" and a step of
//   data.otherRun.steps.

import { byId } from "../../../pages/dom.js";
import { data } from "./page_data.js";
import { siteTokens } from "./tokens.js";

/** @import { Grid, Level, Site } from "./types.js" */

/** One head on one example at one level. */
export class HeadMap {
  /**
   * @param {Float32Array} values
   * @param {Grid} options
   */
  constructor(values, { queries, keys, queryBlock, keyBlock }) {
    this.values = values;
    this.queries = queries;
    this.keys = keys;
    this.queryBlock = queryBlock;
    this.keyBlock = keyBlock;
  }

  /**
   * @param {number} query
   * @param {number} key
   */
  at(query, key) {
    return this.values[query * this.keys + key];
  }

  get pooled() {
    return this.queryBlock * this.keyBlock > 1;
  }

  /**
   * The plane cut to an example's own positions.
   * @param {number} queries
   * @param {number} keys
   */
  cut(queries, keys) {
    const size = {
      queries: Math.min(this.queries, Math.ceil(queries / this.queryBlock)),
      keys: Math.min(this.keys, Math.ceil(keys / this.keyBlock)),
      queryBlock: this.queryBlock,
      keyBlock: this.keyBlock,
    };
    if (size.queries === this.queries && size.keys === this.keys) return this;
    const values = new Float32Array(size.queries * size.keys);
    for (let query = 0; query < size.queries; query++) {
      const first = query * this.keys;
      values.set(this.values.subarray(first, first + size.keys), query * size.keys);
    }
    return new HeadMap(values, size);
  }
}

/** A whole level on one example: weight = scale (code / largest code)^root, scale and root of each row. */
export class LevelMaps {
  /**
   * @param {Site} site
   * @param {number} example
   * @param {Level} level
   * @param {PackedRows[]} parts
   */
  constructor(site, example, level, parts) {
    this.site = site;
    this.example = example;
    this.level = level;
    this.parts = parts;
    /** @type {Map<number, HeadMap>} */
    this.planes = new Map();
    /** @type {HeadMap[] | null} Attention rollout, once it is asked for. */
    this.rollout = null;
  }

  /**
   * @param {number} layer
   * @param {number} head
   */
  plane(layer, head) {
    const place = layer * this.site.heads.length + head;
    let plane = this.planes.get(place);
    if (plane) return plane;
    const rows = this.parts[this.level.split ? layer : 0];
    const { queries, keys, triangular } = this.level;
    const first = (this.level.split ? head : place) * queries;
    const { queries: asked, keys: known } = siteTokens(this.site, this.example);
    plane = new HeadMap(rows.read(first, queries, keys, triangular), this.level).cut(asked.length, known.length);
    this.planes.set(place, plane);
    return plane;
  }
}

/** Rows of codes as one block holds them: four planes of the scales' bytes, a plane of roots, then the codes. */
class PackedRows {
  /**
   * @param {Uint8Array} bytes
   * @param {number} rows
   * @param {number} largest
   */
  constructor(bytes, rows, largest) {
    const scales = new DataView(new ArrayBuffer(4 * rows));
    for (let byte = 0; byte < 4; byte++) {
      for (let row = 0; row < rows; row++) scales.setUint8(4 * row + byte, bytes[byte * rows + row]);
    }
    // The page holds little-endian numbers, whatever the machine's own order is.
    this.scales = Float32Array.from({ length: rows }, (_, row) => scales.getFloat32(4 * row, true));
    this.roots = bytes.subarray(4 * rows, 5 * rows);
    this.codes = bytes.subarray(5 * rows);
    this.largest = largest;
    /** @type {Float32Array[]} */
    this.powers = [];
  }

  /**
   * The weights of `rows` rows from `first` on; a triangular map holds of row q its first q + 1 codes alone.
   * @param {number} first
   * @param {number} rows
   * @param {number} keys
   * @param {boolean} [triangular]
   */
  read(first, rows, keys, triangular = false) {
    const values = new Float32Array(rows * keys);
    const inTriangle = (keys * (keys + 1)) / 2;
    let code = triangular ? (first / keys) * inTriangle : first * keys;
    for (let row = 0; row < rows; row++) {
      const root = this.roots[first + row];
      const powers = (this.powers[root] ??= decodedPowers(root, this.largest));
      const scale = this.scales[first + row];
      const end = row * keys + (triangular ? row + 1 : keys);
      for (let at = row * keys; at < end; at++) values[at] = scale * powers[this.codes[code++]];
    }
    return values;
  }
}

/** @type {Map<number, Float32Array>} */
const powers = new Map();

/**
 * (code / largest)^root of every code.
 * @param {number} root
 * @param {number} largest
 */
function decodedPowers(root, largest) {
  const name = 256 * root + largest;
  let known = powers.get(name);
  if (!known) {
    known = Float32Array.from({ length: 256 }, (_, code) => (code / largest) ** root);
    powers.set(name, known);
  }
  return known;
}

/** @type {Map<string, Promise<Uint8Array>>} */
const cachedBlocks = new Map();
const MAX_CACHED_BLOCKS = 96;

/**
 * The bytes of a block of the page, unpacked once and kept for a while.
 * @param {string} name
 */
export function unpackBlock(name) {
  let bytes = cachedBlocks.get(name);
  // Asked for last, thrown away last.
  cachedBlocks.delete(name);
  bytes ??= blockText(name).then(gunzipBase64);
  cachedBlocks.set(name, bytes);
  if (cachedBlocks.size > MAX_CACHED_BLOCKS) cachedBlocks.delete([...cachedBlocks.keys()][0]);
  return bytes;
}

/**
 * The text of a block: the page is drawn while its later blocks are still being read.
 * @param {string} name
 */
export async function blockText(name) {
  const parsed = () => document.readyState !== "loading" || byId(name)?.nextSibling;
  while (!parsed()) await new Promise((resolve) => setTimeout(resolve, 15));
  return byId(name).textContent ?? "";
}

/** @param {string} base64 */
async function gunzipBase64(base64) {
  const stream = new Blob([decodeBase64(base64)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/**
 * @param {string} text
 * @returns {Uint8Array<ArrayBuffer>}
 */
function decodeBase64(text) {
  // Newer browsers have a faster way, which TypeScript does not know yet.
  const native = /** @type {any} */ (Uint8Array).fromBase64;
  if (native) return native.call(Uint8Array, text);
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = characters.charCodeAt(at);
  return bytes;
}

/** @type {Map<string, Promise<LevelMaps>>} */
const cachedMaps = new Map();
const MAX_CACHED_MAPS = 8;

/**
 * A promise of all heads of one example at one level.
 * @param {number} step
 * @param {number} site
 * @param {number} example
 * @param {Level} level
 * @param {string} [run]
 */
export function loadMaps(step, site, example, level, run = "maps") {
  const name = `${run}-${step}-${site}-${example}-${level.name}`;
  let maps = cachedMaps.get(name);
  cachedMaps.delete(name);
  maps ??= Promise.all(blockReaders(name, site, level, run).map((part) => part())).then(
    (parts) => new LevelMaps(data.sites[site], example, level, parts),
  );
  cachedMaps.set(name, maps);
  // Planes of long sites are large: few are kept.
  if (cachedMaps.size > MAX_CACHED_MAPS) cachedMaps.delete([...cachedMaps.keys()][0]);
  return maps;
}

/**
 * A promise of one head: where a level is split, of its layer alone.
 * @param {number} step
 * @param {number} site
 * @param {number} example
 * @param {Level} level
 * @param {number} layer
 * @param {number} head
 * @param {string} [run]
 */
export async function loadHeadMap(step, site, example, level, layer, head, run = "maps") {
  if (!level.split) return (await loadMaps(step, site, example, level, run)).plane(layer, head);
  const name = `${run}-${step}-${site}-${example}-${level.name}`;
  /** @type {PackedRows[]} */
  const parts = [];
  parts[layer] = await blockReaders(name, site, level, run)[layer]();
  return new LevelMaps(data.sites[site], example, level, parts).plane(layer, head);
}

/**
 * A function for each block of a level, which reads its rows.
 * @param {string} name
 * @param {number} site
 * @param {Level} level
 * @param {string} run
 */
function blockReaders(name, site, level, run) {
  const { layers, heads } = data.sites[site];
  const rows = (level.split ? 1 : layers.length) * heads.length * level.queries;
  const { codes } = run === "maps" || !data.otherRun ? data : data.otherRun;
  const names = level.split ? layers.map((_, layer) => `${name}-${layer}`) : [name];
  return names.map((each) => async () => new PackedRows(await unpackBlock(each), rows, codes));
}

/**
 * The level of the head grid, which every step carries.
 * @param {Site} site
 */
export const coarsestLevel = (site) => site.levels[0];

/**
 * The finest level that the page carries at an index of data.steps.
 * @param {Site} site
 * @param {number} step
 */
export const finestLevel = (site, step) =>
  site.levels.findLast((level) => level.steps.includes(step)) ?? coarsestLevel(site);

/**
 * Whole rows of long sites: their query positions, and the weights of (layer, head, index of a position).
 * @param {number} step
 * @param {number} site
 * @param {number} example
 */
export async function loadFullRows(step, site, example) {
  const { rows, layers, heads } = data.sites[site];
  if (!rows?.steps.includes(step)) return null;
  const count = rows.positions.length;
  const packed = new PackedRows(
    await unpackBlock(`rows-${step}-${site}-${example}`),
    layers.length * heads.length * count,
    data.codes,
  );
  return {
    positions: rows.positions,
    /** @type {(layer: number, head: number, index: number) => Float32Array} */
    row: (layer, head, index) => packed.read((layer * heads.length + head) * count + index, 1, rows.keys),
  };
}

/**
 * The largest weights of the rows of one layer: (head, query) => [[key, weight], ...], largest first; null for a
 * row that the page does not carry.
 * @param {number} step
 * @param {number} site
 * @param {number} example
 * @param {number} layer
 * @returns {Promise<((head: number, query: number) => [number, number][] | null) | null>}
 */
export async function loadTopWeights(step, site, example, layer) {
  const { top, heads } = data.sites[site];
  if (!top?.steps.includes(step)) return null;
  const bytes = await unpackBlock(`top-${step}-${site}-${example}-${layer}`);
  const count = heads.length * top.queries;
  const [high, low] = [bytes.subarray(0, count * top.k), bytes.subarray(count * top.k, 2 * count * top.k)];
  const packed = new PackedRows(bytes.subarray(2 * count * top.k), count, data.codes);
  return (head, query) => {
    if (query % top.every) return null;
    const row = head * top.queries + query / top.every;
    const weights = packed.read(row, 1, top.k);
    return Array.from(weights, (weight, at) => [256 * high[row * top.k + at] + low[row * top.k + at], weight]);
  };
}
