// What was asked, the verdict, and the table of the arms behind it.

import { byId, createHtml, ownValue } from "../../pages/dom.js";
import { formatOrDash, formatValue, isNumber, pluralize, showInvisible, withSpaces } from "../../pages/formatting.js";
import { armLabel, hasSeveralTasks } from "./arms.js";
import { ablation } from "./page_data.js";
import {
  addPanel,
  commandNode,
  createDetails,
  createTable,
  decimalsFor,
  formatFixed,
  formatPercent,
  formatSignedFixed,
  formatTunedValue,
  intervalNodes,
  line,
  lowerIsBetter,
  scrollable,
  shortKey,
  small,
  taskName,
  tunedKeys,
  valueNode,
} from "./panels_and_tables.js";

/** @import { Arm, Comparison, TableColumn } from "./types.js" */

/**
 * @param {string} name
 * @param {string | null} [task]
 */
const findComparison = (name, task = null) =>
  ablation.comparisons.find((each) => each.arm === name && each.task === task);

/** @type {Record<string, [string, string]>} */
const VERDICTS = {
  better: ["▲", "better"],
  worse: ["▼", "worse"],
  "no difference seen": ["=", "no difference seen"],
  "not judged": ["?", "not judged"],
};

export function showHeader() {
  const about = ablation.about ?? {};
  byId("name").textContent = ablation.name ? `· ${showInvisible(ablation.name)}` : "";
  byId("question").textContent = showInvisible(ablation.question || ablation.name);
  const tasks = hasSeveralTasks ? [pluralize(ablation.tasks.length, "task")] : [];
  const runs = pluralize(ablation.runs.length, "run");
  const said = [
    [pluralize(ablation.arms.length, "arm"), pluralize(ablation.seeds.length, "seed"), ...tasks].join(" × "),
    runs,
    about.hardware && formatFacts(about.hardware),
    about.when && formatFacts(about.when),
    about.commit && `commit ${formatFacts(about.commit).replace(/\b([0-9a-f]{12})[0-9a-f]{28}\b/g, "$1")}`,
    about.versions &&
      ["jax", "flax"]
        .map((name) => ownValue(about.versions, name) && `${name} ${formatFacts(about.versions[name])}`)
        .filter(Boolean)
        .join(", "),
  ];
  byId("facts").replaceChildren(...said.filter(Boolean).map((words) => createHtml("span", {}, words)));
  if (about.command) byId("facts").after(commandNode(formatFacts(about.command)));
  byId("summary").replaceChildren(...ablation.summary.map((words) => createHtml("li", {}, showInvisible(words))));
  byId("warnings").replaceChildren(
    ...ablation.warnings.map((words) => createHtml("li", { class: "notice" }, showInvisible(words))),
  );
}

/**
 * Facts of any form as one line.
 * @param {any} value
 * @returns {string}
 */
function formatFacts(value) {
  if (Array.isArray(value)) return value.map(formatFacts).join(", ");
  if (value && typeof value === "object")
    return Object.entries(value)
      .map(([key, each]) => `${showInvisible(key)} ${formatFacts(each)}`)
      .join(", ");
  return formatValue(value);
}

// --- the table of the arms ---

/** The table of the arms; columns that no arm fills are left out. */
function armsTable() {
  const columns = [...valueColumns(), ...comparisonColumns(), ...costColumns()];
  const filled = columns.filter(({ absent }) => !absent);
  return createTable("Arms", filled, ablation.arms, { id: "arms-table", class: "cards" });
}

/**
 * What each arm reached by itself.
 * @returns {TableColumn[]}
 */
function valueColumns() {
  const intervals = ablation.arms.map((arm) => arm.interval);
  const means = ablation.arms.map((arm) => arm.mean);
  const decimals = decimalsFor(intervals, means);
  /** @param {Arm} arm */
  const reference = (arm) => (arm.name === ablation.reference ? [small("the reference")] : []);
  return [
    { head: "arm", cell: (arm) => [line(...armLabel(arm.name)), ...reference(arm)] },
    {
      head: withSpaces(ablation.reported_metric),
      title: `mean over the seeds that finished at the chosen values, 95% t interval if all did; ${lowerIsBetter ? "lower" : "higher"} is better`,
      cell: (arm) => [
        line(createHtml("b", {}, valueNode(arm.mean, formatFixed(arm.mean, decimals)))),
        small(...intervalNodes(arm.interval, decimals)),
        small(pluralize(arm.n, "seed")),
      ],
    },
    {
      head: "IQM",
      title: "interquartile mean over tasks and seeds; stratified BCa bootstrap interval, from 5 seeds on",
      absent: !ablation.arms.some(({ iqm }) => iqm?.interval),
      cell: ({ iqm }) =>
        isNumber(iqm?.value)
          ? [
              line(valueNode(iqm.value, formatFixed(iqm.value, decimals))),
              small(...intervalNodes(iqm.interval, decimals)),
              ...(isNumber(iqm.coverage) ? [small(`covers ${formatPercent(iqm.coverage)}`)] : []),
            ]
          : [],
    },
  ];
}

/**
 * What each arm is against the reference.
 * @returns {TableColumn[]}
 */
function comparisonColumns() {
  const overall = ablation.arms.flatMap((arm) => findComparison(arm.name) ?? []);
  const intervals = overall.map((each) => each.interval);
  const differences = overall.map((each) => each.difference);
  const decimals = decimalsFor(intervals, differences);
  return [
    {
      head: "difference",
      title:
        "paired over seeds, arm minus reference; 95% t intervals, adjusted for the number of comparisons so that all " +
        "of them contain the truth in 95% of studies; none where a run diverged",
      cell: (arm) => differenceCell(findComparison(arm.name), decimals),
    },
    {
      head: "p (adjusted)",
      title:
        "paired t test, or flipping the signs of the paired differences where they are all equal or a run diverged; " +
        "times the number of comparisons; below it the uncorrected value, and that of flipping the signs",
      absent: !overall.some(({ p_adjusted }) => isNumber(p_adjusted)),
      cell: (arm) => pValueCell(findComparison(arm.name)),
    },
    { head: "verdict", cell: (arm) => verdictCell(findComparison(arm.name)) },
    {
      head: "P(better)",
      title:
        "how probably a run of the arm is better than a run of the reference, mean over tasks; stratified bootstrap " +
        "interval from 5 seeds on, too narrow where it is near 0 or 1",
      absent: !overall.some(({ improvement, n }) => isNumber(improvement?.value) && n > 1),
      cell: (arm) => improvementCell(findComparison(arm.name)?.improvement),
    },
  ];
}

/**
 * What each arm takes, and at which values.
 * @returns {TableColumn[]}
 */
function costColumns() {
  const target = `${withSpaces(ablation.selection_metric)} of ${formatOrDash(ablation.target)}`;
  return [
    {
      head: "learned",
      title: "runs at the chosen values that neither diverged nor got stuck",
      absent: ablation.arms.every(({ learned }) => learned.count === learned.of),
      cell: ({ learned }) =>
        line(valueNode(learned.count, formatOrDash(learned.count)), ` of ${formatOrDash(learned.of)}`),
    },
    {
      head: "diverged",
      title: "over all tuned values, of the runs that completed; 95% Wilson interval",
      cell: divergedCell,
    },
    {
      head: "to target",
      title: `runs that reach ${target}; medians, counting runs that never reach it as the slowest`,
      absent: !ablation.arms.some((arm) => arm.to_target),
      cell: ({ to_target: reached }) => targetCell(reached),
    },
    {
      head: "chosen",
      title: `${tunedKeys().map(shortKey).join(", ")}; by ${withSpaces(ablation.selection_metric)}`,
      absent: !tunedKeys().length,
      cell: selectedHyperparametersCell,
    },
    {
      head: "parameters",
      absent: !ablation.arms.some((arm) => isNumber(arm.parameters)),
      cell: (arm) => valueNode(arm.parameters, formatOrDash(arm.parameters)),
    },
  ];
}

/**
 * @param {Comparison | undefined} pair
 * @param {number} decimals
 */
const differenceCell = (pair, decimals) =>
  pair
    ? [
        line(createHtml("b", {}, valueNode(pair.difference, formatSignedFixed(pair.difference, decimals)))),
        small(...intervalNodes(pair.interval, decimals, formatSignedFixed)),
      ]
    : [];

/** @param {number | null} p */
const formatPValue = (p) => (isNumber(p) && p < 0.001 ? "< 0.001" : formatFixed(p, 3));
/** @param {Comparison | undefined} pair */
function pValueCell(pair) {
  if (!pair || !isNumber(pair.p_adjusted)) return [];
  return [
    line(valueNode(pair.p_adjusted, formatPValue(pair.p_adjusted))),
    small("p ", valueNode(pair.p, formatPValue(pair.p))),
    small("permutation p ", valueNode(pair.p_permutation, formatPValue(pair.p_permutation))),
    ...(isNumber(pair.p_bootstrap)
      ? [small("bootstrap p ", valueNode(pair.p_bootstrap, formatPValue(pair.p_bootstrap)))]
      : []),
  ];
}

/** @param {Comparison | undefined} pair */
function verdictCell(pair) {
  if (!pair) return [];
  const [sign, words] = VERDICTS[pair.verdict] ?? ["", showInvisible(String(pair.verdict))];
  const badge = createHtml(
    "span",
    { class: `verdict ${pair.verdict.split(" ")[0]}` },
    createHtml("i", { "aria-hidden": "true" }, sign),
    words,
  );
  if (pair.verdict === "not judged") return [line(badge), small(showInvisible(pair.reason ?? ""))];
  const notes = [...(ablation.exploratory ? ["exploratory"] : []), ...pair.caveats];
  return [line(badge), ...notes.map((note) => small(showInvisible(note)))];
}

/** @param {Comparison["improvement"] | undefined} improvement */
function improvementCell(improvement) {
  if (!isNumber(improvement?.value)) return [];
  return [
    line(valueNode(improvement.value, formatFixed(improvement.value, 2))),
    small(...intervalNodes(improvement.interval, 2)),
  ];
}

/** @param {Arm} arm */
function divergedCell({ run_counts: runs }) {
  const lines = [line(valueNode(runs.diverged, formatOrDash(runs.diverged)), ` of ${formatOrDash(runs.ended)}`)];
  if (runs.interval) {
    const ends = runs.interval.map((end) => valueNode(end, formatPercent(end)));
    lines.push(small(createHtml("span", { class: "interval" }, "[", ends[0], ", ", ends[1], "]")));
  }
  if (runs.failed) lines.push(small(`${formatOrDash(runs.failed)} failed`));
  return lines;
}

/** @param {Arm["to_target"]} reached */
function targetCell(reached) {
  if (!reached) return [];
  const lines = [line(valueNode(reached.reached, formatOrDash(reached.reached)), ` of ${formatOrDash(reached.of)}`)];
  if (isNumber(reached.steps)) lines.push(small(valueNode(reached.steps, formatOrDash(reached.steps)), " steps"));
  if (isNumber(reached.flops)) lines.push(small(valueNode(reached.flops, formatFlops(reached.flops))));
  return lines;
}

/**
 * Floating-point operations with the prefix that a person reads.
 * @param {number} count
 */
function formatFlops(count) {
  const prefixes = ["", "k", "M", "G", "T", "P", "E", "Z"];
  const power = Math.min(prefixes.length - 1, Math.max(0, Math.floor(Math.log10(count || 1) / 3)));
  return `${Number((count / 1000 ** power).toPrecision(3))} ${prefixes[power]}FLOP`;
}

/** @param {Arm} arm */
function selectedHyperparametersCell({ selected_hyperparameters: selected }) {
  // One line a task where there are several, else one line a key.
  return Object.entries(selected ?? {}).flatMap(([task, values]) => {
    /** @param {string} key */
    const words = (key) => formatTunedValue(ownValue(values, key));
    return hasSeveralTasks
      ? [small(`${taskName(task)}: `, createHtml("b", {}, tunedKeys().map(words).join(", ")))]
      : tunedKeys().map((key) => small(`${shortKey(key)} `, createHtml("b", {}, words(key))));
  });
}

/** What the analysis says of each comparison, in its own words. */
function comparisonNotes() {
  const said = ablation.comparisons.filter(({ reason }) => reason);
  if (!said.length) return [];
  const rows = said.map(({ arm, task, reason }) =>
    createHtml(
      "li",
      {},
      createHtml("b", {}, `${showInvisible(arm)}${hasSeveralTasks && task !== null ? ` on ${taskName(task)}` : ""}: `),
      showInvisible(reason ?? ""),
    ),
  );
  return [createDetails("Each comparison in words", createHtml("ul", { class: "words" }, ...rows))];
}

/** The comparisons task by task, where there are several. */
function tasksTable() {
  const rows = ablation.comparisons.filter(({ task }) => task !== null);
  if (!hasSeveralTasks || !rows.length) return [];
  const decimals = decimalsFor(
    rows.map(({ interval }) => interval),
    rows.map(({ difference }) => difference),
  );
  /** @type {TableColumn[]} */
  const columns = [
    { head: "arm", cell: ({ arm }) => line(...armLabel(arm)) },
    { head: "task", cell: ({ task }) => taskName(task) },
    { head: "difference", cell: (pair) => differenceCell(pair, decimals) },
    { head: "p (adjusted)", cell: pValueCell },
    { head: "verdict", cell: verdictCell },
  ];
  const table = createTable("Each task by itself", columns, rows, { id: "tasks-table", class: "cards" });
  return [createDetails("Each task by itself", table)];
}

export function showArms() {
  const by = withSpaces(ablation.selection_metric);
  const how = [`${withSpaces(ablation.reported_metric)}, ${lowerIsBetter ? "lower" : "higher"} is better`];
  if (tunedKeys().length) how.push(`${tunedKeys().map(shortKey).join(" and ")} chosen by ${by} for each arm`);
  if (isNumber(ablation.smallest_effect_of_interest)) how.push(`the smallest difference that matters: ${formatOrDash(ablation.smallest_effect_of_interest)}`);
  if (isNumber(ablation.target)) how.push(`target: ${by} of ${formatOrDash(ablation.target)}`);
  addPanel("arms", "Arms", `${how.join("; ")}.`, scrollable(armsTable()), ...tasksTable(), ...comparisonNotes());
}
