// A stream of events that a page has while it is seen.
// @ts-check

/**
 * Keeps a stream open while the page is seen: not in a hidden tab, since a browser has six connections to a server that speaks HTTP/1.1,
 * for all tabs together, and not while the browser keeps the page for its button Back. Each opening asks for the address again, by
 * which the stream goes on after what has come.
 * @param {() => string} address @param {(from: EventSource) => void} listen adds what listens to a stream that is being opened
 * @returns {() => void} what ends it for good
 */
export function stream(address, listen) {
  /** @type {EventSource | null} */ let from = null;
  let ended = false;
  const open = () => {
    if (from || ended || document.hidden) return;
    from = new EventSource(address());
    listen(from);
  };
  const close = () => {
    from?.close();
    from = null;
  };
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  open();
  return () => {
    ended = true;
    close();
  };
}
