// The data of the page of an ablation or of a sweep, as ablations/page.py and sweeps/page.py write them.

import { readPageData } from "../../pages/dom.js";

export const data = readPageData();
