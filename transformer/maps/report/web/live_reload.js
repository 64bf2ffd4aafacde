// Only in the page that `launch.maps --serve` gives out: look whether there is a newer one, and change to it.

import { byId, createHtml } from "../../../pages/dom.js";
import { data } from "./page_data.js";
import { playTimer } from "./report.js";
import { state } from "./view_state.js";

const POLL_INTERVAL = 2000; // milliseconds between two looks
const IDLE_TIME = 1500; // milliseconds for which a reader must not have moved, lest a tip goes away under the pointer
const statusLabel = createHtml("span", { class: "live", role: "status" }, "following the run");
let lastInputTime = 0;

async function pollForNewVersion() {
  setTimeout(pollForNewVersion, POLL_INTERVAL);
  // A page that nobody sees is renewed once somebody does.
  if (document.hidden) return;
  let newest;
  try {
    const answer = await fetch("/version", { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    newest = await answer.text();
    statusLabel.textContent = "following the run";
  } catch {
    statusLabel.textContent = "no longer following: the server has stopped";
    return;
  }
  const busy = playTimer !== undefined || performance.now() - lastInputTime < IDLE_TIME;
  if (newest === document.documentElement.dataset.version || busy) return;
  const parts = new URLSearchParams(location.hash.slice(1));
  // Who looks at the last step goes on looking at the last step, which will be a later one.
  if (state.step === data.steps.length - 1) parts.delete("step");
  history.replaceState({ scrolled: scrollY }, "", `#${parts}`);
  location.reload();
}

/**
 * Go back to where a reader was before the page was renewed, once all of it is drawn.
 * @param {number} scrolled
 */
function restoreScroll(scrolled) {
  const drawn = byId("head-history-panel").hidden || byId("head-history").dataset.shown;
  if (document.body.dataset.shown && drawn) scrollTo(0, scrolled);
  else requestAnimationFrame(() => restoreScroll(scrolled));
}

for (const kind of ["pointermove", "pointerdown", "keydown", "wheel"])
  addEventListener(kind, () => (lastInputTime = performance.now()), { passive: true });
byId("facts").append(statusLabel);
// The browser's own way back knows only the height that the page had before anything was drawn.
history.scrollRestoration = "manual";
if (history.state?.scrolled) restoreScroll(history.state.scrolled);
setTimeout(pollForNewVersion, POLL_INTERVAL);
