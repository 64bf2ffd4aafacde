// Elements of a page: creating and finding them, small controls, the tooltip, and the data that Python wrote into the
// page.

/** @import { Attributes, Child, SeriesStyle } from "./types.js" */

/**
 * What exported files are called, and the line and the legend that drawings have; a page sets its own.
 * @type {{ name: string, words: string, legend: () => [SeriesStyle, string][] }}
 */
export const exportDefaults = { name: "", words: "", legend: () => [] };

/**
 * The data that `render_scripted_page` wrote into the page.
 * @returns {any}
 */
export function readPageData() {
  return JSON.parse(byId("data").textContent ?? "");
}

/**
 * The element with this id, which the page has.
 * @param {string} id
 */
export const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/**
 * The input or select element with this id.
 * @param {string} id
 */
export const inputById = (id) => /** @type {HTMLInputElement} */ (document.getElementById(id));

/**
 * The first element in another that a selector matches, which there is.
 * @param {Element | Document} parent
 * @param {string} selector
 */
export const find = (parent, selector) => /** @type {HTMLElement} */ (parent.querySelector(selector));

/**
 * The drawing context of a canvas.
 * @param {HTMLCanvasElement} canvas
 */
export const context2d = (canvas) => /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));

/**
 * The entry of a plain object that the object itself has: a key may be called "constructor".
 * @param {Record<string, any> | null | undefined} object
 * @param {string} key
 */
export const ownValue = (object, key) => (object && Object.hasOwn(object, key) ? object[key] : undefined);

/**
 * A new HTML element; strings among its children become text, never markup.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 */
export function createHtml(tag, attributes = {}, ...children) {
  return setAttributes(document.createElement(tag), attributes, children);
}

/**
 * A new SVG element, as `createHtml`.
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 */
export function createSvg(tag, attributes = {}, ...children) {
  return setAttributes(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/**
 * Set attributes, leaving out those that are null, undefined or false, and append children.
 * @template {Element} T
 * @param {T} element
 * @param {Attributes} attributes
 * @param {Child[]} children
 */
export function setAttributes(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, String(value));
  }
  element.append(...children);
  return element;
}

/**
 * A button of the small kind.
 * @param {string} words
 * @param {(event: MouseEvent) => void} act
 * @param {Attributes} [attributes]
 */
export function smallButton(words, act, attributes = {}) {
  const button = createHtml("button", { type: "button", class: "small-button", ...attributes }, words);
  button.addEventListener("click", act);
  return button;
}

/**
 * Fill a group with buttons, one of which is chosen: [[value, words], ...]. A redraw keeps the focus.
 * @param {HTMLElement} group
 * @param {[any, string][]} choices
 * @param {any} chosen
 * @param {(value: any) => void} choose
 */
export function renderSegments(group, choices, chosen, choose) {
  const focused = focusedChild(group);
  const before = [...group.children].findIndex((button) => button.ariaPressed === "true");
  const buttons = choices.map(([value, words]) => {
    const attributes = { type: "button", "aria-pressed": String(value === chosen), "data-words": words };
    const button = createHtml("button", attributes, words);
    button.addEventListener("click", () => choose(value));
    return button;
  });
  group.replaceChildren(...buttons);
  // Where another is chosen than before, by a key say, the focus goes with the choice.
  const now = choices.findIndex(([value]) => value === chosen);
  focusChild(group, focused >= 0 && now !== before ? now : focused);
}

/**
 * Press one of some buttons and no other. Where the choice changes, a focus among them goes with it.
 * @param {HTMLElement[]} buttons
 * @param {number} chosen
 */
export function pressOne(buttons, chosen) {
  if (buttons[chosen]?.ariaPressed === "true") return;
  const focused = buttons.some((button) => button === document.activeElement);
  for (const [index, button] of buttons.entries()) {
    const pressed = String(index === chosen);
    if (button.ariaPressed !== pressed) button.ariaPressed = pressed;
  }
  if (focused) buttons[chosen]?.focus({ preventScroll: true });
}

/**
 * The index of the child that has the focus, -1 for none.
 * @param {Element} parent
 */
export const focusedChild = (parent) => [...parent.children].findIndex((child) => child === document.activeElement);

/**
 * Give the focus back to the child at an index, which may be -1 or gone.
 * @param {Element} parent
 * @param {number} index
 */
export function focusChild(parent, index) {
  const child = parent.children[index];
  if (child instanceof HTMLElement) child.focus({ preventScroll: true });
}

/**
 * Show the tip beside a place of the window, with these words in it.
 * @param {number} x
 * @param {number} y
 * @param {...Child} words
 */
export function showTooltip(x, y, ...words) {
  byId("tip").replaceChildren(...words);
  placeTooltip(x, y);
}

/**
 * @param {number} x
 * @param {number} y
 */
export function placeTooltip(x, y) {
  const tip = byId("tip");
  tip.hidden = false;
  // Against the far edge the tip stands on the other side of the place; it never leaves the window.
  const over = x + 16 + tip.offsetWidth > innerWidth;
  const left = Math.max(4, over ? x - tip.offsetWidth - 12 : x + 16);
  tip.style.transform = `translate(${left}px, ${Math.max(4, y - tip.offsetHeight - 16)}px)`;
}

export function hideTooltip() {
  byId("tip").hidden = true;
}

/**
 * Say what keeps the page from being drawn.
 * @param {string} words
 */
export function showError(words) {
  byId("problem").textContent = words;
  byId("problem").hidden = false;
}

/**
 * Call `act` in the next frame whenever the width of the window has changed.
 * @param {() => void} act
 */
export function onResize(act) {
  let [width, waiting] = [innerWidth, 0];
  addEventListener("resize", () => {
    if (width === innerWidth) return;
    width = innerWidth;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(act);
  });
}
