// The output of an attempt, as it comes.
// @ts-check
import { stream } from "./stream.js";

const log = /** @type {HTMLElement} */ (document.getElementById("log"));
const state = /** @type {HTMLElement} */ (document.getElementById("logstate"));
const most = 1 << 18; // letters kept: one line of so many is still laid out at once

let pending = ""; // arrived and not shown yet
let frame = 0; // in which it will be; 0: none

log.dataset.managed = "y";
state.dataset.managed = "y";

/**
 * Keeps text for the next frame: however much arrives, it is laid out once.
 * @param {string} text
 */
function append(text) {
  pending = (pending + text).slice(-most);
  if (!frame) frame = requestAnimationFrame(show);
}

function show() {
  frame = 0;
  if (pending.length === most) log.replaceChildren();
  log.append(pending);
  pending = "";
  let size = log.textContent?.length ?? 0;
  while (size > most && log.firstChild) {
    const first = /** @type {Text} */ (log.firstChild);
    const cut = Math.min(size - most, first.length);
    if (cut === first.length) first.remove();
    else first.deleteData(0, cut);
    size -= cut;
  }
  const end = document.getElementById("followend");
  if (!(end instanceof HTMLInputElement) || end.checked) log.scrollTop = log.scrollHeight;
}

let position = ""; // of what has come: the stream goes on after it
const follow = () => (log.dataset.follow ?? "") + (position ? "&after=" + encodeURIComponent(position) : "");
const end = stream(follow, (from) => {
  from.addEventListener("open", () => {
    state.textContent = "following";
  });
  from.addEventListener("text", (e) => {
    const got = /** @type {MessageEvent} */ (e);
    position = got.lastEventId;
    append(JSON.parse(got.data));
  });
  from.addEventListener("end", (e) => {
    const why = JSON.parse(/** @type {MessageEvent} */ (e).data);
    state.textContent = why ? "The output cannot be read: " + why : "The attempt has ended; this is the end of its output.";
    end();
  });
  from.addEventListener("error", () => {
    state.textContent = "The connection is lost; it is tried again by itself.";
  });
}, async () => "open");
