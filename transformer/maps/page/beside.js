// What the positions were cut from, beside the map: running tokens, the picture, and the keys of one long row.

const LONG = 240; // tokens that stand as chips; of more, those around the held one
const AROUND = 24;
const PICTURE = 340; // pixels of the screen, at most
const LISTED = 12; // keys of a held row of a pooled map
let beside = null;

/** Draw the example into `place` and return the function that highlights positions: (query, key) => nothing. */
function drawBeside(place, shown, state, look, hold) {
  const { site } = shown;
  const axes = {
    query: axisOf(site, "query", state.example),
    key: axisOf(site, "key", state.example),
  };
  const spans = {
    query: spanOf(axes.query, state.row),
    key: spanOf(axes.key, state.column),
  };
  const name = [state.site, state.example, place.clientWidth, ...spans.query, ...spans.key].join(" ");
  if (beside?.name !== name) {
    beside = { name, parts: [], list: make("div", { class: "top-keys" }) };
    const lines = ["query", "key"].flatMap((side) => tokenLine(axes, side, spans[side], look, hold));
    const grid = ["key", "query"].find((side) => axes[side].kind === "grid" && axes[side].picture);
    const pictures = grid ? [pictureFigure(axes, grid, look, hold)] : [];
    place.replaceChildren(beside.list, ...lines, ...pictures);
  }
  beside.shown = shown;
  drawTopKeys(beside.list, shown, state, axes, hold);
  const parts = beside.parts;
  return (query, key) => parts.forEach((part) => part(query, key));
}

/** First and last position of the chips of an axis. */
function spanOf(axis, anchor) {
  // A picture and a time axis say more than the names of their positions: only what leads them stands as chips.
  const all = axis.kind === "frames" || (axis.kind === "grid" && axis.picture) ? axis.leading : axis.tokens.length;
  if (all <= LONG) return [0, all];
  // In whole stretches, so that going from row to row moves few chips.
  const first = Math.max(0, Math.floor((anchor ?? 0) / AROUND) * AROUND - AROUND);
  return [first, Math.min(all, first + 3 * AROUND)];
}

/** The weight between two positions, in the cells of what is drawn. */
function weightAt(query, key) {
  const plane = beside.shown.detail;
  return plane.at(Math.floor(query / plane.queryBlock), Math.floor(key / plane.keyBlock));
}

/** The tokens of one side: pick one, and the other side is shaded by what it reads or by what reads it. */
function tokenLine(axes, side, [first, end], look, hold) {
  const axis = axes[side];
  if (end === first) return [];
  const pair = (position) => (side === "query" ? [position, null] : [null, position]);
  const chips = axis.tokens.slice(first, end).map((token, index) => {
    const chip = make("span", { class: `chip ${side}`, dir: "auto" }, ...written(token, 40));
    chip.addEventListener("pointerenter", () => look(...pair(first + index)));
    chip.addEventListener("pointerleave", () => look(null, null));
    chip.addEventListener("click", () => hold(...pair(first + index)));
    return chip;
  });
  const total = axis.kind === "tokens" ? axis.tokens.length : end;
  const more = (count, words) => (count > 0 ? [make("span", { class: "more" }, `${readable(count)} ${words}`)] : []);
  beside.parts.push((query, key) => {
    const [own, other] = side === "query" ? [query, key] : [key, query];
    chips.forEach((chip, index) => {
      const at = first + index;
      chip.classList.toggle("lit", at === own);
      // A row shades the keys that it reads; a column without a row the queries that read it.
      const shaded = other !== null && (side === "key" || key !== null) && !(side === "query" && own !== null);
      shade(chip, shaded ? (side === "key" ? weightAt(other, at) : weightAt(at, other)) : null);
    });
  });
  const body = make("div", {}, ...more(first, "before … "), ...chips, ...more(total - end, "more"));
  const name = `${axis.name.replaceAll("_", " ")} ${side === "query" ? "↓" : "→"}`;
  return [make("div", { class: "line-of-tokens" }, make("span", { class: "axis" }, name), body)];
}

function shade(chip, value) {
  const colour = value === null ? null : colourOf(value);
  chip.style.backgroundColor = colour ? css(value) : "";
  // The text takes the side of the ramp that is far from its ground.
  const bright = colour && 0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2] > 140;
  chip.style.color = colour ? (bright ? "#14161c" : "#ffffff") : "";
}

/** The example's picture, lit where the held patch looks; a click on a patch holds it. */
function pictureFigure(axes, side, look, hold) {
  const axis = axes[side];
  const [height, width, rows, columns] = axis.picture;
  const scale = Math.min(PICTURE / width, PICTURE / height);
  const canvas = make("canvas", { width: Math.round(width * scale), height: Math.round(height * scale) });
  const svg = draw("svg", { width: canvas.width, height: canvas.height, role: "img", tabindex: 0 });
  svg.setAttribute("aria-label", "the picture; arrow keys are the page's, j and k move the held patch");
  const caption = make("p", { class: "note" });
  const frame = make("div", { class: "picture" }, canvas, svg);
  frame.style.width = `${canvas.width}px`;
  frame.style.height = `${canvas.height}px`;
  const both = axes.query.name === axes.key.name;
  const asked = (patch, shift) => (side === "query" || (both && !shift) ? [patch, null] : [null, patch]);
  const patchAt = (event) => {
    const bounds = svg.getBoundingClientRect();
    const [column, row] = [event.clientX - bounds.left, event.clientY - bounds.top].map((place) =>
      Math.floor((place / scale - axis.offset) / axis.stride),
    );
    const inside = row >= 0 && column >= 0 && row < axis.shape[0] && column < axis.shape[1];
    const patch = axis.leading + row * axis.shape[1] + column;
    return inside && patch < axis.tokens.length ? patch : null;
  };
  svg.addEventListener("pointermove", (event) => {
    const patch = patchAt(event);
    if (patch === null) look(null, null);
    else look(...asked(patch, event.shiftKey));
  });
  svg.addEventListener("pointerleave", () => look(null, null));
  svg.addEventListener("click", (event) => {
    const patch = patchAt(event);
    if (patch !== null) hold(...asked(patch, event.shiftKey));
  });
  let pictures = null;
  let last = [null, null];
  const paint = (query, key) => {
    last = [query, key];
    // Where each query has a picture of its own, that of the first stands for all of them.
    const picture = pictures?.[pictures.length > 1 ? (query ?? 0) : 0];
    if (picture) light(canvas, svg, caption, picture, axes, side, scale, query, key);
  };
  picturesOf(axis).then((canvases) => ((pictures = canvases), paint(...last)));
  beside.parts.push(paint);
  return make("figure", { class: "picture-figure" }, frame, caption);
}

/** Dim the picture where little is read: the patch with the largest weight keeps all of its light. */
function light(canvas, svg, caption, picture, axes, side, scale, query, key) {
  const axis = axes[side];
  const [patches, words] = patchWeights(axes, side, query, key);
  const largest = Math.max(1e-9, ...patches.map(Math.abs));
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = picture.width > canvas.width;
  context.globalAlpha = 1;
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  context.fillStyle = "#0a0c10";
  const square = (patch) => [
    scale * (axis.offset + axis.stride * (patch % axis.shape[1])),
    scale * (axis.offset + axis.stride * Math.floor(patch / axis.shape[1])),
    scale * axis.stride,
  ];
  patches.forEach((value, patch) => {
    const [x, y, size] = square(patch);
    context.globalAlpha = 0.84 * (1 - Math.sqrt(Math.max(0, value) / largest));
    context.fillRect(x, y, size, size);
  });
  context.globalAlpha = 1;
  const marks = [];
  const mark = (position, kind) => {
    if (position === null || position < axis.leading) return;
    const [x, y, size] = square(position - axis.leading);
    for (const name of ["halo", kind]) marks.push(draw("rect", { class: name, x, y, width: size, height: size }));
  };
  if (side === "query" || axes.query.name === axis.name) mark(query, "frame");
  if (side === "key") mark(key, "frame column");
  svg.replaceChildren(...marks);
  const lead = axis.leading && query !== null && side === "key" ? leadWords(axis, query) : "";
  caption.textContent = `${words}; full light is ${largest.toFixed(3)}${lead}`;
}

/** The weight of every patch of one side, and in words what it is. */
function patchWeights(axes, side, query, key) {
  const axis = axes[side];
  const plane = beside.shown.detail;
  const count = axis.tokens.length - axis.leading;
  const of = (value) => Array.from({ length: count }, (_, patch) => value(patch + axis.leading));
  if (side === "key" && query !== null)
    return [of((at) => weightAt(query, at)), `What ${positionName(axes.query, query)} reads`];
  if (key !== null && axes.query.kind === "grid" && (side === "query" || axes.query.name === axis.name))
    return [of((at) => weightAt(at, key)), `What reads ${positionName(axes.key, key)}`];
  if (side === "key") {
    const means = meansOf(plane);
    return [of((at) => means[Math.floor(at / plane.keyBlock)]), "What all queries read, on average"];
  }
  return [of(() => 1), "Pick a patch"];
}

function leadWords(axis, query) {
  const said = (at) => `${positionName(axis, at)} ${weightAt(query, at).toFixed(3)}`;
  const parts = Array.from({ length: axis.leading }, (_, at) => said(at));
  return `, and ${parts.join(", ")}`;
}

/** The largest weights of a held row of a pooled map, exact where the row or its top is kept. */
async function drawTopKeys(place, shown, state, axes, hold) {
  const wanted = [state.step, state.site, state.example, state.layer, state.head, state.row].join(" ");
  place.dataset.wanted = wanted;
  const { site, detail } = shown;
  if (!detail.pooled || shown.signed || state.view !== "weights") {
    place.replaceChildren();
    return;
  }
  const kept = await rowsAt(state.step, state.site, state.example);
  const top = state.row === null ? null : await topAt(state.step, state.site, state.example, state.layer);
  if (place.dataset.wanted !== wanted) return;
  const parts = kept ? [wholeRowButtons(kept.positions, state, hold)] : [];
  const whole = kept?.positions.indexOf(state.row) ?? -1;
  if (whole >= 0) {
    const row = kept.row(state.layer, state.head, whole).subarray(0, axes.key.tokens.length);
    const ranked = Array.from(row, (weight, key) => [key, weight]).sort((a, b) => b[1] - a[1]);
    parts.push(rowStrip(row, axes.key, place.clientWidth), ...keyList(ranked, axes, state, "of the whole row"));
  } else if (top?.(state.head, state.row)) {
    parts.push(...keyList(top(state.head, state.row), axes, state, "as the run kept them"));
  } else if (state.row !== null) {
    parts.push(make("p", { class: "note" }, "Of this row the page carries the pooled cells alone."));
  }
  place.replaceChildren(...parts);
}

function wholeRowButtons(positions, state, hold) {
  const buttons = positions.map((position) => {
    const button = make(
      "button",
      { type: "button", class: "small-button", "aria-pressed": position === state.row },
      readable(position + 1),
    );
    button.addEventListener("click", () => hold(position, null));
    return button;
  });
  return make("p", { class: "note whole-row-buttons" }, "Rows kept whole: ", ...buttons);
}

/** A whole row as bars as wide as the panel: of the keys that share a pixel the largest. */
function rowStrip(row, axis, width) {
  const canvas = make("canvas", { width, height: 48, class: "row-strip", role: "img" });
  canvas.setAttribute("aria-label", "the weights of the whole row");
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--ramp-3");
  const largest = row.reduce((a, b) => Math.max(a, b), 1e-9);
  row.forEach((weight, key) => {
    const height = 48 * Math.sqrt(weight / largest);
    context.fillRect((key * width) / row.length, 48 - height, Math.max(1, width / row.length), height);
  });
  return canvas;
}

function keyList(ranked, axes, state, words) {
  const items = ranked
    .slice(0, LISTED)
    .filter(([key, weight]) => weight > 0 && key < axes.key.tokens.length)
    .map(([key, weight]) => {
      const name = make("span", { class: "chip", dir: "auto" }, ...written(positionText(axes.key, key), 40));
      shade(name, weight);
      return make("li", {}, name, ` ${readable(key + 1)} `, make("b", {}, weight.toFixed(3)));
    });
  const title = `Largest keys of row ${readable(state.row + 1)}, ${positionName(axes.query, state.row)}, ${words}`;
  return [make("p", { class: "note" }, title), make("ol", { class: "key-list" }, ...items)];
}

const positionText = (axis, position) =>
  isFrame(axis, position) ? seconds(axis, secondsOf(axis, position)) : axis.tokens[position];
