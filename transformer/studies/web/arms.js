// The arms of a study: how each is told from the others, which are shown, and what stands for it. `data` is the
// result of an ablation, as transformer/studies/ablations/analysis.py describes it.

Object.assign(page, {
  name: data.name || "study",
  words: visible(data.question || data.name),
  legend: () => shownArms().map(({ name }) => [lookOf(name), name]),
});

// The reference is drawn in ink, the others in the order in which the study names them.
const slots = new Map(
  [data.reference, ...data.arms.map((arm) => arm.name).filter((name) => name !== data.reference)].map((name, slot) => [
    name,
    slot,
  ]),
);
const hiddenArms = new Set();
const severalTasks = data.tasks.length > 1;

const shownArms = () => data.arms.filter((arm) => !hiddenArms.has(arm.name));
const armNamed = (name) => data.arms.find((arm) => arm.name === name);

/** An arm's color, dash and marker: an eighth arm has the first one's color and the second one's shape. */
function lookOf(name) {
  const slot = slots.get(name) ?? 0;
  const round = Math.floor((slot - 1) / (SHAPES.length - 1));
  const turned = (number) => (slot === 0 ? 0 : 1 + ((number - 1) % (SHAPES.length - 1)));
  const [color, shape] = [turned(slot), turned(slot + round)];
  return { ink: `arm-${color} dash-${shape}`, shape };
}

/** The classes that give an arm its color and its dash. */
const armClass = (name) => lookOf(name).ink;

/** A row of a tip that begins with an arm. */
const armRow = (name, value, more) => tipRow(lookOf(name), name, value, more);

/** An arm's name as it can be seen, behind its sample. */
const named = (name) => [sampleOf(lookOf(name)), make("span", { class: "arm-name", dir: "auto" }, visible(name))];

/** What an arm has over steps or layers, as a series of a figure of lines. */
const armSeries = (name, points) => ({ name, look: lookOf(name), points });

/** The shown arms as series: `bandOf(arm)` is { steps, middle, low, high, n }, or nothing for an arm without one. */
const bandSeries = (bandOf) =>
  shownArms().flatMap((arm) => {
    const { steps, middle, low, high, n } = bandOf(arm) ?? {};
    if (!steps) return [];
    const points = steps.map((x, at) => ({ x, middle: middle[at], low: low[at], high: high[at], n: n?.[at] }));
    return [armSeries(arm.name, points)];
  });
