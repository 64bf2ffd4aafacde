// The data of the page, as page.py writes them.

import { readPageData } from "../../../pages/dom.js";

export const data = readPageData();
