import assert from "node:assert/strict";
import { test } from "node:test";
import "./document.js";

const { ago, clock, duration } = await import("../static/format.js");
const { ticks } = await import("../static/canvas.js");

test("durations have two units at most", () => {
  for (const [ms, text] of [[-5, "0 ms"], [0, "0 ms"], [999.4, "999 ms"], [1000, "1 s"], [59400, "59 s"], [60000, "1 min 0 s"], [3599000, "59 min 59 s"], [3600000, "1 h 0 min"], [90000000, "1 d 1 h"], [8640000000, "100 d 0 h"]]) {
    assert.equal(duration(ms), text);
  }
});

test("how far a time is from now, in the largest unit that fits", () => {
  const now = Date.now();
  for (const [s, text] of [[-80, /^80 sec?\.? ago$/], [-100, /^2 min\.? ago$/], [600, /^in 10 min\.?$/], [-7200, /^2 hr\.? ago$/], [172800, /^in 2 days$/]]) {
    assert.match(ago(now + s * 1000 + (s > 0 ? 400 : 0)), text); // some time passes in between
  }
});

test("another day has its date, another year its year", () => {
  const now = new Date();
  assert.match(clock(now.getTime()), /^\d\d:\d\d:\d\d$/);
  const other = new Date(now.getFullYear(), now.getMonth() === 0 ? 5 : 0, 3, 4, 5, 6);
  assert.match(clock(other.getTime()), /^(3 \w+|\w+ 3) 04:05:06$/);
  other.setFullYear(2019);
  assert.match(clock(other.getTime()), /2019.* 04:05:06$/);
});

test("an axis of any length has round times, and room for a text at each", () => {
  for (let span = 1000; span < 4e12; span *= 1.7) {
    for (const wide of [200, 620, 1900]) {
      const from = 1.7e12 + span / 3, { step, at } = ticks(from, from + span, wide, -3600000);
      assert.ok(at.length <= Math.max(2, wide / 85) + 1, `${at.length} times in ${wide} pixels and ${span} ms`);
      for (const t of at) assert.ok(t >= from && t <= from + span && (t + 3600000) % step === 0);
    }
  }
});
