// The colors of the theme, and one hue from nothing to everything: luminance alone carries a value, so it reads
// without color vision.

export const darkScheme = matchMedia("(prefers-color-scheme: dark)");
export let colorRamps = { more: rampColors("ramp"), less: rampColors("less") };

/**
 * Call `act` whenever the color scheme has changed, behind the ramp.
 * @param {() => void} act
 */
export function onColorSchemeChange(act) {
  darkScheme.addEventListener("change", () => {
    colorRamps = { more: rampColors("ramp"), less: rampColors("less") };
    act();
  });
}

/**
 * A color of the theme, "#rrggbb", in the scheme that holds now; its variable is light-dark(#..., #...).
 * @param {string} name
 */
export function themeColor(name) {
  const value = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
  return value.match(/#[0-9a-f]{6}/g)?.at(darkScheme.matches ? -1 : 0) ?? "#000000";
}

/**
 * A value as [red, green, blue]; its root runs evenly along the ramp, so that faint ones show. A negative value takes
 * a second ramp of the same luminance: its sign is marked by shape too wherever there is room.
 * @param {number} value
 */
export const colorForValue = (value) => (value < 0 ? colorRamps.less : colorRamps.more)[colorIndex(value)];

/** @param {number} value */
export const colorIndex = (value) => Math.round(255 * Math.sqrt(Math.min(1, Math.abs(value))));

/**
 * As `colorForValue`, for a style.
 * @param {number} value
 */
export const cssColor = (value) => `rgb(${colorForValue(value).join(" ")})`;

/**
 * The 256 colors between the five stops of a ramp of the theme.
 * @param {string} name
 */
export function rampColors(name) {
  const stops = [0, 1, 2, 3, 4].map((stop) => hexToOklab(themeColor(`${name}-${stop}`)));
  return Array.from({ length: 256 }, (_, index) => {
    const place = (index / 255) * (stops.length - 1);
    const left = Math.min(stops.length - 2, Math.floor(place));
    return oklabToRgb(stops[left].map((value, axis) => value + (stops[left + 1][axis] - value) * (place - left)));
  });
}

// OKLab (Ottosson 2020): even steps in it are even steps to the eye.
/** @param {string} hex */
function hexToOklab(hex) {
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

/** @param {number[]} options */
export function oklabToRgb([lightness, a, b]) {
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
