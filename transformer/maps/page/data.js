// What the page was made from, and how its maps are unpacked. The files of this folder are joined into one
// module in the order that report.py gives; each uses what the ones before it define.

const data = JSON.parse(document.getElementById("data").textContent);

/** The element with this id. */
const byId = (id) => document.getElementById(id);

/** A new HTML element; strings among its children become text, never markup. */
function make(tag, attributes = {}, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

/** A new SVG element, as `make`. */
function draw(tag, attributes = {}, ...children) {
  return furnish(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function furnish(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** A number as a person reads it: few digits, thousands apart, powers of ten where it is far from one. */
function readable(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e7 || size < 1e-3)) return value.toExponential(2).replace("e+", "e");
  const digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4;
  return value.toLocaleString("en", { maximumFractionDigits: Number.isInteger(value) ? 0 : digits });
}

/** A token as it can be seen: control characters as their pictures, emptiness and spaces by a sign. */
function visible(token) {
  if (token === "") return "∅";
  if (/^ +$/.test(token)) return "␣".repeat(token.length);
  return token
    .replace(/[\u0000-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/\u007f/g, "␡");
}

/** The first `length` characters (not code units) of a text, with an ellipsis where there were more. */
function shorten(text, length) {
  const characters = Array.from(text.slice(0, 4 * length + 4));
  return characters.length > length ? characters.slice(0, length - 1).join("") + "…" : text;
}

/** A text as nodes, the mark of a word's beginning apart: it should not be louder than the word. */
function quieted(text, wrap) {
  return /^[▁Ġ]./su.test(text) ? [wrap(text[0]), text.slice(1)] : [text];
}

/** A token as nodes of running text. */
const written = (token, length) =>
  quieted(shorten(visible(token), length), (start) => make("span", { class: "word-start" }, start));

/** The text that tokens were cut from, as near as their own marks tell. */
function sentence(tokens) {
  const words = tokens.filter((token) => !/^<.*>$/s.test(token));
  const marked = words.some((token) => /^[▁Ġ]/.test(token));
  return (marked ? words.join("").replace(/[▁Ġ]/g, " ") : words.join(" ")).trim();
}

/** The maps of one site at one step: weight = scale (code / 255)^2. */
class Maps {
  constructor(site, bytes) {
    this.site = site;
    const rows = site.shape.slice(0, 4).reduce((a, b) => a * b, 1);
    // The page holds little-endian numbers, whatever the machine's own order is.
    const view = new DataView(bytes.buffer, bytes.byteOffset);
    this.scale = Float32Array.from({ length: rows }, (_, row) => view.getFloat32(4 * row, true));
    this.codes = bytes.subarray(4 * rows);
  }

  /** One head on one example: the weight of (query, key). */
  head(example, layer, head) {
    const [, layers, heads, queries, keys] = this.site.shape;
    const first = ((example * layers + layer) * heads + head) * queries;
    return (query, key) => {
      const code = this.codes[(first + query) * keys + key] / 255;
      return this.scale[first + query] * code * code;
    };
  }
}

const unpacked = new Map();
const UNPACKED_AT_ONCE = 48;

/** A promise of the maps at an index of data.steps and of data.sites. */
function mapsAt(step, site) {
  const name = `maps-${step}-${site}`;
  let maps = unpacked.get(name);
  // Asked for last, thrown away last.
  unpacked.delete(name);
  maps ??= unpack(byId(name).textContent).then((bytes) => new Maps(data.sites[site], bytes));
  unpacked.set(name, maps);
  if (unpacked.size > UNPACKED_AT_ONCE) unpacked.delete(unpacked.keys().next().value);
  return maps;
}

async function unpack(base64) {
  const packed = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Names of the query and the key positions of one example at one site. */
function tokensOf(site, example) {
  return { queries: data.tokens[site.query][example], keys: data.tokens[site.key][example] };
}

/** The share of its weight that a head puts on gold links, over queries that have one; null without links. */
function linkedShare(site, example, weight) {
  const links = site.links?.[example];
  if (!links?.length) return null;
  const queries = new Set(links.map(([query]) => query));
  return links.reduce((sum, [query, key]) => sum + weight(query, key), 0) / queries.size;
}
