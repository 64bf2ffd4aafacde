// The large head as files: a drawing of what is seen, its numbers as CSV.

const RECTANGLES = 4096; // cells that a drawing holds as shapes; more go into it as one image
const LEGEND_ROOM = 34;

/** The large head as a drawing that needs no page: its labels and marks, its cells, the scale beneath. */
function drawingOf() {
  const { box, plane, signed } = sheet;
  const scale = weightScale(signed);
  const words = signed ? "difference; lower where a cell has a hole" : "weight, on a square-root scale";
  const bottom = box.height + 4;
  const { drawing, body } = standalone(sheet.svg, {
    title: byId("detail-title").textContent,
    words: contextWords(),
    parts: [
      ...rampBar(box.left, bottom, 160, scale.colourAt, scale.marks),
      label(words, box.left + 178, bottom + 9, { class: "tick" }),
    ],
    least: 460,
    below: LEGEND_ROOM,
  });
  body.prepend(cellsOf(sheet));
  return drawing;
}

function contextWords() {
  const steps = data.alone ? [] : [`step ${readable(data.steps[state.step])}`];
  const parts = [data.title, sheet.site.name, ...steps, visible(data.titles[state.example])];
  const pooled = poolingWords(sheet.plane, sheet.signed);
  return [...parts, ...(pooled ? [pooled] : [])].map((part) => shorten(part, 70)).join(" · ");
}

function cellsOf({ box, plane, signed, site }) {
  const { left, top, wide, tall, gap, across, down } = box;
  const { queries, keys } = plane;
  if (queries * keys > RECTANGLES) {
    const href = paintPlane(make("canvas"), plane, site.causal).toDataURL("image/png");
    const size = { x: left, y: top, width: across, height: down, preserveAspectRatio: "none" };
    return draw("g", {}, draw("image", { ...size, "image-rendering": "pixelated", href }));
  }
  const cells = [];
  for (let query = 0; query < queries; query++)
    for (let key = 0; key < keys; key++) {
      if (hides(plane, site.causal, query, key)) continue;
      const place = { x: left + key * wide, y: top + query * tall, width: wide - gap, height: tall - gap };
      cells.push(draw("rect", { ...place, fill: css(plane.at(query, key)) }));
    }
  const holes = signed ? hollows(plane, box) : [];
  for (const [x, y, width, height] of holes)
    cells.push(draw("rect", { x: left + x, y: top + y, width, height, fill: themeColour("panel") }));
  return draw("g", {}, ...cells);
}

/** The numbers of the large head, a row a cell; what a causal mask hides is left out. */
function cellRows() {
  const { plane, axes, site, signed } = sheet;
  const range = (side) => (plane.pooled ? [`${side}_first`, `${side}_last`] : [side]);
  const rows = [[...range("query"), "query_token", ...range("key"), "key_token", signed ? "difference" : "weight"]];
  const columns = (axis, cell, size) => {
    const [first, last] = rangeOf(axis, cell, size);
    return [first + 1, ...(plane.pooled ? [last + 1] : []), positionText(axis, first)];
  };
  for (let query = 0; query < plane.queries; query++) {
    const row = columns(axes.query, query, plane.queryBlock);
    for (let key = 0; key < plane.keys; key++) {
      if (hides(plane, site.causal, query, key)) continue;
      rows.push([...row, ...columns(axes.key, key, plane.keyBlock), Number(plane.at(query, key).toPrecision(6))]);
    }
  }
  return rows;
}

/** What names a file of the large head. */
const headParts = () => [
  sheet.site.name,
  `layer-${sheet.site.layers[state.layer]}`,
  `head-${sheet.site.heads[state.head]}`,
  ...(data.alone ? [] : [`step-${data.steps[state.step]}`]),
  `example-${state.example + 1}`,
];

const EXPORTS = {
  png: () => handOutDrawing(drawingOf(), headParts(), "png"),
  svg: () => handOutDrawing(drawingOf(), headParts(), "svg"),
  csv: () => handOutTable(cellRows(), headParts()),
};
