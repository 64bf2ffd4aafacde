// One hue from nothing to everything: luminance alone carries the weight, so it reads without colour vision.

const dark = matchMedia("(prefers-color-scheme: dark)");
let ramp = buildRamp();

/**
 * A weight as [red, green, blue]; sqrt(weight) runs evenly along the ramp, so that faint ones show. A negative
 * difference takes a second ramp of the same luminance: its sign is marked by shape too wherever there is room.
 */
function colourOf(value) {
  return (value < 0 ? ramp.less : ramp.more)[indexOf(value)];
}

function indexOf(value) {
  return Math.round(255 * Math.sqrt(Math.min(1, Math.abs(value))));
}

/** As `colourOf`, for a style. */
function css(value) {
  return `rgb(${colourOf(value).join(" ")})`;
}

/** Take the ramp of the colour scheme that holds now. */
function renewRamp() {
  ramp = buildRamp();
}

function buildRamp() {
  const [more, less] = [colours("ramp"), colours("less")];
  const byBits = new Uint32Array(1 << 16);
  const value = new Float32Array(1);
  const bits = new Uint32Array(value.buffer);
  const [above, below] = [pixelsOf(more), pixelsOf(less)];
  for (let upper = 0; upper < byBits.length; upper++) {
    bits[0] = (upper << 16) | 0x8000;
    byBits[upper] = Number.isNaN(value[0]) ? 0 : (value[0] < 0 ? below : above)[indexOf(value[0])];
  }
  return { more, less, byBits, sound: pixelsOf(colours("sound")) };
}

/** Colours as a canvas holds its pixels, whatever the machine's byte order. */
function pixelsOf(colours) {
  return new Uint32Array(Uint8Array.from(colours.flatMap((colour) => [...colour, 255])).buffer);
}

function colours(name) {
  const style = getComputedStyle(document.documentElement);
  const stops = [0, 1, 2, 3, 4].map((stop) => toLab(style.getPropertyValue(`--${name}-${stop}`).trim()));
  return Array.from({ length: 256 }, (_, index) => {
    const place = (index / 255) * (stops.length - 1);
    const left = Math.min(stops.length - 2, Math.floor(place));
    return fromLab(
      stops[left].map((value, axis) => value + (stops[left + 1][axis] - value) * (place - left)),
    );
  });
}

/** Fill a canvas with one pixel for each cell of a plane; what a causal mask hides stays empty. */
function paintPlane(canvas, plane, causal) {
  const { queries, keys, values, queryBlock, keyBlock } = plane;
  if (canvas.width !== keys || canvas.height !== queries || !canvas.image) {
    Object.assign(canvas, { width: Math.max(1, keys), height: Math.max(1, queries) });
    canvas.context = canvas.getContext("2d");
    canvas.image = canvas.context.createImageData(canvas.width, canvas.height);
  }
  const pixels = new Uint32Array(canvas.image.data.buffer);
  // A colour by the upper half of a number's bits (sign, exponent, seven bits of the fraction): this runs for every
  // cell of every head, and a root a cell would take several times as long.
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  const { byBits } = ramp;
  if (causal) pixels.fill(0);
  for (let query = 0; query < queries; query++) {
    const seen = causal ? Math.min(keys, Math.floor(((query + 1) * queryBlock - 1) / keyBlock) + 1) : keys;
    const row = query * keys;
    for (let at = row; at < row + seen; at++) pixels[at] = byBits[bits[at] >>> 16];
  }
  canvas.context.putImageData(canvas.image, 0, 0);
  return canvas;
}

/** Whether a causal mask hides a whole cell of a plane. */
const hides = (plane, causal, query, key) =>
  causal && key * plane.keyBlock > (query + 1) * plane.queryBlock - 1;

// OKLab (Ottosson 2020): even steps in it are even steps to the eye.
function toLab(hex) {
  const [r, g, b] = [1, 3, 5].map((at) => {
    const value = parseInt(hex.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

function fromLab([lightness, a, b]) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((value) => {
    const bounded = Math.min(1, Math.max(0, value));
    return Math.round(255 * (bounded <= 0.0031308 ? 12.92 * bounded : 1.055 * bounded ** (1 / 2.4) - 0.055));
  });
}

/** The bar that says which colour is which weight, or which difference. */
function drawLegend(place, signed = false) {
  const width = 132;
  const valueAt = (share) => (signed ? Math.sign(share - 0.5) * (2 * share - 1) ** 2 : share ** 2);
  const canvas = make("canvas", { width, height: 1, class: "ramp" });
  const context = canvas.getContext("2d");
  for (let x = 0; x < width; x++) {
    context.fillStyle = css(valueAt(x / (width - 1)));
    context.fillRect(x, 0, 1, 1);
  }
  const marks = make("div", { class: "ramp-marks" });
  for (const value of signed ? [-1, -0.1, 0, 0.1, 1] : [0, 0.1, 0.5, 1]) {
    const share = Math.sign(value) * Math.sqrt(Math.abs(value));
    const mark = make("span", {}, String(value).replace("-", "−"));
    mark.style.left = `${100 * (signed ? (share + 1) / 2 : share)}%`;
    marks.append(mark);
  }
  const name = signed ? "difference; hollow: less" : "weight";
  place.replaceChildren(make("span", { class: "ramp-name" }, name), make("div", {}, canvas, marks));
}
