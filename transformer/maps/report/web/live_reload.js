// Only in the page that `launch.maps --serve` gives out: the report follows its run.

import { byId } from "../../../pages/dom.js";
import { followServer } from "../../../pages/live_reload.js";
import { data } from "./page_data.js";
import { playTimer } from "./report.js";
import { state } from "./view_state.js";

followServer({
  following: "following the run",
  isBusy: () => playTimer !== undefined,
  address: () => {
    const parts = new URLSearchParams(location.hash.slice(1));
    // Who looks at the last step goes on looking at the last step, which will be a later one.
    if (state.step === data.steps.length - 1) parts.delete("step");
    return `#${parts}`;
  },
  isDrawn: () =>
    Boolean(
      document.body.dataset.shown && (byId("head-history-panel").hidden || byId("head-history").dataset.shown),
    ),
});
