// Numbers, names and values as a person reads them.

/**
 * Whether a value is a finite number.
 * @param {unknown} value
 * @returns {value is number}
 */
export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

// Made once: a page of curves writes thousands of numbers.
const numberFormats = [0, 1, 2, 3, 4].map((digits) => new Intl.NumberFormat("en", { maximumFractionDigits: digits }));

/**
 * A number as a person reads it: few digits, thousands apart, powers of ten where it is far from one.
 * @param {number} value
 */
export function formatNumber(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e7 || size < 1e-3)) return value.toExponential(2).replace("e+", "e");
  const digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4;
  return numberFormats[Number.isInteger(value) ? 0 : digits].format(value);
}

/** @type {[number, string][]} */
const PREFIXES = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]; // prettier-ignore

/**
 * A number on an axis, in a few significant digits.
 * @param {number} value
 * @param {number} [digits]
 */
export function formatCompact(value, digits = 3) {
  const rounded = Number(value.toPrecision(digits));
  const size = Math.abs(rounded);
  // From 1e21 on no prefix keeps it short.
  for (const [power, prefix] of size < 1e21 ? PREFIXES : [])
    if (size >= power) return `${Number((rounded / power).toPrecision(digits))}${prefix}`;
  if (size !== 0 && (size < 1e-3 || size >= 1e21)) return value.toExponential(digits - 3).replace("e+", "e");
  return String(rounded);
}

/**
 * A number's text with a minus that is as wide as a plus, and none before a zero.
 * @param {string} text
 */
export const withMinusSign = (text) => text.replace(/^-(?=.*[1-9])/, "−").replace(/^-/, "");

/** @param {unknown} value */
export const formatOrDash = (value) => (isNumber(value) ? withMinusSign(formatNumber(value)) : "–");

/**
 * "1 seed", "3 seeds".
 * @param {number} count
 * @param {string} what
 */
export const pluralize = (count, what) => `${formatOrDash(count)} ${what}${count === 1 ? "" : "s"}`;

/**
 * A text as it can be seen: control characters as their pictures, emptiness and spaces by a sign.
 * @param {string} text
 */
export function showInvisible(text) {
  if (text === "") return "∅";
  if (/^ +$/.test(text)) return "␣".repeat(text.length);
  return text.replace(/[\u0000-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0))).replace(/\u007f/g, "␡");
}

/**
 * A name of the code in running text.
 * @param {unknown} name
 */
export const withSpaces = (name) => showInvisible(String(name ?? "")).replaceAll("_", " ");

/**
 * The first `length` characters (not code units) of a text, with an ellipsis where there were more.
 * @param {string} text
 * @param {number} length
 */
export function truncate(text, length) {
  const characters = Array.from(text.slice(0, 4 * length + 4));
  return characters.length > length ? characters.slice(0, length - 1).join("") + "…" : text;
}

/**
 * Any value of a configuration as text.
 * @param {any} value
 */
export function formatValue(value) {
  if (value === null || value === undefined) return "none";
  if (typeof value === "number") return String(value).replace("e+", "e");
  return showInvisible(typeof value === "string" ? value : JSON.stringify(value));
}
