import assert from "node:assert/strict";
import { test } from "node:test";
import "./document.js";
import { addresses, opened, waits } from "./events.js";

const parts = { main: { dataset: { live: "/jobs", digest: "d" } }, connection: { dataset: {} }, trouble: {} };
let reloads = 0;
document.getElementById = (id) => parts[id] ?? null;
globalThis.location = { href: "/jobs", reload: () => reloads++ };

await import("../static/page.js");

/** @param {object} answer of the page @returns {Promise<string>} what the page says after its stream was refused */
async function refused(answer) {
  opened.at(-1).refuse();
  globalThis.fetch = async () => ({ headers: new Headers({ "Content-Type": "text/plain" }), text: async () => "ask later.", ...answer });
  await waits.shift().fn();
  return parts.trouble.textContent;
}

test("a page whose stream is refused goes on when it can", async () => {
  assert.match(await refused({ ok: true, status: 200 }), /^The connection is lost/);
  assert.deepEqual([addresses(), waits.length, reloads], [["/live?path=%2Fjobs&have=d"], 0, 0]);
  assert.match(await refused({ status: 404, headers: new Headers({ "Content-Type": "text/html" }) }), /^The connection is lost/);
  assert.deepEqual([addresses().length, waits.length, reloads], [1, 0, 0]);
  assert.match(await refused({ status: 503 }), /^ask later\. The page shows what was known/);
  assert.deepEqual([addresses().length, waits.length, reloads], [0, 1, 0]);
  globalThis.fetch = () => Promise.reject(new TypeError("no network"));
  await waits.shift().fn();
  assert.deepEqual([addresses().length, waits.length, reloads], [0, 1, 0]);
  globalThis.fetch = async () => ({ type: "opaqueredirect", status: 0, headers: new Headers() });
  await waits.shift().fn();
  assert.deepEqual([addresses().length, waits.length, reloads], [0, 0, 1]);
});

test("a page that was loaded as an error is loaded again when it is there", () => {
  const events = opened.at(-1), before = reloads;
  const main = (error) => events.tell("main", { digest: "d", error });
  main(false);
  parts.main.dataset.error = "y";
  main(true);
  assert.equal(reloads, before);
  main(false);
  assert.equal(reloads, before + 1);
});
