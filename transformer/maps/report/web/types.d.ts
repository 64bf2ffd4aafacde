// The data of the page of a run, as transformer/maps/report/page.py writes them, and what the scripts make of them.

import type { HeadMap } from "./map_data.js";

export type Side = "query" | "key";

/** One resolution of the maps of a site, coarse to fine; `steps` are the indices of data.steps that have it. */
export interface Level {
  name: string;
  queries: number;
  keys: number;
  queryBlock: number;
  keyBlock: number;
  triangular: boolean;
  split: boolean;
  steps: number[];
}

/** An attention module. */
export interface Site {
  name: string;
  query: string;
  key: string;
  layers: string[];
  heads: string[];
  causal: boolean;
  values: "probability" | "sample" | "reweighted";
  /** Gold alignments by example: query, key, and whether the pair is sure. */
  goldAlignments: [number, number, boolean][][] | null;
  levels: Level[];
  rows?: { positions: number[]; keys: number; steps: number[] };
  top?: { queries: number; every: number; k: number; steps: number[] };
  missing: { what: string; there: number }[];
}

export interface AxisData {
  kind: "tokens" | "grid" | "frames" | "points" | "steps" | "slots" | "experts";
  shape: number[];
  stride: number;
  offset: number;
  numLeadingPositions: number;
  /** Height and width of an image, and of it as the page has it. */
  image: [number, number, number, number] | null;
  sound: boolean;
  /** Bins, times, and frames of the longest example. */
  spectrogram: [number, number, number] | null;
}

/** One side of a map on one example. */
export interface Axis extends AxisData {
  name: string;
  index: number;
  tokens: string[];
  example: number;
}

export interface AxisPair {
  query: Axis;
  key: Axis;
}

export interface Tick {
  cell: number;
  text: string;
  token?: string;
  tick?: boolean;
}

export interface RoleKind {
  role: string;
  minScore?: number;
  badge: string;
  name: string;
  does?: string;
  keys?: string;
}

export interface RoleEvidence {
  kind: RoleKind;
  band: [number, number];
  weight: number;
  uniform: number;
  score: number;
  rows: number;
}

export interface HeadRole {
  site: number;
  layer: number;
  head: number;
  role: RoleKind | null;
  plays: boolean;
  evidence: RoleEvidence[];
  uniformity: number;
  simplerRules: [string, number][];
  chip?: HTMLElement;
}

export interface StatisticsTable {
  source: string;
  names: string[];
  steps: number[];
  ranges: [number, number][];
}

export interface LoadedTable extends StatisticsTable {
  value(statistic: string, layer: number, head: number, column: number): number;
}

export interface RoleOnset {
  site: number;
  layer: number;
  head: number;
  role: string;
  score: number;
  onset: number;
  sentence: string;
}

/** Points [step, value] by metric and split. */
export type Curves = Record<string, Record<string, [number, number][]>>;

export interface SampleGroup {
  split: string;
  step: number;
  rows: Record<string, string>[];
  total: number;
  images: string[];
}

/** The run that a run is compared with. */
export interface OtherRun {
  title: string;
  config: [string, string][];
  curves: Curves;
  /** Site, layer, head, the other run's layer and head, and their similarity. */
  matches: [number, number, number, number, number, number][];
  steps: number[];
  codes: number;
  sites: { levels: Level[] }[];
}

export interface SiteProjections {
  valueNorms: boolean;
  vectorsRequested: boolean;
  queryKeyVectors: { depth: number; groups: number; scale: number; whole: boolean } | null;
}

/** A difference of losses, and the ends of its interval. */
export type LossDifference = [number, number | null, number | null];

export interface AblatedCheckpoint {
  step: number;
  loss: number;
  units: number;
  /** Of importance with the loss differences of zeroed and of mean-ablated heads. */
  correlations: [number, number];
  /** Site, layer, head, the loss differences when it is zeroed and mean-ablated, and its importance. */
  heads: [number, number, number, LossDifference, LossDifference, number][];
}

/** What each head is worth, as launch.ablate_heads measured it. */
export interface HeadAblation {
  split: string;
  unit: string;
  checkpoints: AblatedCheckpoint[];
  pruning: { step: number; curves: ["importance" | "knock_out" | "random", number[]][] } | null;
}

export interface ReportData {
  title: string;
  singleText: boolean;
  /** The name in the config, "" if there is none. */
  configName: string;
  configHash: string;
  config: [string, string][];
  parameters: number | null;
  device: { count: number; kind: string } | null;
  commit: string | null;
  started: string | null;
  curves: Curves;
  /** What each metric of the library means, with its unit. */
  metricMeanings: Record<string, string>;
  samples: SampleGroup[];
  damageMessages: string[];
  titles: string[];
  tokens: Record<string, string[][]>;
  axes: Record<string, AxisData>;
  steps: number[];
  codes: number;
  omittedSteps: number[];
  initialView: { site: number; example: number; layer: number; head: number };
  sites: Site[];
  roles: {
    step: number;
    minScore: number;
    nearUniform: number;
    kinds: RoleKind[];
    heads: [
      number,
      number,
      number,
      number,
      [number, [number, number], number, number, number, number][],
      number,
      [string, number][],
    ][];
    distances: ({ uniform: number; heads: (number | null)[][] } | null)[];
  };
  history: {
    codes: number;
    scales: Record<string, { words: string; unit: string; low: number | null; high: number | null }>;
    sites: { tables: StatisticsTable[]; changes: [string, number, number, number[]][] }[];
    roles: RoleOnset[];
  };
  headAblation: HeadAblation | null;
  otherRun: OtherRun | null;
  projections: SiteProjections[] | null;
}

/** What the page shows; indices, null for nothing. */
export interface ViewState {
  site: number;
  example: number;
  layer: number;
  head: number;
  step: number;
  row: number | null;
  column: number | null;
  goldAlignments: boolean;
  compare: number | "run" | null;
  view: string;
  statistic: string | null;
  lines: boolean;
  also: number[];
  tokens: number[];
}

export type Choose = (changes: Partial<ViewState>) => void;
/** Called with the position that is pointed at; nulls where there is none. */
export type PointAt = (query: number | null, key: number | null, event?: PointerEvent) => void;
/** Called with the position that is held or let go of; one of the two is null. */
export type Hold = (query: number | null, key: number | null) => void;
export type Highlight = (query: number | null, key: number | null) => void;

/** What the grid of heads and the large map draw. */
export interface HeadView {
  site: Site;
  /** Whether values are differences in [-1, 1] rather than weights in [0, 1]. */
  signed: boolean;
  /** Words behind the title; "" where weights are shown. */
  titleSuffix: string;
  /** The map of a head, at most 64 cells a side where the site is long. */
  gridMap(layer: number, head: number): HeadMap;
  /** The map of the chosen head at the finest level that the page has. */
  detail: HeadMap;
  /** What stands in the head's place in the title, where it is not one head alone. */
  heads?: string;
  /** A map a layer, of a view that has layers and no heads. */
  layers?: HeadMap[];
  /** What a query does to its keys, and what its queries do to a key. */
  verbs?: [string, string];
  /** The heads whose lines are drawn, and their maps. */
  planes?: [number, HeadMap][] | null;
  /** The tooltip of a cell of `detail`. */
  tooltip?(query: number, key: number): string;
}

/** The cells of a map: how many, and how many positions each stands for. */
export interface Grid {
  queries: number;
  keys: number;
  queryBlock: number;
  keyBlock: number;
}

/** Something else to show than the weights. */
export interface View {
  isActive(state: ViewState): boolean;
  headView(state: ViewState): Promise<HeadView>;
}

/** Where the parts of the large map lie, in pixels. */
export interface HeatmapLayout {
  left: number;
  top: number;
  above: number;
  aside: number;
  slanted: boolean;
  wide: number;
  tall: number;
  gap: number;
  across: number;
  down: number;
  width: number;
  height: number;
}

export interface Heatmap {
  name: string;
  site: Site;
  axes: AxisPair;
  box: HeatmapLayout;
  ticks: Record<Side, Tick[]>;
  canvas: HTMLCanvasElement;
  svg: SVGSVGElement;
  labels: Record<Side, Map<number, SVGElement>>;
  overlay: SVGGElement;
  profile: SVGGElement;
  highlight: SVGGElement;
  goldAlignments: [number, number, boolean][] | null | undefined;
  plane: HeadMap;
  signed: boolean;
  means: Float32Array | null;
  highest: number;
}

export interface LinesLayout {
  width: number;
  height: number;
  tall: number;
  top: number;
  left: number;
  right: number;
  across: number;
}

/** Lines of like weight, with the cells that each goes from and to. */
export interface LineGroup {
  ink: number;
  width: number;
  dash: number[];
  ends: number[];
}

export interface AttentionLines {
  name: string;
  site: Site;
  axes: AxisPair;
  box: LinesLayout;
  canvas: HTMLCanvasElement;
  svg: SVGSVGElement;
  labels: Record<Side, Map<number, SVGElement>>;
  scale: number;
  planes: [number, HeadMap][];
  signed: boolean;
  causal: boolean;
  summed: number[];
  sums: { rows: number[]; queries: number[]; key: number | null; signed: boolean; minWeight: number };
  drawnSelection?: string;
  drawnPlanes?: [number, HeadMap][];
}

/** Where the cells of the heat map of heads and steps lie, in pixels. */
export interface HistoryLayout {
  row: number;
  column: number;
  columns: number;
  heads: number;
  left: number;
  across: number;
  down: number;
  x(at: number): number;
  y(layer: number, head: number): number;
  column_of(step: number): number;
  chosen?: number;
}

export type StripKind = "query" | "own" | "layer" | "head";

/** Where an image of a strip differs from the state. */
export interface StripPlace {
  query?: number;
  layer?: number;
  head?: number;
}

export interface StripItem {
  place: StripPlace;
  canvas: HTMLCanvasElement;
  svg: SVGSVGElement;
  button: HTMLButtonElement;
  name: HTMLElement;
  weight: HTMLElement;
}

export interface Strip {
  kind: StripKind;
  items: StripItem[];
  title: HTMLElement;
  strip: HTMLElement;
  size: { scale: number; width: number; height: number };
  element: HTMLElement;
  wanted: object | null;
}

/** Paints the large image for a position that is highlighted. */
export type Painter = (shown: HeadView, state: ViewState, query: number | null, key: number | null) => void;

/** A thumbnail of the grid of heads. */
export interface GridCell {
  layer: number;
  head: number;
  button: HTMLButtonElement;
  canvas: HTMLCanvasElement;
  bar: HTMLElement;
  role: string;
}

export interface HeadDistance {
  at: [number, number];
  name: [string, string];
  pixels: number;
}

/** What is subtracted from the weights: where its maps lie, and what both sides are called. */
export interface ComparedSide {
  run: string;
  step: number;
  levels: Level[];
  head(layer: number, head: number): [number, number];
  ours: string;
  theirs(layer: number, head: number): string;
}

/** What a strip of images goes over. */
export interface StripDefinition {
  rows(site: Site, axes: AxisPair): StripPlace[][];
  name(place: StripPlace, site: Site, axes: AxisPair): (Node | string)[];
  title(words: { layer: string; head: string; read: string }, axes: AxisPair, site: Site): string;
}
