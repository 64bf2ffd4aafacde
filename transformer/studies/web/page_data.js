// The data of the page, which of the types it is: of an ablation, of a sweep, what both have, or of all runs.

import { readPageData } from "../../pages/dom.js";

/** @import { AblationData, RunsPageData, StudyData, SweepData } from "./types.js" */

const data = readPageData();

/** @type {StudyData} */
export const study = data;
/** @type {AblationData} */
export const ablation = data;
/** @type {SweepData} */
export const sweep = data;
/** @type {RunsPageData} */
export const listing = data;
