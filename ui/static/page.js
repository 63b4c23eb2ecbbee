// Keeps a page live: times in the reader's zone, the main part as the server
// streams it, and what to say when the stream is lost.
// @ts-check
import { ago, clock, whole } from "./format.js";
import { morph } from "./morph.js";
import { stream } from "./stream.js";

/** @type {WeakMap<Element, string>} */ const titled = new WeakMap();

/** @param {Element | Document} root shows the times below root in the reader's zone */
function localise(root) {
  const today = new Date().toDateString();
  for (const e of root.querySelectorAll("time[datetime]")) {
    const datetime = e.getAttribute("datetime") ?? "", ms = Date.parse(datetime), at = datetime + today, fresh = titled.get(e) !== at;
    const passes = e.getAttribute("data-as") === "ago";
    if (!fresh && !passes) continue; // a time of the day stays what it is
    const text = passes ? ago(ms) : clock(ms);
    if (e.textContent !== text) e.textContent = text;
    if (!fresh) continue;
    titled.set(e, at);
    e.setAttribute("title", whole.format(ms) + " (" + new Date(ms).toISOString() + ")");
  }
}

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const connection = document.getElementById("connection");
const trouble = document.getElementById("trouble");

/** @param {string} state @param {string} text */
function say(state, text) {
  if (!connection || connection.dataset.state === state) return;
  connection.dataset.state = state;
  connection.textContent = text;
}

/** @param {string} text "" for none */
function complain(text) {
  if (!trouble) return;
  trouble.hidden = text === "";
  if (trouble.textContent !== text) trouble.textContent = text;
}

/** Tells the scripts of pictures that the page may have changed. */
function changed() {
  document.dispatchEvent(new Event("drover:update"));
}

function live() {
  const path = main.dataset.live;
  if (!path) return;
  let lost = 0;
  const address = () => "/live?" + new URLSearchParams({ path, have: main.dataset.digest ?? "" });
  const end = stream(address, (from) => {
    from.addEventListener("open", () => {
      say("live", "live");
      if (lost) complain("");
      lost = 0;
    });
    from.addEventListener("main", (e) => {
      const got = JSON.parse(/** @type {MessageEvent} */ (e).data);
      say("live", "live");
      complain("");
      if (main.dataset.error && !got.error) { // what was loaded was an error, without the page's scripts
        location.reload();
        return;
      }
      if (main.dataset.digest === got.digest) return;
      const next = /** @type {HTMLElement} */ (main.cloneNode(false));
      next.append(new DOMParser().parseFromString(got.html, "text/html").body);
      const body = /** @type {HTMLElement} */ (next.firstElementChild);
      next.replaceChildren(...body.childNodes);
      next.dataset.digest = got.digest;
      localise(next);
      morph(main, next);
      document.title = got.title + " · Drover";
      changed();
    });
    from.addEventListener("elsewhere", (e) => { // another coordinator leads now, and its page goes on
      end();
      location.replace(JSON.parse(/** @type {MessageEvent} */ (e).data));
    });
    from.addEventListener("trouble", (e) => {
      say("lost", "not live");
      complain(JSON.parse(/** @type {MessageEvent} */ (e).data) + ". The page shows what was known before, and goes on by itself.");
    });
    from.addEventListener("error", () => {
      lost = lost || Date.now();
      say("lost", "not live");
      complain("The connection is lost since " + clock(lost) + ". The page shows what was known before, and goes on by itself when the coordinator is back.");
    });
  }, again);
}

/** Asks of a page whose stream was refused whether it may be read: after a restart or a sign-out it may not. @returns {Promise<"open" | "wait" | "stop">} */
async function again() {
  try {
    const res = await fetch(location.href, { credentials: "same-origin", redirect: "manual" });
    if (res.status === 401) {
      complain("You are not signed in any more: the session has ended. Reload the page to sign in; `drover ui` prints a new address.");
      return "stop";
    }
    if (res.type === "opaqueredirect") { // another coordinator leads now
      location.reload();
      return "stop";
    }
    if (res.ok || res.headers.get("Content-Type")?.startsWith("text/html")) return "open"; // its stream says what is wrong
    complain((await res.text()) + " The page shows what was known before, and goes on by itself.");
  } catch {
    // The connection is lost, and the page has said so.
  }
  return "wait";
}

document.addEventListener("submit", (e) => {
  const f = /** @type {HTMLFormElement} */ (e.target);
  if (f.dataset.confirm && !confirm(f.dataset.confirm)) e.preventDefault();
});

localise(document);
setInterval(() => localise(document), 1000);
live();
