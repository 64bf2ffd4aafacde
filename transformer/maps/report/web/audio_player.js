// The sound that frames were cut from, to be played: while it plays, the frame that is heard is the column pointed at.

import { createHtml } from "../../../pages/dom.js";
import { siteAxis } from "./axes.js";
import { blockText } from "./map_data.js";

/** @import { HeadView, PointAt, ViewState } from "./types.js" */

/** @type {{ name: string, audio: HTMLAudioElement } | null} */
let audioPlayer = null;

/**
 * Draw the player of the example's sound into `place`; returns what highlights positions, which does nothing here.
 * @param {HTMLElement} place
 * @param {HeadView} shown
 * @param {ViewState} state
 * @param {PointAt} look
 */
export function drawAudioPlayer(place, shown, state, look) {
  const axes = [siteAxis(shown.site, "key", state.example), siteAxis(shown.site, "query", state.example)];
  const side = axes.findIndex((axis) => axis.sound);
  place.hidden = side < 0;
  const name = side < 0 ? null : `${state.site} ${state.example}`;
  if (audioPlayer?.name === name) return () => {};
  audioPlayer?.audio.pause();
  audioPlayer = null;
  place.replaceChildren();
  if (name === null) return () => {};
  const axis = axes[side];
  const audio = createHtml("audio", { controls: "", "aria-label": "The sound of this example" });
  audioPlayer = { name, audio };
  place.append(audio);
  blockText(`sound-${axis.index}-${axis.example}`).then((text) => (audio.src = `data:audio/wav;base64,${text}`));
  const follow = () => {
    if (audioPlayer?.audio !== audio) return;
    if (audio.paused) return look(null, null);
    const heard = axis.numLeadingPositions + Math.floor((audio.currentTime - axis.offset) / axis.stride);
    const frame = Math.max(axis.numLeadingPositions, Math.min(axis.tokens.length - 1, heard));
    look(side === 0 ? null : frame, side === 0 ? frame : null);
    requestAnimationFrame(follow);
  };
  audio.addEventListener("play", follow);
  return () => {};
}
