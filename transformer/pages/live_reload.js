// Only in pages that a server gives out while runs write: look whether there is a newer page, and change to it.

import { byId, createHtml } from "./dom.js";

const POLL_INTERVAL = 2000; // milliseconds between two looks
const IDLE_TIME = 1500; // milliseconds for which a reader must not have moved, lest a tip goes away under the pointer

/**
 * Follow the server of this page: `following` says so beside the facts; a page that `isBusy` is renewed later, at the
 * address that `address()` gives, and scrolled to where it was once `isDrawn`.
 * @param {{ following: string, isBusy?: () => boolean, address: () => string, isDrawn: () => boolean }} page
 */
export function followServer({ following, isBusy = () => false, address, isDrawn }) {
  const statusLabel = createHtml("span", { class: "live", role: "status" }, following);
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
      statusLabel.textContent = following;
    } catch {
      statusLabel.textContent = "no longer following: the server has stopped";
      return;
    }
    const busy = isBusy() || performance.now() - lastInputTime < IDLE_TIME;
    if (newest === document.documentElement.dataset.version || busy) return;
    history.replaceState({ scrolled: scrollY }, "", address());
    location.reload();
  }

  /**
   * Go back to where a reader was before the page was renewed, once all of it is drawn.
   * @param {number} scrolled
   */
  function restoreScroll(scrolled) {
    if (isDrawn()) scrollTo(0, scrolled);
    else requestAnimationFrame(() => restoreScroll(scrolled));
  }

  for (const kind of ["pointermove", "pointerdown", "keydown", "wheel"])
    addEventListener(kind, () => (lastInputTime = performance.now()), { passive: true });
  byId("facts").append(statusLabel);
  // The browser's own way back knows only the height that the page had before anything was drawn.
  history.scrollRestoration = "manual";
  if (history.state?.scrolled) restoreScroll(history.state.scrolled);
  setTimeout(pollForNewVersion, POLL_INTERVAL);
}
