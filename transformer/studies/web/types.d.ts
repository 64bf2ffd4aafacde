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

export interface TableColumn {
  head: string;
  title?: string;
  absent?: boolean;
  cell(row: any): Child | Child[];
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
