// What a page is built from: its data, elements, controls and the tip. The files of this folder and, behind them, those
// of a page's own folder are joined into one module in the order that template.py and the page's Python give; each
// uses what the ones before it define. `exportDefaults` is what a page says of itself to whatever it hands out.

export const exportDefaults = { name: "", words: "", legend: () => [] };

/** What Python wrote into the page: the facts that `scripted_page` was called with. */
export function readPageData() {
  return JSON.parse(byId("data").textContent);
}

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** The entry of a plain object that the object itself has: a key may be called "constructor". */
export const ownValue = (object, key) => (object && Object.hasOwn(object, key) ? object[key] : undefined);

/** A new HTML element; strings among its children become text, never markup. */
export function createHtml(tag, attributes = {}, ...children) {
  return setAttributes(document.createElement(tag), attributes, children);
}

/** A new SVG element, as `createHtml`. */
export function createSvg(tag, attributes = {}, ...children) {
  return setAttributes(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

export function setAttributes(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** A button of the small kind. */
export function smallButton(words, act, attributes = {}) {
  const button = createHtml("button", { type: "button", class: "small-button", ...attributes }, words);
  button.addEventListener("click", act);
  return button;
}

/** Fill a group with buttons, one of which is chosen: [[value, words], ...]. A redraw keeps the focus. */
export function renderSegments(group, choices, chosen, choose) {
  const focused = [...group.children].indexOf(document.activeElement);
  const buttons = choices.map(([value, words]) => {
    const button = createHtml("button", { type: "button", "aria-pressed": String(value === chosen) }, words);
    button.addEventListener("click", () => choose(value));
    return button;
  });
  group.replaceChildren(...buttons);
  if (focused >= 0) group.children[focused]?.focus({ preventScroll: true });
}

/** Show the tip beside a place of the window, with these words in it. */
export function showTooltip(x, y, ...words) {
  byId("tip").replaceChildren(...words);
  placeTooltip(x, y);
}

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

/** Say what keeps the page from being drawn. */
export function showError(words) {
  byId("problem").textContent = words;
  byId("problem").hidden = false;
}

/** Call `act` in the next frame whenever the width of the window has changed. */
export function onResize(act) {
  let [width, waiting] = [innerWidth, null];
  addEventListener("resize", () => {
    if (width === innerWidth) return;
    width = innerWidth;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(act);
  });
}
