// The data of the page, which of the two types it is: of an ablation, of a sweep, or what both have.

import { readPageData } from "../../pages/dom.js";

/** @import { AblationData, StudyData, SweepData } from "./types.js" */

const data = readPageData();

/** @type {StudyData} */
export const study = data;
/** @type {AblationData} */
export const ablation = data;
/** @type {SweepData} */
export const sweep = data;
