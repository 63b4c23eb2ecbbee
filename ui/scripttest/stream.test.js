import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import "./document.js";

/** @type {Map<string, ((e: object) => void)[]>} */ let listeners = new Map();
/** @type {FakeSource[]} */ let opened = [];

class FakeSource {
  static CLOSED = 2;

  /** @param {string} address */
  constructor(address) {
    this.address = address;
    this.readyState = 0;
    this.listeners = {};
    opened.push(this);
  }

  addEventListener(name, fn) {
    (this.listeners[name] ??= []).push(fn);
  }

  tell(name) {
    for (const fn of this.listeners[name] ?? []) fn({});
  }

  close() {
    this.readyState = 2;
  }
}

const tell = (name, e = {}) => {
  for (const fn of listeners.get(name) ?? []) fn(e);
};
const listen = (name, fn) => listeners.set(name, [...(listeners.get(name) ?? []), fn]);
globalThis.EventSource = FakeSource;
globalThis.addEventListener = listen;
document.addEventListener = listen;

const { stream } = await import("../static/stream.js");

const open = () => opened.filter((s) => s.readyState !== 2).map((s) => s.address);
const hide = (hidden) => {
  document.hidden = hidden;
  tell("visibilitychange");
};

beforeEach(() => {
  listeners = new Map();
  opened = [];
  document.hidden = false;
});

test("a page that the browser kept goes on with what it has", () => {
  let have = "a";
  stream(() => "/live?have=" + have, () => {});
  tell("pageshow"); // the first one
  assert.deepEqual(open(), ["/live?have=a"]);
  have = "b";
  tell("pagehide");
  assert.deepEqual(open(), []);
  tell("pageshow", { persisted: true });
  assert.deepEqual(open(), ["/live?have=b"]);
});

test("a page has no stream while its tab is hidden", () => {
  let have = "a";
  stream(() => "/live?have=" + have, () => {});
  hide(true);
  assert.deepEqual(open(), []);
  tell("pageshow", { persisted: true });
  assert.deepEqual(open(), []);
  have = "b";
  hide(false);
  assert.deepEqual(open(), ["/live?have=b"]);
  hide(false);
  assert.equal(open().length, 1);
});

test("a page that begins hidden has its stream when it is seen", () => {
  document.hidden = true;
  stream(() => "/live", () => {});
  assert.deepEqual(open(), []);
  hide(false);
  assert.deepEqual(open(), ["/live"]);
});

test("a stream that has ended stays so", () => {
  const end = stream(() => "/follow", () => {});
  end();
  hide(true);
  hide(false);
  tell("pageshow", { persisted: true });
  assert.deepEqual(open(), []);
});
