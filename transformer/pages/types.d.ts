// Types that the scripts of all pages share.

export type Attributes = Record<string, string | number | boolean | null | undefined>;
export type Child = Node | string;
export type CellValue = string | number | boolean | object | null | undefined;

/** How a series is drawn: the classes of its color and dash, and the number of its marker, null for a line alone. */
export interface SeriesStyle {
  ink: string;
  shape: number | null;
}

export interface Box {
  left: number;
  right: number;
  top: number;
  bottom: number;
}

/** Where a value lies between the ends of an axis, from 0 to 1, and the values that are labeled. */
export interface Scale {
  ticks: [any, string][];
  share(value: any): number;
}

/** Two axes as drawn, and where values lie in pixels. */
export interface Axes {
  box: Box;
  parts: SVGElement[];
  atX(value: any): number;
  atY(value: number): number;
}

/** A point of a figure that can be read with the pointer or the arrow keys. */
export interface Stop {
  x: number;
  y: number;
  from?: number;
  to?: number;
  reach?: number;
  value?: any;
  words(): Child[];
}

export interface Painting {
  height: number;
  parts: Node[];
  description: string;
  stops?: Stop[];
  /** Whether a stop is a whole column rather than a point. */
  along?: boolean;
  frame?: Axes | null;
}

export interface FigureOptions {
  id: string;
  title: string;
  note?: string;
  /** Nodes under the title. */
  legend?: Child[] | null;
  /** The numbers of the figure as rows. */
  table?: (() => CellValue[][]) | null;
  /** Called where a stop is clicked or Enter is pressed on it. */
  act?: ((value: any) => void) | null;
  /** What is drawn at a width, or null where nothing is to be seen now. */
  paint(width: number): Painting | null;
}

export interface Figure {
  id: string;
  title: string;
  element: HTMLElement;
  svg: SVGSVGElement;
  paint: FigureOptions["paint"];
  table: (() => CellValue[][]) | null;
  act: ((value: any) => void) | null;
  stops: Stop[];
  along: boolean;
  at: number | null;
  marked: number | null;
  height: number;
  frame: Axes | null;
  pointer: SVGGElement | null;
  now: SVGLineElement | null;
  /** Name of exported files, by default the id. */
  file?: string;
  legend?: [SeriesStyle, string][];
}

export interface Point {
  x: any;
  /** A number or null, as low and high. */
  middle: any;
  low?: any;
  high?: any;
  /** How many runs diverged at x, and how many seeds the value is of. */
  diverged?: any;
  n?: any;
}

export interface Series {
  /** What marks its line in the page, as `data-series`. */
  id?: string | null;
  name: string;
  look: SeriesStyle;
  points: Point[];
}

export interface LineChart {
  series: Series[];
  xScale(values: any[]): Scale;
  xName: string;
  yName?: string;
  logarithmic?: boolean | "auto";
  /** Values that the scale holds besides those of the series. */
  range?: (number | null | undefined)[];
  /** A value that a horizontal line marks. */
  level?: number | null;
  levelName?: string;
  /** What the values are, where the axis has no name. */
  said?: string;
  /** Whether the pointer reads one series, by the option `single`, and not all of them at a value. */
  readSingle?: boolean;
  /** Whether lines are steps, the next value standing before a point or after it. */
  stepped?: "before" | "after";
}

export type LineChartOptions = Omit<FigureOptions, "paint" | "table"> & {
  look(): LineChart;
  height?: number;
  /** A value of the horizontal axis in words. */
  tell?: (value: any) => string;
  /** Whether a series without a point at a value is read at its nearest. */
  nearest?: boolean;
  /** What a tip tells of one series at a point. */
  single?: ((series: Series, point: Point) => Child[]) | null;
};

/** How the values of a chart are read. */
export interface Reading {
  tell?: (value: any) => string;
  nearest: boolean;
  single: ((series: Series, point: Point) => Child[]) | null;
}
