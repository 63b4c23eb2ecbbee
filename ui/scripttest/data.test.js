import assert from "node:assert/strict";
import { test } from "node:test";
import { element } from "./document.js";
import { tell, waits } from "./events.js";

const { follow } = await import("../static/canvas.js");

test("data that could not be read are read again, though the page does not change", async () => {
  const e = element("canvas", { "data-map": "/data/nodes?v=a" }), drawn = [];
  document.querySelectorAll = () => [e];
  let asked = 0, answer = { ok: false, status: 503 };
  globalThis.fetch = () => {
    asked++;
    return answer ? Promise.resolve(answer) : Promise.reject(new TypeError("no network"));
  };
  const settled = () => new Promise((done) => setImmediate(done));
  follow("canvas", "data-map", (_, data) => drawn.push(data));
  await settled();
  assert.deepEqual([asked, waits.length], [1, 1]);
  answer = null;
  waits.shift().fn();
  await settled();
  assert.deepEqual([asked, waits.length], [2, 1]);
  answer = { ok: true, status: 200, json: async () => "now" };
  waits.shift().fn();
  await settled();
  tell("drover:update");
  await settled();
  assert.deepEqual([asked, waits.length, drawn], [3, 0, ["now"]]);
  answer = { ok: false, status: 404 };
  e.setAttribute("data-map", "/data/nodes?v=b");
  tell("drover:update");
  await settled();
  assert.deepEqual([asked, waits.length], [4, 0]);
});
