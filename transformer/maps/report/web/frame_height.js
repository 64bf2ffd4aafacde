// In a frame, such as a notebook's: tell the page around it how high this page is, whenever that changes. A sandboxed
// frame cannot be measured from outside.

const sendHeight = () => parent.postMessage({ headwiseHeight: Math.ceil(document.body.getBoundingClientRect().height) }, "*");

/** Tell the page around this one of its height, and again where that page asks for it. */
export function reportFrameHeight() {
  if (parent === window) return;
  new ResizeObserver(sendHeight).observe(document.body);
  window.addEventListener("message", sendHeight);
}
