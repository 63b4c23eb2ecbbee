// Keeps a page live: times in the reader's zone, the main part as the server
// streams it, and what to say when the stream is lost.
// @ts-check

/** Times are from the first second of a simulation. */
const simulated = document.documentElement.hasAttribute("data-simulated");
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });

/** @param {number} ms @returns {string} how far ms, in milliseconds, is from now */
export function ago(ms) {
  if (simulated) return "";
  const s = Math.round((ms - Date.now()) / 1000);
  for (const [unit, size] of /** @type {[Intl.RelativeTimeFormatUnit, number][]} */ ([["day", 86400], ["hour", 3600], ["minute", 60]])) {
    if (Math.abs(s) >= size * 1.5) return relative.format(Math.round(s / size), unit);
  }
  return relative.format(s, "second");
}

/** @param {Intl.DateTimeFormatOptions} options, which cost much to read: once for a page */
const format = (options) => new Intl.DateTimeFormat([], { hour12: false, ...options });
const time = format({ hour: "2-digit", minute: "2-digit", second: "2-digit" }), day = format({ day: "numeric", month: "short" }), date = format({ day: "numeric", month: "short", year: "numeric" });
const whole = format({ dateStyle: "medium", timeStyle: "long" });

/** @param {number} ms @returns {string} the time of day, with the date if it is another day */
export function clock(ms) {
  if (simulated) return "after " + Math.floor(ms / 3600000) + ":" + String(Math.floor(ms / 60000) % 60).padStart(2, "0") + ":" + String(Math.floor(ms / 1000) % 60).padStart(2, "0");
  const t = new Date(ms), today = new Date();
  if (t.toDateString() === today.toDateString()) return time.format(t);
  return (t.getFullYear() === today.getFullYear() ? day : date).format(t) + " " + time.format(t);
}

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

/** @param {Node} n @returns {string} by what a node is found again */
function key(n) {
  return n instanceof Element ? n.id || n.getAttribute("data-key") || "" : "";
}

/** @param {Node} a @param {Node} b */
function alike(a, b) {
  return a.nodeType === b.nodeType && a.nodeName === b.nodeName && key(a) === key(b);
}

/**
 * Changes old, which is on the page, into wanted. What the reader has done
 * stays: open details, focus, what was typed, and parts that a script manages.
 * @param {Node} old @param {Node} wanted
 */
export function morph(old, wanted) {
  if (!(old instanceof Element) || !(wanted instanceof Element)) {
    if (old.nodeValue !== wanted.nodeValue) old.nodeValue = wanted.nodeValue;
    return;
  }
  if (old.nodeName === "TIME" && old.getAttribute("datetime") === wanted.getAttribute("datetime")) return;
  const typed = old instanceof HTMLInputElement || old instanceof HTMLSelectElement;
  if (typed && old === document.activeElement) return;
  for (const { name, value } of wanted.attributes) {
    const drawn = old.nodeName === "CANVAS" && name === "height"; // setting it would clear the picture
    if (!drawn && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    const own = name === "data-managed" || (name === "open" && old.nodeName === "DETAILS") || old.nodeName === "CANVAS";
    if (!own && !wanted.hasAttribute(name)) old.removeAttribute(name);
  }
  if (typed || old.hasAttribute("data-managed")) return;
  let at = old.firstChild;
  for (const child of [...wanted.childNodes]) {
    let found = at;
    if (found && !alike(found, child)) {
      for (found = at; found && !alike(found, child); ) found = found.nextSibling;
      if (found && key(child) === "" && key(found) === "" && child.nodeType === Node.ELEMENT_NODE && at && key(at) === "" && at.nodeType !== Node.TEXT_NODE) found = null;
    }
    if (!found) {
      old.insertBefore(child, at);
      continue;
    }
    if (found !== at) old.insertBefore(found, at);
    else at = at ? at.nextSibling : null;
    morph(found, child);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
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
  const from = new EventSource("/live?" + new URLSearchParams({ path, have: main.dataset.digest ?? "" }));
  from.addEventListener("open", () => {
    say("live", "live");
    if (lost) complain("");
    lost = 0;
  });
  from.addEventListener("main", (e) => {
    const got = JSON.parse(/** @type {MessageEvent} */ (e).data);
    say("live", "live");
    complain("");
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
    from.close();
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
    if (from.readyState === EventSource.CLOSED) setTimeout(again, 2000);
  });
  addEventListener("pagehide", () => from.close());
}

/** Asks whether the page may be read: after a restart or a sign-out it may not. */
async function again() {
  try {
    const res = await fetch(location.href, { credentials: "same-origin", redirect: "manual" });
    if (res.status === 401) {
      complain("You are not signed in any more: the session has ended. Reload the page to sign in; `drover ui` prints a new address.");
      return;
    }
    location.reload();
  } catch {
    setTimeout(again, 2000);
  }
}

document.addEventListener("submit", (e) => {
  const f = /** @type {HTMLFormElement} */ (e.target);
  if (f.dataset.confirm && !confirm(f.dataset.confirm)) e.preventDefault();
});

localise(document);
setInterval(() => localise(document), 1000);
live();
