// One head, large: tokens on both axes, gold links, and what the row under the pointer attends to.

const LARGEST_CELL = 46;
const SMALLEST_CELL = 4;
const LABEL_ROOM = 11; // pixels that a label needs
const LABEL_LENGTH = 16; // characters
const SLANT = 52; // degrees
const PROFILE = 58;
const FONT = "12.5px";

/**
 * Draw the head that `state` names into `place`.
 *
 * `look(query, key)` is called when the pointer moves to a cell or a token (nulls when it leaves), `hold(query)` on
 * a click. Returns the function that highlights a cell: (query, key) => nothing.
 */
function drawDetail(place, maps, state, look, hold) {
  const site = maps.site;
  const { queries, keys } = tokensOf(site, state.example);
  const weight = maps.head(state.example, state.layer, state.head);
  const box = layout(place, queries, keys);
  const canvas = paintCells(weight, queries.length, keys.length, site.causal, box);
  const svg = draw("svg", {
    width: box.width,
    height: box.height,
    role: "img",
    "aria-label": "attention weights",
  });
  const labels = {
    queries: queries.map((token, query) => queryLabel(token, query, box)),
    keys: keys.map((token, key) => keyLabel(token, key, box)),
  };
  const overlay = draw("g", { class: "overlay" });
  const profile = draw("g", { class: "profile" });
  svg.append(axisNames(site, box), ...labels.queries, ...labels.keys);
  if (state.links && site.links) svg.append(goldLinks(site.links[state.example], box));
  svg.append(overlay, profile);
  const sheet = make("div", { class: "sheet" }, canvas, svg);
  sheet.style.width = `${box.width}px`;
  sheet.style.height = `${box.height}px`;
  // Scrolled to the right place during play, a wide map must stay there.
  const scrolled = [place.scrollLeft, place.scrollTop];
  place.replaceChildren(sheet);
  [place.scrollLeft, place.scrollTop] = scrolled;

  const cellAt = (event) => {
    const frame = svg.getBoundingClientRect();
    const query = Math.floor((event.clientY - frame.top - box.top) / box.cell);
    const key = Math.floor((event.clientX - frame.left - box.left) / box.cell);
    if (query < 0 || query >= queries.length || key >= keys.length) return [null, null];
    return [query, key < 0 ? null : key];
  };
  svg.addEventListener("pointermove", (event) => look(...cellAt(event), event));
  svg.addEventListener("pointerleave", () => look(null, null));
  svg.addEventListener("click", (event) => hold(cellAt(event)[0]));

  return (query, key) => {
    overlay.replaceChildren(...focus(query, key, box, queries.length));
    labels.queries.forEach((label, at) => label.classList.toggle("lit", at === query));
    labels.keys.forEach((label, at) => {
      label.classList.toggle("lit", at === key);
      label.style.opacity =
        query === null || at === key ? "" : 0.35 + 0.65 * Math.min(1, 1.6 * Math.sqrt(weight(query, at)));
    });
    profile.replaceChildren(...bars(weight, query, queries, keys, box));
  };
}

function layout(place, queries, keys) {
  const measure = make("canvas").getContext("2d");
  measure.font = `${FONT} ${getComputedStyle(document.body).fontFamily}`;
  const longest = (tokens) =>
    Math.max(20, ...tokens.map((token) => measure.measureText(shorten(visible(token), LABEL_LENGTH)).width));
  const angle = (SLANT * Math.PI) / 180;
  const left = Math.ceil(Math.max(92, longest(queries) + 16));
  const top = Math.ceil(longest(keys) * Math.sin(angle) + 18);
  const overhang = Math.ceil(longest(keys) * Math.cos(angle) + 4);
  const room = Math.min(
    (place.clientWidth - left - overhang) / Math.max(1, keys.length),
    620 / Math.max(1, queries.length),
  );
  const cell = Math.max(SMALLEST_CELL, Math.min(LARGEST_CELL, Math.floor(room)));
  const [across, down] = [cell * keys.length, cell * queries.length];
  return {
    left,
    top,
    cell,
    across,
    down,
    width: left + across + overhang,
    height: top + down + PROFILE + 18,
    every: Math.ceil(LABEL_ROOM / cell),
  };
}

function paintCells(weight, queries, keys, causal, box) {
  const scale = Math.max(1, window.devicePixelRatio || 1);
  const canvas = make("canvas", {
    width: Math.round(box.across * scale),
    height: Math.round(box.down * scale),
  });
  canvas.style.cssText = `left:${box.left}px;top:${box.top}px;width:${box.across}px;height:${box.down}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const gap = box.cell >= 12 ? 1 : 0;
  for (let query = 0; query < queries; query++) {
    for (let key = 0; key < (causal ? Math.min(keys, query + 1) : keys); key++) {
      context.fillStyle = css(weight(query, key));
      context.fillRect(key * box.cell, query * box.cell, box.cell - gap, box.cell - gap);
    }
  }
  return canvas;
}

function queryLabel(token, query, box) {
  const y = box.top + (query + 0.5) * box.cell + 4;
  return label(token, { x: box.left - 8, y, "text-anchor": "end" }, query % box.every === 0);
}

function keyLabel(token, key, box) {
  const [x, y] = [box.left + (key + 0.5) * box.cell + 2, box.top - 7];
  return label(token, { transform: `translate(${x} ${y}) rotate(${-SLANT})` }, key % box.every === 0);
}

function label(token, attributes, shown) {
  const text = shorten(visible(token), LABEL_LENGTH);
  const special = /^<.*>$/s.test(token) ? " special" : "";
  const element = draw("text", { class: `token${special}${shown ? "" : " unshown"}`, ...attributes });
  element.append(...quieted(text, (start) => draw("tspan", { class: "word-start" }, start)));
  return element;
}

function axisNames(site, box) {
  return draw(
    "g",
    { class: "axis-name" },
    draw(
      "text",
      { x: box.left - 8, y: box.top - 24, "text-anchor": "end" },
      `${site.key.replaceAll("_", " ")} →`,
    ),
    draw(
      "text",
      { x: box.left - 8, y: box.top - 9, "text-anchor": "end" },
      `${site.query.replaceAll("_", " ")} ↓`,
    ),
  );
}

function goldLinks(links, box) {
  const inset = box.cell >= 12 ? 2.5 : 0.5;
  const size = Math.max(1, box.cell - 2 * inset - (box.cell >= 12 ? 1 : 0));
  const rings = links.flatMap(([query, key, sure]) => {
    const place = {
      x: box.left + key * box.cell + inset,
      y: box.top + query * box.cell + inset,
      width: size,
      height: size,
      rx: 2,
    };
    // Many possible links stay in the background; the halo keeps a sure one visible on any colour beneath it.
    if (!sure) return [draw("rect", { class: "link possible", ...place })];
    return [draw("rect", { class: "halo", ...place }), draw("rect", { class: "link sure", ...place })];
  });
  return draw("g", { class: "links" }, ...rings);
}

/** Veil the other rows and frame the row and the column. */
function focus(query, key, box, queries) {
  if (query === null) return [];
  const { left, top, cell, across, down } = box;
  const gap = cell >= 12 ? 1 : 0;
  const parts = [
    draw("rect", { class: "veil", x: left, y: top, width: across, height: query * cell }),
    draw("rect", {
      class: "veil",
      x: left,
      y: top + (query + 1) * cell,
      width: across,
      height: (queries - query - 1) * cell,
    }),
    draw("rect", {
      class: "frame",
      x: left - 1,
      y: top + query * cell - 1,
      width: across - gap + 2,
      height: cell - gap + 2,
      rx: 2,
    }),
  ];
  if (key !== null)
    parts.push(
      draw("rect", {
        class: "frame column",
        x: left + key * cell - 1,
        y: top - 1,
        width: cell - gap + 2,
        height: down - gap + 2,
        rx: 2,
      }),
    );
  return parts;
}

/** The weights of one row as bars under their columns; without a row, the mean over all rows. */
function bars(weight, query, queries, keys, box) {
  const base = box.top + box.down + PROFILE;
  const depth = PROFILE - 10;
  const mean = (key) =>
    queries.reduce((sum, _, at) => sum + weight(at, key), 0) / Math.max(1, queries.length);
  const parts = [0, 0.5, 1].flatMap((value) => {
    const y = base - depth * value;
    return [
      draw("line", { class: "grid", x1: box.left, x2: box.left + box.across, y1: y, y2: y }),
      draw("text", { class: "tick", x: box.left + box.across + 5, y: y + 3.5 }, String(value)),
    ];
  });
  keys.forEach((_, key) => {
    const value = query === null ? mean(key) : weight(query, key);
    const height = depth * Math.min(1, value);
    const width = Math.max(1, box.cell - (box.cell >= 12 ? 5 : 1));
    parts.push(
      draw("rect", {
        class: "bar",
        x: box.left + key * box.cell + (box.cell - width) / 2 - 0.5,
        y: base - height,
        width,
        height,
        rx: Math.min(1.5, height / 2),
      }),
    );
  });
  const name = query === null ? "mean of rows" : shorten(visible(queries[query]), LABEL_LENGTH);
  parts.push(
    draw(
      "text",
      {
        class: query === null ? "axis-name" : "token lit",
        x: box.left - 8,
        y: base - depth / 2 + 4,
        "text-anchor": "end",
      },
      name,
    ),
  );
  return parts;
}

/** The example as running tokens: pick a query, and the keys are shaded by what it attends to. */
function drawSentence(place, maps, state, look, hold) {
  const { queries, keys } = tokensOf(maps.site, state.example);
  const weight = maps.head(state.example, state.layer, state.head);
  const line = (name, tokens, className) => {
    const chips = tokens.map((token) =>
      make("span", { class: `chip ${className}`, dir: "auto" }, ...written(token, 40)),
    );
    return [
      make(
        "div",
        { class: "line-of-tokens" },
        make("span", { class: "axis" }, name),
        make("div", {}, ...chips),
      ),
      chips,
    ];
  };
  const [asking, askers] = line(maps.site.query.replaceAll("_", " "), queries, "query");
  const [asked, chips] = line(maps.site.key.replaceAll("_", " "), keys, "key");
  askers.forEach((chip, query) => {
    chip.addEventListener("pointerenter", () => look(query, null));
    chip.addEventListener("pointerleave", () => look(null, null));
    chip.addEventListener("click", () => hold(query));
  });
  place.replaceChildren(asking, asked);
  return (query, key) => {
    askers.forEach((chip, at) => chip.classList.toggle("lit", at === query));
    chips.forEach((chip, at) => {
      const share = query === null ? null : weight(query, at);
      const [r, g, b] = share === null ? [] : colourOf(share);
      chip.classList.toggle("lit", at === key);
      chip.style.backgroundColor = share === null ? "" : css(share);
      // The text takes the side of the ramp that is far from its ground.
      chip.style.color =
        share === null ? "" : 0.2126 * r + 0.7152 * g + 0.0722 * b > 140 ? "#14161c" : "#ffffff";
    });
  };
}
