// A stream of events that a page has while it is seen.
// @ts-check

const pauseFirst = 2000, pauseMost = 60000; // ms until a refused stream is asked for again, at first and at most

/**
 * Keeps a stream open while the page is seen: not in a hidden tab, since a browser has six connections to a server that speaks HTTP/1.1,
 * for all tabs together, and not while the browser keeps the page for its button Back. Each opening asks for the address again, by
 * which the stream goes on after what has come. A browser connects again by itself, but not to a server that refused the stream: then
 * refused is asked, after a pause that grows until a stream is open again.
 * @param {() => string} address @param {(from: EventSource) => void} listen adds what listens to a stream that is being opened
 * @param {() => Promise<"open" | "wait" | "stop">} refused whether to ask for the stream, to ask refused again, or nothing until the page is seen anew
 * @returns {() => void} what ends it for good
 */
export function stream(address, listen, refused) {
  /** @type {EventSource | null} */ let from = null;
  let ended = false, timer = 0, pause = pauseFirst;
  const open = () => {
    if (from || ended || document.hidden) return;
    clearTimeout(timer);
    timer = 0;
    const own = new EventSource(address());
    from = own;
    listen(own);
    own.addEventListener("open", () => {
      pause = pauseFirst;
    });
    own.addEventListener("error", () => {
      if (own !== from || own.readyState !== EventSource.CLOSED) return;
      from = null;
      later();
    });
  };
  const later = () => {
    timer = setTimeout(async () => {
      const own = timer, next = await refused();
      if (own !== timer) return; // it was closed or opened meanwhile
      if (next === "open") open();
      if (next === "wait") later();
    }, pause);
    pause = Math.min(2 * pause, pauseMost);
  };
  const close = () => {
    clearTimeout(timer);
    timer = 0;
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
