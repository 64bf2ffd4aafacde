// Only in the page that `launch.maps --serve` gives out: look whether there is a newer one, and change to it.

import { byId, make } from "../../../pages/dom.js";
import { data } from "./page_data.js";
import { playing } from "./report.js";
import { state } from "./view_state.js";

const EVERY = 2000; // milliseconds between two looks
const STILL = 1500; // milliseconds for which a reader must not have moved, lest a tip goes away under the pointer
const live = make("span", { class: "live", role: "status" }, "following the run");
let moved = 0;

async function lookForNewer() {
  setTimeout(lookForNewer, EVERY);
  // A page that nobody sees is renewed once somebody does.
  if (document.hidden) return;
  let newest;
  try {
    const answer = await fetch("/version", { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    newest = await answer.text();
    live.textContent = "following the run";
  } catch {
    live.textContent = "no longer followed: the server has ended";
    return;
  }
  const busy = playing !== null || performance.now() - moved < STILL;
  if (newest === document.documentElement.dataset.version || busy) return;
  const parts = new URLSearchParams(location.hash.slice(1));
  // Who looks at the last step goes on looking at the last step, which will be a later one.
  if (state.step === data.steps.length - 1) parts.delete("step");
  history.replaceState({ scrolled: scrollY }, "", `#${parts}`);
  location.reload();
}

/** Go back to where a reader was before the page was renewed, once all of it is drawn. */
function scrollBack(scrolled) {
  const drawn = byId("timeline-panel").hidden || byId("timeline").dataset.shown;
  if (document.body.dataset.shown && drawn) scrollTo(0, scrolled);
  else requestAnimationFrame(() => scrollBack(scrolled));
}

for (const kind of ["pointermove", "pointerdown", "keydown", "wheel"])
  addEventListener(kind, () => (moved = performance.now()), { passive: true });
byId("facts").append(live);
// The browser's own way back knows only the height that the page had before anything was drawn.
history.scrollRestoration = "manual";
if (history.state?.scrolled) scrollBack(history.state.scrolled);
setTimeout(lookForNewer, EVERY);
