// Events, streams and pauses that a test makes happen. Tests import it before the scripts.
import "./document.js";

/** @type {Map<string, ((e: object) => void)[]>} */ const listeners = new Map();
/** @type {Source[]} */ export const opened = []; // streams
/** @type {{id: number, ms: number, fn: () => any}[]} */ export const waits = []; // what is to be called later

class Source {
  static CLOSED = 2;

  /** @param {string} address */
  constructor(address) {
    this.address = address;
    this.readyState = 0;
    this.listeners = {};
    opened.push(this);
  }

  addEventListener(name, fn) {
    this.listeners[name] ??= [];
    this.listeners[name].push(fn);
  }

  tell(name, data) {
    for (const fn of this.listeners[name] ?? []) fn({ data: JSON.stringify(data) });
  }

  refuse() {
    this.close();
    this.tell("error");
  }

  close() {
    this.readyState = 2;
  }
}

/** @param {string} name @param {object} e tells who listens to the window or the document */
export function tell(name, e = {}) {
  for (const fn of listeners.get(name) ?? []) fn(e);
}

/** @returns {string[]} of the streams that are open */
export const addresses = () => opened.filter((s) => s.readyState !== 2).map((s) => s.address);

/** Forgets what a test did. */
export function reset() {
  listeners.clear();
  opened.length = waits.length = 0;
  document.hidden = false;
}

const listen = (name, fn) => listeners.set(name, [...(listeners.get(name) ?? []), fn]);
let timers = 0;
Object.assign(document, { hidden: false, addEventListener: listen, dispatchEvent: (e) => tell(e.type, e) });
Object.assign(globalThis, {
  EventSource: Source,
  addEventListener: listen,
  setTimeout: (fn, ms) => {
    waits.push({ id: ++timers, ms, fn });
    return timers;
  },
  clearTimeout: (id) => {
    const at = waits.findIndex((w) => w.id === id);
    if (at >= 0) waits.splice(at, 1);
  },
});
