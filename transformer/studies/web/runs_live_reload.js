// Only in the page that `launch.runs --serve` gives out: the page follows the runs.

import { followServer } from "../../pages/live_reload.js";
import "./runs.js";

followServer({
  following: "following the runs",
  address: () => location.hash || "#",
  isDrawn: () => Boolean(document.body.dataset.shown),
});
