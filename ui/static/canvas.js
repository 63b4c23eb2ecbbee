// What the pictures share: data that are read again when their address
// changes, a canvas as sharp as the screen, colours of the style sheet, and a
// tip beside the pointer.
// @ts-check
import { duration, simulated } from "./format.js";

/** @param {string} name @returns {string} a colour of the style sheet */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

export const retryAfter = 2000; // ms after which data that could not be read are read again

/** @param {Response} res @returns {boolean} whether a refusal may pass by itself */
export function mayPass(res) {
  return res.status === 429 || res.status >= 500;
}

/**
 * Calls draw with the data at the address in an attribute of each element that
 * matches, at first and whenever the address has changed.
 * @param {string} selector @param {string} attribute @param {(e: HTMLElement, data: any) => void} draw
 */
export function follow(selector, attribute, draw) {
  const read = new WeakMap();
  let later = 0;
  const failed = (/** @type {HTMLElement} */ e, /** @type {string} */ address) => {
    if (read.get(e) !== address) return;
    read.delete(e);
    if (later) return;
    later = setTimeout(() => { // the page may not change any more
      later = 0;
      look();
    }, retryAfter);
  };
  const look = async () => {
    for (const e of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(selector))) {
      const address = e.getAttribute(attribute);
      if (!address || read.get(e) === address) continue;
      read.set(e, address);
      if (address.startsWith("#")) { // a file of its own has its data in it
        draw(e, JSON.parse(document.getElementById(address.slice(1))?.textContent ?? "null"));
        continue;
      }
      try {
        const res = await fetch(address, { credentials: "same-origin" });
        if (!res.ok) {
          if (mayPass(res)) failed(e, address);
          continue;
        }
        const data = await res.json();
        if (read.get(e) === address) draw(e, data);
      } catch {
        failed(e, address);
      }
    }
  };
  document.addEventListener("drover:update", look);
  look();
}

/**
 * @param {HTMLCanvasElement} c @param {number} height in pixels of the page
 * @returns {{g: CanvasRenderingContext2D, w: number, h: number}} a cleared context
 */
export function prepare(c, height) {
  const scale = devicePixelRatio || 1, w = c.clientWidth || 600;
  c.width = Math.round(w * scale);
  c.height = Math.round(height * scale);
  if (c.style.height !== height + "px") c.style.height = height + "px";
  const g = /** @type {CanvasRenderingContext2D} */ (c.getContext("2d"));
  g.scale(scale, scale);
  g.clearRect(0, 0, w, height);
  g.font = "12px system-ui, sans-serif";
  return { g, w, h: height };
}

/** @param {string} text "" hides it @param {number} x @param {number} y of the pointer */
export function tip(text, x = 0, y = 0) {
  const e = document.getElementById("tip");
  if (!e) return;
  e.hidden = text === "";
  if (text === "") return;
  e.textContent = text;
  const box = e.getBoundingClientRect();
  e.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
  e.style.top = (y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 18) + "px";
}

/** @param {() => void} draw redraws when the window or the colours change */
export function redraw(draw) {
  let asked = false;
  const soon = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
  addEventListener("resize", soon);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", soon);
}

const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800].map((s) => s * 1000);

/**
 * @param {number} from @param {number} to in Unix milliseconds @param {number} wide in pixels @param {number} zone that the clock is behind UTC, in milliseconds
 * @returns {{step: number, at: number[]}} round times, with room for a text at each, and what is between two
 */
export function ticks(from, to, wide, zone) {
  const fits = Math.max(2, Math.floor(wide / 85));
  const step = steps.find((s) => (to - from) / s <= fits) ?? Math.ceil((to - from) / fits / steps[steps.length - 1]) * steps[steps.length - 1];
  const at = [];
  for (let t = Math.ceil((from - zone) / step) * step + zone; t <= to; t += step) at.push(t);
  return { step, at };
}

/**
 * Draws the axis of time at the top of a picture.
 * @param {CanvasRenderingContext2D} g @param {number} left @param {number} right @param {number} height
 * @param {number} from @param {number} to in Unix milliseconds
 */
export function axis(g, left, right, height, from, to) {
  const zone = simulated ? 0 : new Date(from).getTimezoneOffset() * 60000;
  const { step, at } = ticks(from, to, right - left, zone);
  g.textAlign = "center";
  g.textBaseline = "middle";
  for (const t of at) {
    const x = left + ((t - from) / (to - from)) * (right - left);
    g.fillStyle = colour("line");
    g.fillRect(Math.round(x), 18, 1, height - 18);
    g.fillStyle = colour("soft");
    const d = new Date(t);
    const text = simulated ? duration(t) : step >= 86400000 ? d.toLocaleDateString([], { day: "numeric", month: "short" }) : d.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: step < 60000 ? "2-digit" : undefined, hour12: false });
    if (x > left + 18 && x < right - 18) g.fillText(text, x, 9);
  }
}
