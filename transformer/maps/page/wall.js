// The wall: every head of one site on one example, a row of thumbnails a layer.

const THUMBNAIL = { width: 150, height: 180 }; // pixels of the screen, at most

/** Draw the wall into `place`; `choose(layer, head)` is called when a thumbnail is picked. */
function drawWall(place, maps, state, choose) {
  const site = maps.site;
  const { queries, keys } = tokensOf(site, state.example);
  place.style.setProperty("--heads", site.heads.length);
  const room = (place.clientWidth - 34) / site.heads.length - 8;
  const [width, height] = thumbnailSize(Math.min(room, THUMBNAIL.width), queries.length, keys.length);
  const cells = [make("span")];
  for (const head of site.heads) cells.push(make("span", { class: "column-name" }, named("head", head)));
  site.layers.forEach((layer, l) => {
    cells.push(make("span", { class: "row-name" }, named("layer", layer)));
    site.heads.forEach((head, h) => {
      const chosen = l === state.layer && h === state.head;
      const weight = maps.head(state.example, l, h);
      const share = linkedShare(site, state.example, weight);
      const label =
        `layer ${layer}, head ${head}` + (share === null ? "" : `, ${percent(share)} on gold links`);
      const button = make("button", {
        type: "button",
        class: "thumbnail",
        "aria-label": label,
        "aria-pressed": chosen,
        title: label,
      });
      const canvas = paint(weight, queries.length, keys.length, site.causal);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      button.append(canvas);
      if (share !== null) button.append(shareBar(share));
      button.addEventListener("click", () => choose(l, h));
      cells.push(button);
    });
  });
  // A redraw during keyboard use must not lose the focus.
  const focused = [...place.children].indexOf(document.activeElement);
  place.replaceChildren(...cells);
  if (focused >= 0) place.children[focused]?.focus({ preventScroll: true });
}

/** Whole pixels of the screen a cell where there is room: no row looks thicker than another. */
function thumbnailSize(room, queries, keys) {
  const cell = Math.min(room / Math.max(keys, 1), THUMBNAIL.height / Math.max(queries, 1));
  const whole = cell >= 2 ? Math.floor(cell) : cell;
  return [Math.max(8, whole * keys), Math.max(8, whole * queries)];
}

/** A head as a picture with one pixel for each weight. */
function paint(weight, queries, keys, causal) {
  const canvas = make("canvas", { width: Math.max(1, keys), height: Math.max(1, queries) });
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  for (let query = 0; query < queries; query++) {
    for (let key = 0; key < keys; key++) {
      const at = 4 * (query * keys + key);
      image.data.set(colourOf(weight(query, key)), at);
      image.data[at + 3] = causal && key > query ? 0 : 255;
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

function shareBar(share) {
  const bar = make("span", { class: "share" }, make("span"));
  bar.firstChild.style.width = percent(Math.min(1, share));
  return bar;
}

/** "head 3" for a number, the name itself where it is one. */
function named(what, name) {
  return /^\d+$/.test(name) ? `${what} ${name}` : name;
}

const percent = (share) => `${Math.round(100 * share)}%`;
