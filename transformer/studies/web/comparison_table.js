// What was asked, the verdict, and the table of the arms behind it.

import { byId, make, own } from "../../pages/dom.js";
import { brief, counted, isNumber, spaced, visible, worded } from "../../pages/formatting.js";
import { named, severalTasks } from "./arms.js";
import { data } from "./page_data.js";
import {
  addPanel, commandLine, decimalsFor, exact, fixed, fold, intervalOf, line, makeTable, percent, scrolling, shortKey,
  signedFixed, small, taskName, tunedKeys, tunedWords,
} from "./panels_and_tables.js";

const comparisonOf = (name, task = null) => data.comparisons.find((each) => each.arm === name && each.task === task);

const VERDICTS = {
  better: ["▲", "better"],
  worse: ["▼", "worse"],
  "no difference seen": ["=", "no difference seen"],
  "not said": ["?", "not said"],
};

export function showHeader() {
  const about = data.about ?? {};
  byId("name").textContent = data.name ? `· ${visible(data.name)}` : "";
  byId("question").textContent = visible(data.question || data.name);
  const tasks = severalTasks ? [counted(data.tasks.length, "task")] : [];
  const runs = counted(data.cells.length, "run");
  const said = [
    [counted(data.arms.length, "arm"), counted(data.seeds.length, "seed"), ...tasks].join(" × "),
    runs,
    about.hardware && plainWords(about.hardware),
    about.when && plainWords(about.when),
    about.commit && `commit ${plainWords(about.commit).replace(/\b([0-9a-f]{12})[0-9a-f]{28}\b/g, "$1")}`,
    about.versions &&
      ["jax", "flax"]
        .map((name) => own(about.versions, name) && `${name} ${plainWords(about.versions[name])}`)
        .filter(Boolean)
        .join(", "),
  ];
  byId("facts").replaceChildren(...said.filter(Boolean).map((words) => make("span", {}, words)));
  if (about.command) byId("facts").after(commandLine(plainWords(about.command)));
  byId("summary").replaceChildren(...data.summary.map((words) => make("li", {}, visible(words))));
  byId("warnings").replaceChildren(...data.warnings.map((words) => make("li", { class: "notice" }, visible(words))));
}

/** Facts of any form as one line. */
function plainWords(value) {
  if (Array.isArray(value)) return value.map(plainWords).join(", ");
  if (value && typeof value === "object")
    return Object.entries(value)
      .map(([key, each]) => `${visible(key)} ${plainWords(each)}`)
      .join(", ");
  return worded(value);
}

// --- the table of the arms ---

/** The table of the arms; columns that no arm fills are left out. */
function armsTable() {
  const columns = [...valueColumns(), ...comparisonColumns(), ...costColumns()];
  const filled = columns.filter(({ absent }) => !absent);
  return makeTable("Arms", filled, data.arms, { id: "arms-table", class: "cards" });
}

/** What each arm reached by itself. */
function valueColumns() {
  const intervals = data.arms.map((arm) => arm.interval);
  const means = data.arms.map((arm) => arm.mean);
  const decimals = decimalsFor(intervals, means);
  const reference = (arm) => (arm.name === data.reference ? [small("the reference")] : []);
  return [
    { head: "arm", cell: (arm) => [line(...named(arm.name)), ...reference(arm)] },
    {
      head: spaced(data.reported),
      title: `mean over the seeds at the chosen values, 95 % t interval; ${lowerIsBetter ? "lower" : "higher"} is better`,
      cell: (arm) => [
        line(make("b", {}, exact(arm.mean, fixed(arm.mean, decimals)))),
        small(...intervalOf(arm.interval, decimals)),
        small(counted(arm.n, "seed")),
      ],
    },
    {
      head: "IQM",
      title: "interquartile mean over tasks and seeds, stratified BCa bootstrap interval",
      absent: !data.arms.some(({ iqm }) => iqm?.interval),
      cell: ({ iqm }) =>
        isNumber(iqm?.value)
          ? [line(exact(iqm.value, fixed(iqm.value, decimals))), small(...intervalOf(iqm.interval, decimals))]
          : [],
    },
  ];
}

/** What each arm is against the reference. */
function comparisonColumns() {
  const overall = data.arms.map((arm) => comparisonOf(arm.name)).filter(Boolean);
  const intervals = overall.map((each) => each.interval);
  const differences = overall.map((each) => each.difference);
  const decimals = decimalsFor(intervals, differences);
  return [
    {
      head: "difference",
      title: "paired over seeds, arm minus reference, 95 % t interval",
      cell: (arm) => differenceOf(comparisonOf(arm.name), decimals),
    },
    {
      head: "p (Holm)",
      title:
        "paired t test, after Holm's correction; below it the uncorrected value, and that of flipping the signs of " +
        "the paired differences",
      absent: !overall.some(({ p_holm }) => isNumber(p_holm)),
      cell: (arm) => probabilitiesOf(comparisonOf(arm.name)),
    },
    { head: "verdict", cell: (arm) => verdictOf(comparisonOf(arm.name)) },
    {
      head: "power",
      title:
        "the smallest difference that as many seeds see four times in five, and the seeds that others need; " +
        "at the strictest step of Holm's correction",
      absent: !overall.some(({ power }) => isNumber(power?.detectable)),
      cell: (arm) => powerOf(comparisonOf(arm.name)),
    },
  ];
}

/** What each arm takes, and at which values. */
function costColumns() {
  const target = `${spaced(data.chosen_by)} of ${brief(data.target)}`;
  return [
    {
      head: "learned",
      title: "of the runs at the chosen values that ended by themselves: neither diverged nor stuck",
      absent: data.arms.every(({ learned }) => learned.count === learned.of),
      cell: ({ learned }) => line(exact(learned.count, brief(learned.count)), ` of ${brief(learned.of)}`),
    },
    {
      head: "diverged",
      title: "of the arm's runs at every tuned value that ended by themselves; 95 % Wilson interval",
      cell: divergedOf,
    },
    {
      head: "to target",
      title: `runs that reach ${target}; medians, in which a run that never does is later than any`,
      absent: !data.arms.some((arm) => arm.to_target),
      cell: ({ to_target: reached }) => targetOf(reached),
    },
    {
      head: "chosen",
      title: `${tunedKeys().map(shortKey).join(", ")}; by ${spaced(data.chosen_by)}`,
      absent: !tunedKeys().length,
      cell: chosenOf,
    },
    {
      head: "parameters",
      absent: !data.arms.some((arm) => isNumber(arm.parameters)),
      cell: (arm) => exact(arm.parameters, brief(arm.parameters)),
    },
  ];
}

const differenceOf = (pair, decimals) =>
  pair
    ? [
        line(make("b", {}, exact(pair.difference, signedFixed(pair.difference, decimals)))),
        small(...intervalOf(pair.interval, decimals, signedFixed)),
      ]
    : [];

const probability = (p) => (isNumber(p) && p < 0.001 ? "< 0.001" : fixed(p, 3));
function probabilitiesOf(pair) {
  if (!pair || !isNumber(pair.p_holm)) return [];
  return [
    line(exact(pair.p_holm, probability(pair.p_holm))),
    small("p ", exact(pair.p, probability(pair.p))),
    small("permutation p ", exact(pair.p_permutation, probability(pair.p_permutation))),
  ];
}

function verdictOf(pair) {
  if (!pair) return [];
  const [sign, words] = VERDICTS[pair.verdict] ?? ["", visible(String(pair.verdict))];
  const badge = make(
    "span",
    { class: `verdict ${pair.verdict.split(" ")[0]}` },
    make("i", { "aria-hidden": "true" }, sign),
    words,
  );
  return [line(badge), ...(pair.verdict === "not said" ? [small(visible(pair.why ?? ""))] : [])];
}

function divergedOf({ runs }) {
  const lines = [line(exact(runs.diverged, brief(runs.diverged)), ` of ${brief(runs.ended)}`)];
  if (runs.interval) {
    const ends = runs.interval.map((end) => exact(end, percent(end)));
    lines.push(small(make("span", { class: "interval" }, "[", ends[0], ", ", ends[1], "]")));
  }
  if (runs.failed) lines.push(small(`${brief(runs.failed)} failed`));
  return lines;
}

function targetOf(reached) {
  if (!reached) return [];
  const lines = [line(exact(reached.reached, brief(reached.reached)), ` of ${brief(reached.of)}`)];
  if (isNumber(reached.steps)) lines.push(small(exact(reached.steps, brief(reached.steps)), " steps"));
  if (isNumber(reached.flops)) lines.push(small(exact(reached.flops, operations(reached.flops))));
  return lines;
}

/** Floating-point operations with the prefix that a person reads. */
function operations(count) {
  const prefixes = ["", "k", "M", "G", "T", "P", "E", "Z"];
  const power = Math.min(prefixes.length - 1, Math.max(0, Math.floor(Math.log10(count || 1) / 3)));
  return `${Number((count / 1000 ** power).toPrecision(3))} ${prefixes[power]}FLOP`;
}

function chosenOf({ chosen }) {
  // One line a task where there are several, else one line a key.
  return Object.entries(chosen ?? {}).flatMap(([task, values]) => {
    const words = (key) => tunedWords(own(values, key));
    return severalTasks
      ? [small(`${taskName(task)}: `, make("b", {}, tunedKeys().map(words).join(", ")))]
      : tunedKeys().map((key) => small(`${shortKey(key)} `, make("b", {}, words(key))));
  });
}

function powerOf(pair) {
  const power = pair?.power;
  if (!isNumber(power?.detectable)) return [];
  const lines = [line("sees ", exact(power.detectable, roughly(power.detectable)))];
  for (const { difference, seeds } of power.seeds_for ?? [])
    lines.push(small("for ", exact(difference, brief(difference)), ": ", exact(seeds, counted(seeds, "seed"))));
  return lines;
}

const roughly = (value) => brief(Number(value.toPrecision(2)));

/** What the analysis says of each comparison, in its own words. */
function whyList() {
  const said = data.comparisons.filter(({ why }) => why);
  if (!said.length) return [];
  const rows = said.map(({ arm, task, why }) =>
    make(
      "li",
      {},
      make("b", {}, `${visible(arm)}${severalTasks && task !== null ? ` on ${taskName(task)}` : ""}: `),
      visible(why),
    ),
  );
  return [fold("Each comparison in words", make("ul", { class: "words" }, ...rows))];
}

/** The comparisons task by task, where there are several. */
function tasksTable() {
  const rows = data.comparisons.filter(({ task }) => task !== null);
  if (!severalTasks || !rows.length) return [];
  const decimals = decimalsFor(
    rows.map(({ interval }) => interval),
    rows.map(({ difference }) => difference),
  );
  const columns = [
    { head: "arm", cell: ({ arm }) => line(...named(arm)) },
    { head: "task", cell: ({ task }) => taskName(task) },
    { head: "difference", cell: (pair) => differenceOf(pair, decimals) },
    { head: "p (Holm)", cell: probabilitiesOf },
    { head: "verdict", cell: verdictOf },
  ];
  const table = makeTable("Each task by itself", columns, rows, { id: "tasks-table", class: "cards" });
  return [fold("Each task by itself", table)];
}

export function showArms() {
  const by = spaced(data.chosen_by);
  const how = [`${spaced(data.reported)}, ${lowerIsBetter ? "lower" : "higher"} is better`];
  if (tunedKeys().length) how.push(`${tunedKeys().map(shortKey).join(" and ")} chosen by ${by} for each arm`);
  if (isNumber(data.notable)) how.push(`the smallest difference that matters: ${brief(data.notable)}`);
  if (isNumber(data.target)) how.push(`target: ${by} of ${brief(data.target)}`);
  addPanel("arms", "Arms", `${how.join("; ")}.`, scrolling(armsTable()), ...tasksTable(), ...whyList());
}
