// The data of the pages of an ablation and of a sweep, as ablations/report.py and sweeps/results.py make them.

import type { Child } from "../../pages/types.js";

export type Interval = [number, number] | null;
/** A number or null: pages check it by `isNumber`. */
export type MaybeNumber = any;
export type HyperparameterValues = Record<string, any>;

/** What both pages have. */
export interface StudyData {
  name: string;
  direction: "minimize" | "maximize";
  hyperparameter_values: Record<string, any[]>;
  maps_command?: string;
  about?: Record<string, any>;
}

export interface SeedRun {
  task: string;
  seed: number;
  value: MaybeNumber;
  state: string;
  directory: string | null;
  command: string | null;
}

export interface Band {
  steps: number[];
  middle: number[];
  low: number[];
  high: number[];
  n?: number[];
}

export interface Sensitivity {
  key: string;
  sensitivity: MaybeNumber;
  points: { value: any; mean: MaybeNumber; low?: number; high?: number; diverged: number; n: number }[];
}

export interface HeatmapCell {
  mean: MaybeNumber;
  diverged: number;
  n: number;
}

export interface ArmHeatmap {
  x_key: string;
  y_key: string;
  x: any[];
  y: any[];
  cells: HeatmapCell[][];
}

export interface Arm {
  name: string;
  differences: { key: string; reference: any; arm: any }[];
  parameters: MaybeNumber;
  shared: { num_equal_arrays: number; num_arrays: number; differing_paths: string[]; unmatched_paths: string[] } | null;
  run_counts: {
    all: number;
    ended: number;
    diverged: number;
    stuck: number;
    failed: number;
    rate: MaybeNumber;
    interval: Interval;
  };
  selected_hyperparameters: Record<string, HyperparameterValues>;
  seeds: SeedRun[];
  mean: MaybeNumber;
  interval: Interval;
  n: number;
  learned: { count: number; of: number };
  iqm: { value: MaybeNumber; interval: Interval; coverage: MaybeNumber } | null;
  profile: { steps: number[]; middle: number[]; low: number[] | null; high: number[] | null } | null;
  to_target: { reached: number; of: number; steps: MaybeNumber; flops: MaybeNumber } | null;
  bands: Record<string, Band>;
  heads: Record<string, Record<string, Band>>;
  sensitivity: Sensitivity[];
  heatmap: ArmHeatmap | null;
}

export interface Comparison {
  arm: string;
  reference: string;
  task: string | null;
  differences: { seed: number; task: string | null; value: number }[];
  difference: MaybeNumber;
  interval: Interval;
  n: number;
  p: MaybeNumber;
  p_adjusted: MaybeNumber;
  num_comparisons: number;
  p_permutation: MaybeNumber;
  p_bootstrap: MaybeNumber;
  spread_ratio: MaybeNumber;
  skewness: MaybeNumber;
  verdict: string;
  caveats: string[];
  improvement: { value: MaybeNumber; interval: Interval } | null;
  reason: string | null;
}

export interface Run {
  arm: string;
  task: string;
  seed: number;
  hyperparameters: HyperparameterValues;
  state: string;
  selection_value: MaybeNumber;
  reported_value: MaybeNumber;
  steps: MaybeNumber;
  started: string;
  commit: string;
  hardware: string;
  directory: string | null;
  command: string | null;
  trust: string;
  [name: string]: any;
}

export interface GradientStack {
  name: string;
  depths: number[];
  arms: { arm: string; depth: number; layers: number[]; low?: number[]; high?: number[] }[];
  ratio?: { arm: string; depth: number; last_over_first: number }[];
  exponent?: { arm: string; value: number }[];
}

export interface AblationData extends StudyData {
  question: string;
  reference: string;
  selection_metric: string;
  reported_metric: string;
  target: MaybeNumber;
  smallest_effect_of_interest: MaybeNumber;
  seeds: number[];
  tasks: string[];
  exploratory: boolean;
  warnings: string[];
  arms: Arm[];
  comparisons: Comparison[];
  summary: string[];
  runs: Run[];
}

export interface Trial {
  name: string;
  state: string;
  step: number;
  steps: number;
  value: MaybeNumber;
  message: string;
  overrides: Record<string, any>;
  curve: [number, number][];
  directory: string;
  command: string;
  trust: string;
}

export interface SweepData extends StudyData {
  metric: string;
  state: "running" | "stopped" | "done";
  counts: string;
  seconds_left: MaybeNumber;
  command: string;
  maps_command: string;
  importance: Record<string, MaybeNumber>;
  best: string | null;
  trials: Trial[];
}

/** A run of the page of all runs. */
export interface ListedRun {
  name: string;
  config: string;
  state: string;
  step: number;
  steps: number | null;
  /** When it was last written to, in milliseconds since 1970. */
  modified: number;
  bytes: number;
  /** Whether its report.html is there. */
  report: boolean;
  study: string;
  trust: string;
  problems: string[];
  /** For each key the index of its value, -1 for none. */
  values: number[];
  /** For each metric the index of its steps, and its values; 0 for none. */
  curves: ([number, number[]] | 0)[];
}

export interface ListedStudy {
  name: string;
  kind: string;
  state: string;
  counts: string;
  modified: number;
  bytes: number;
  page: string | null;
  problems: string[];
}

/** The data of the page of all runs, as run_listing/page.py makes them. */
export interface RunsPageData {
  folder: string;
  title: string;
  served: boolean;
  written: number;
  maps_command: string;
  train_command: string;
  metrics: { name: string; direction: "minimize" | "maximize" | null }[];
  /** How many of the metrics have columns in the table. */
  num_columns: number;
  left_out: string[];
  num_keys_left_out: number;
  group: string[];
  keys: { name: string; label: string; values: any[] }[];
  /** The first step of a curve, then the differences. */
  steps: number[][];
  runs: ListedRun[];
  studies: ListedStudy[];
  problems: string[];
}

/** What the reader has chosen to see on the page of all runs; its address keeps it. */
export interface RunsChoice {
  metric: string;
  /** Names of keys. */
  group: string[];
  band: "range" | "deviation" | "none";
  /** The share of the steps over which curves are averaged, in percent. */
  smoothing: number;
  logX: boolean;
  logY: boolean;
  filter: string;
  /** Names of the runs that are not drawn. */
  hidden: Set<string>;
  sort: string;
  descending: boolean;
}

export interface CurvePoint {
  step: number;
  value: number;
}

export interface TableColumn {
  head: string;
  title?: string;
  absent?: boolean;
  cell(row: any): Child | Child[];
}

/** A column that sorts its table by the value of each row. */
export interface SortableColumn {
  head: string;
  value?(row: any): any;
}

export interface RunColumn {
  head: string;
  value(run: Run): any;
  cell?(run: Run): Child | Child[];
}

export interface ParallelAxis {
  name: string;
  /** Share of the height, and words. */
  ticks: [number, string][];
  /** Where a trial crosses the axis, from 0 to 1, or null. */
  at(trial: Trial): MaybeNumber;
}
