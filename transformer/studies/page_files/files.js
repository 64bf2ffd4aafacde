// What is seen as files: a figure as SVG and PNG, the runs as CSV, the whole result as JSON.

// What a drawing takes from the style of the page, so that it looks alike alone.
const INLINED = [
  ...["fill", "fill-opacity", "opacity", "paint-order"],
  ...["stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linejoin"],
  ...["font-size", "font-weight", "font-style", "text-anchor"],
];

/** Hand a file to the person. */
function handOut(blob, part, kind) {
  const words = [data.name || "study", part].filter(Boolean);
  const name = words
    .map((each) =>
      visible(each)
        .replace(/[^\p{L}\p{N}]+/gu, "-")
        .slice(0, 40),
    )
    .join("_");
  const link = make("a", { download: `${name}.${kind}` });
  link.href = URL.createObjectURL(blob);
  link.click();
  // The browser reads the file a moment later.
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

async function saveFigure(figure, kind) {
  point(figure, null);
  const drawing = standalone(figure);
  const text = new XMLSerializer().serializeToString(drawing);
  if (kind === "svg") return handOut(new Blob([text, "\n"], { type: "image/svg+xml" }), figure.id, "svg");
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const [width, height] = ["width", "height"].map((side) => Number(drawing.getAttribute(side)));
  const canvas = make("canvas", { width: 2 * width, height: 2 * height });
  canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
  canvas.toBlob((blob) => handOut(blob, figure.id, "png"), "image/png");
}

/** A figure as a drawing that needs no page: its title, the arms that it shows, and its own style. */
function standalone(figure) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const font = getComputedStyle(document.body).fontFamily;
  const margin = 16;
  const width = Number(figure.svg.getAttribute("width")) + 2 * margin;
  const write = (words, x, y, size, fill, weight = 400) =>
    label(words, x, y, { "font-size": size, fill, "font-weight": weight });
  const room = Math.floor((width - 2 * margin) / 6);
  const parts = [
    write(shorten(figure.title, room), margin, margin + 12, 15, colour("text"), 600),
    write(shorten(visible(data.question || data.name), room), margin, margin + 30, 11, colour("muted")),
  ];
  let [x, y] = [margin, margin + 48];
  for (const { name } of shownArms()) {
    const words = shorten(visible(name), 30);
    const wide = 36 + widthOf(words) + 22;
    if (x > margin && x + wide > width - margin) [x, y] = [margin, y + 17];
    // It takes its style from the legend's own sample.
    const sample = byId("legend").querySelector(`button[data-slot="${slots.get(name)}"] .sample`);
    const copy = inlined(sample, draw("g", { transform: `translate(${x} ${y - 10})` }));
    parts.push(copy, write(words, x + 36, y, 11.5, colour("text")));
    x += wide;
  }
  y += 12;
  const body = inlined(figure.svg, draw("g", { transform: `translate(${margin} ${y})` }));
  const height = Math.ceil(y + figure.height + margin);
  const size = { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": font };
  const ground = draw("rect", { width, height, fill: colour("panel") });
  return draw("svg", size, draw("title", {}, seenText(figure.title)), ground, ...parts, body);
}

/** The children of a drawing inside a group, with the style that the page gives them written into each. */
function inlined(source, group) {
  for (const child of source.children) {
    if (child.classList.contains("pointer") || child.tagName === "desc") continue;
    const copy = child.cloneNode(false);
    copy.removeAttribute("class");
    const style = getComputedStyle(child);
    if (child.tagName !== "g")
      for (const name of INLINED) {
        const value = style.getPropertyValue(name);
        if (value && value !== "normal") copy.setAttribute(name, value);
      }
    if (child.children.length) inlined(child, copy);
    else copy.textContent = child.textContent;
    group.append(copy);
  }
  return group;
}

function saveData(kind) {
  if (kind === "json")
    handOut(new Blob([JSON.stringify(data, null, 1), "\n"], { type: "application/json" }), "", "json");
  else handOut(new Blob(["\ufeff", csvOfCells()], { type: "text/csv" }), "runs", "csv");
}

/** The runs as a table, a line a run, with the columns of the CSV that stands beside the page; numbers are whole. */
function csvOfCells() {
  const keys = Object.keys(data.tuned ?? {});
  const [before, after] = [
    ["arm", "task", "seed"],
    ["state", "chosen", "reported", "steps", "directory", "command"],
  ];
  const written = (value) => {
    if (value === null || value === undefined) return "";
    return typeof value === "number"
      ? String(value)
      : quotedCell(typeof value === "string" ? value : JSON.stringify(value));
  };
  const lines = [[...before, ...keys, ...after].map(quotedCell)];
  for (const cell of data.cells) {
    const tuned = keys.map((key) => own(cell.tuned, key));
    lines.push(
      [...before.map((name) => cell[name]), ...tuned, ...after.map((name) => cell[name])].map(written),
    );
  }
  return `${lines.map((each) => each.join(",")).join("\r\n")}\r\n`;
}
