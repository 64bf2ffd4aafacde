// The data of the page of a run.

import { readPageData } from "../../../pages/dom.js";

/** @import { ReportData } from "./types.js" */

/** @type {ReportData} */
export const data = readPageData();
