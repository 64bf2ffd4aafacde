// What is seen, as a file: the large head as PNG and SVG from one list of shapes, its numbers as CSV.

const MARGIN = 22;
const RECTANGLES = 4096; // cells that an SVG holds as shapes; more go into it as one image

/** Everything of the large head as shapes: { width, height, ground, font, shapes }. */
function sceneOf() {
  const { box, plane, ticks, signed } = sheet;
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const [text, muted] = [colour("text"), colour("muted")];
  const shapes = [];
  const write = (words, x, y, more = {}) =>
    shapes.push({ kind: "text", words, x, y, size: 12.5, fill: text, ...more });
  const head = 58;
  const [left, top] = [MARGIN + box.left, MARGIN + head + box.top];
  write(byId("detail-title").textContent, MARGIN, MARGIN + 14, { size: 15, bold: true });
  write(contextWords(), MARGIN, MARGIN + 33, { fill: muted, size: 11.5 });
  const { wide, tall, gap } = box;
  shapes.push({ kind: "map", x: left, y: top, plane, wide, tall, gap, causal: sheet.site.causal });
  if (signed)
    for (const [x, y, width, height] of hollows(plane, box))
      shapes.push({ kind: "box", x: left + x, y: top + y, width, height, fill: colour("panel") });
  for (const [query, key, sure] of sheet.links ?? [])
    shapes.push({
      kind: "box",
      x: left + key * box.wide + 2,
      y: top + query * box.tall + 2,
      width: Math.max(1, box.wide - 4 - box.gap),
      height: Math.max(1, box.tall - 4 - box.gap),
      stroke: colour("gold"),
      dashed: !sure,
    });
  for (const { cell, text: words } of ticks.query)
    write(words, left - 8, top + middle(cell, box.tall) + 4, { anchor: "end" });
  for (const { cell, text: words, tick } of ticks.key) {
    const upright = tick || !box.slanted;
    const more = upright ? { anchor: "middle" } : { turn: -SLANT };
    write(words, left + middle(cell, box.wide) + (upright ? 0 : 2), top - 7, more);
  }
  const names = [sheet.site.key, sheet.site.query].map((name) => name.replaceAll("_", " "));
  write(`${names[0]} →`, left - 8, top - 24, { anchor: "end", fill: muted, size: 11.5 });
  write(`${names[1]} ↓`, left - 8, top - 9, { anchor: "end", fill: muted, size: 11.5 });
  addLegend(shapes, write, left, top + box.down + 24, signed, muted);
  const width = Math.max(box.width, 460) + 2 * MARGIN;
  const height = head + box.top + box.down + 66 + 2 * MARGIN;
  const font = getComputedStyle(document.body).fontFamily;
  return { width, height, ground: colour("panel"), font, shapes };
}

function addLegend(shapes, write, x, y, signed, muted) {
  const [width, parts] = [160, 64];
  for (let part = 0; part < parts; part++) {
    const share = (part + 0.5) / parts;
    const value = signed ? Math.sign(share - 0.5) * (2 * share - 1) ** 2 : share ** 2;
    const from = x + (part * width) / parts;
    shapes.push({ kind: "box", x: from, y, width: width / parts + 0.3, height: 9, fill: css(value) });
  }
  const marks = signed ? [-1, -0.1, 0, 0.1, 1] : [0, 0.1, 0.5, 1];
  for (const value of marks) {
    const share = Math.sign(value) * Math.sqrt(Math.abs(value));
    const place = x + width * (signed ? (share + 1) / 2 : share);
    write(String(value).replace("-", "−"), place, y + 22, { anchor: "middle", fill: muted, size: 11 });
  }
  const words = signed ? "difference; hollow cells: less" : "weight, on a square-root scale";
  write(words, x + width + 12, y + 9, { fill: muted, size: 11 });
}

function contextWords() {
  const title = data.titles[state.example];
  const steps = `step ${readable(data.steps[state.step])}`;
  const pooled = poolingWords(sheet.plane, sheet.signed);
  const parts = [data.title, sheet.site.name, steps, visible(title), ...(pooled ? [pooled] : [])];
  return parts.map((part) => shorten(part, 70)).join(" · ");
}

/** The scene as an SVG document that needs nothing else. */
function svgOf(scene) {
  const parts = scene.shapes.map((shape) => svgShape(shape));
  const size = `width="${scene.width}" height="${scene.height}" viewBox="0 0 ${scene.width} ${scene.height}"`;
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="${escaped(scene.font)}">` +
    `<rect width="100%" height="100%" fill="${scene.ground}"/>${parts.join("")}</svg>\n`
  );
}

function svgShape(shape) {
  const at = (value) => Number(value.toFixed(2));
  if (shape.kind === "text") {
    const place = shape.turn
      ? `transform="translate(${at(shape.x)} ${at(shape.y)}) rotate(${shape.turn})"`
      : `x="${at(shape.x)}" y="${at(shape.y)}"`;
    const bold = shape.bold ? ' font-weight="600"' : "";
    const style = `font-size="${shape.size}" fill="${shape.fill}" text-anchor="${shape.anchor ?? "start"}"${bold}`;
    return `<text ${place} ${style} xml:space="preserve">${escaped(shape.words)}</text>`;
  }
  if (shape.kind === "box") {
    const { x, y, width, height } = shape;
    const dash = shape.dashed ? ' stroke-dasharray="2 3"' : "";
    const line = `fill="none" stroke="${shape.stroke}" stroke-width="1.6"${dash}`;
    const ink = shape.stroke ? line : `fill="${shape.fill}"`;
    return `<rect x="${at(x)}" y="${at(y)}" width="${at(width)}" height="${at(height)}" ${ink}/>`;
  }
  return svgMap(shape);
}

function svgMap({ x, y, plane, wide, tall, gap, causal }) {
  const { queries, keys } = plane;
  if (queries * keys > RECTANGLES) {
    const image = paintPlane(make("canvas"), plane, causal).toDataURL("image/png");
    const size = `width="${keys * wide}" height="${queries * tall}" preserveAspectRatio="none"`;
    return `<image x="${x}" y="${y}" ${size} style="image-rendering:pixelated" href="${image}"/>`;
  }
  const cells = [];
  for (let query = 0; query < queries; query++)
    for (let key = 0; key < keys; key++)
      if (!hides(plane, causal, query, key)) {
        const place = `x="${x + key * wide}" y="${y + query * tall}"`;
        cells.push(`<rect ${place} width="${wide - gap}" height="${tall - gap}" fill="${css(plane.at(query, key))}"/>`);
      }
  return `<g>${cells.join("")}</g>`;
}

/** Text that is safe as content and as attribute of XML, which knows no control characters and no half pairs. */
const escaped = (text) =>
  visible(text)
    .toWellFormed()
    .replace(/[\ufffe\uffff]/g, "\ufffd")
    .replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

/** The scene as a canvas of twice as many pixels. */
function canvasOf(scene) {
  const scale = Math.min(2, 8000 / Math.max(scene.width, scene.height));
  const canvas = make("canvas", {
    width: Math.round(scene.width * scale),
    height: Math.round(scene.height * scale),
  });
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.fillStyle = scene.ground;
  context.fillRect(0, 0, scene.width, scene.height);
  for (const shape of scene.shapes) paintShape(context, shape, scene.font);
  return canvas;
}

function paintShape(context, shape, font) {
  context.save();
  context.fillStyle = shape.fill;
  if (shape.kind === "text") {
    context.font = `${shape.bold ? 600 : 400} ${shape.size}px ${font}`;
    context.textAlign = shape.anchor === "middle" ? "center" : (shape.anchor ?? "start");
    context.translate(shape.x, shape.y);
    context.rotate(((shape.turn ?? 0) * Math.PI) / 180);
    context.fillText(visible(shape.words), 0, 0);
  } else if (shape.kind === "box" && shape.stroke) {
    context.strokeStyle = shape.stroke;
    context.lineWidth = 1.6;
    context.setLineDash(shape.dashed ? [2, 3] : []);
    context.strokeRect(shape.x, shape.y, shape.width, shape.height);
  } else if (shape.kind === "box") {
    context.fillRect(shape.x, shape.y, shape.width, shape.height);
  } else {
    const { x, y, plane, wide, tall, gap, causal } = shape;
    context.imageSmoothingEnabled = false;
    const [width, height] = [plane.keys * wide, plane.queries * tall];
    context.drawImage(paintPlane(make("canvas"), plane, causal), x, y, width, height);
    context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--panel");
    for (let key = 1; gap && key <= plane.keys; key++) context.fillRect(x + key * wide - 1, y, 1, height);
    for (let query = 1; gap && query <= plane.queries; query++)
      context.fillRect(x, y + query * tall - 1, width, 1);
  }
  context.restore();
}

/** The numbers of the large head, a line a cell; what a causal mask hides is left out. */
function csvOf() {
  const { plane, axes, site, signed } = sheet;
  const value = signed ? "difference" : "weight";
  const range = (side) => (plane.pooled ? [`${side}_first`, `${side}_last`] : [side]);
  const lines = [[...range("query"), "query_token", ...range("key"), "key_token", value].join(",")];
  const columns = (axis, cell, size) => {
    const [first, last] = rangeOf(axis, cell, size);
    return [...(plane.pooled ? [first + 1, last + 1] : [first + 1]), quotedCell(positionText(axis, first))];
  };
  for (let query = 0; query < plane.queries; query++) {
    const row = columns(axes.query, query, plane.queryBlock);
    for (let key = 0; key < plane.keys; key++) {
      if (hides(plane, site.causal, query, key)) continue;
      const number = Number(plane.at(query, key).toPrecision(6));
      lines.push([...row, ...columns(axes.key, key, plane.keyBlock), number].join(","));
    }
  }
  return `${lines.join("\r\n")}\r\n`;
}

/** A text as one cell of a table, which no spreadsheet takes for a formula. */
function quotedCell(text) {
  const safe = /^[\s\u0000]*[=+\-@\t\r\n|%＝＋－＠]/.test(text) ? `'${text}` : text;
  return `"${safe.toWellFormed().replaceAll("\u0000", "␀").replaceAll('"', '""')}"`;
}

/** Hand a file to the person. */
function save(blob, kind) {
  const site = sheet.site;
  const parts = [
    data.title,
    site.name,
    `layer-${site.layers[state.layer]}`,
    `head-${site.heads[state.head]}`,
    `step-${data.steps[state.step]}`,
    `example-${state.example + 1}`,
  ];
  const name = parts.map((part) => part.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40)).join("_");
  const link = make("a", { download: `${name}.${kind}` });
  link.href = URL.createObjectURL(blob);
  link.click();
  // The browser reads the file a moment later.
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const EXPORTS = {
  png: () => canvasOf(sceneOf()).toBlob((blob) => save(blob, "png"), "image/png"),
  svg: () => save(new Blob([svgOf(sceneOf())], { type: "image/svg+xml" }), "svg"),
  csv: () => save(new Blob(["\ufeff", csvOf()], { type: "text/csv" }), "csv"),
};
