import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import "./document.js";
import { addresses, opened, reset, tell, waits } from "./events.js";

const { stream } = await import("../static/stream.js");

const hide = (hidden) => {
  document.hidden = hidden;
  tell("visibilitychange");
};

beforeEach(reset);

test("a page that the browser kept goes on with what it has", () => {
  let have = "a";
  stream(() => "/live?have=" + have, () => {}, async () => "open");
  tell("pageshow"); // the first one
  assert.deepEqual(addresses(), ["/live?have=a"]);
  have = "b";
  tell("pagehide");
  assert.deepEqual(addresses(), []);
  tell("pageshow", { persisted: true });
  assert.deepEqual(addresses(), ["/live?have=b"]);
});

test("a page has no stream while its tab is hidden", () => {
  let have = "a";
  stream(() => "/live?have=" + have, () => {}, async () => "open");
  hide(true);
  assert.deepEqual(addresses(), []);
  tell("pageshow", { persisted: true });
  assert.deepEqual(addresses(), []);
  have = "b";
  hide(false);
  assert.deepEqual(addresses(), ["/live?have=b"]);
  hide(false);
  assert.equal(addresses().length, 1);
});

test("a page that begins hidden has its stream when it is seen", () => {
  document.hidden = true;
  stream(() => "/live", () => {}, async () => "open");
  assert.deepEqual(addresses(), []);
  hide(false);
  assert.deepEqual(addresses(), ["/live"]);
});

test("a stream that has ended stays so", () => {
  const end = stream(() => "/follow", () => {}, async () => "open");
  end();
  hide(true);
  hide(false);
  tell("pageshow", { persisted: true });
  assert.deepEqual(addresses(), []);
});

test("a stream that is refused is asked for after a pause that grows", async () => {
  const said = ["wait", "wait", "open", "open", "stop"], pauses = [];
  stream(() => "/live", () => {}, async () => said.shift());
  const next = async () => {
    pauses.push(waits[0].ms);
    await waits.shift().fn();
  };
  opened[0].refuse();
  for (let i = 0; i < 3; i++) await next();
  assert.equal(opened.length, 2);
  opened[1].refuse();
  await next();
  assert.deepEqual(pauses, [2000, 4000, 8000, 16000]);
  opened[2].tell("open");
  opened[2].refuse();
  await next();
  assert.equal(pauses[4], 2000);
  assert.deepEqual([waits.length, addresses().length], [0, 0]);
  hide(true);
  hide(false);
  assert.deepEqual(addresses(), ["/live"]);
});

test("a page that is hidden asks for no stream that was refused", async () => {
  let asked = 0;
  stream(() => "/live", () => {}, () => {
    asked++;
    hide(true);
    hide(false);
    return Promise.resolve("open");
  });
  opened[0].refuse();
  hide(true);
  assert.equal(waits.length, 0);
  hide(false);
  opened[1].refuse();
  await waits.shift().fn();
  assert.deepEqual([asked, addresses().length, opened.length], [1, 1, 3]);
});
