import assert from "node:assert/strict";
import { test } from "node:test";
import "./document.js";

const { layOut } = await import("../static/map.js");
const { firstRow } = await import("../static/tasks.js");
const { inView, listedWaiting, suffices, timeAt, waitingText } = await import("../static/schedule.js");

/** @param {number} racks @param {number} each */
function nodes(racks, each) {
  const rack = Array.from({ length: racks * each }, (_, i) => i % racks);
  return { racks: Array.from({ length: racks }, (_, i) => "rack" + i), rack, name: rack.map((_, i) => "n" + i), state: rack.map(() => "up"), cpu: rack.map(() => 0), memory: rack.map(() => 0), tasks: rack.map(() => 0) };
}

test("each node has a square of its own within the map", () => {
  for (const [racks, each] of [[1, 1], [3, 7], [40, 10], [100, 20], [250, 40]]) {
    for (const wide of [320, 1200]) {
      const { squares, size, height } = layOut(nodes(racks, each), wide), seen = new Set();
      assert.equal(squares.length, racks * each);
      for (const s of squares) {
        assert.ok(s.x >= 0 && s.x + size <= wide + 1 && s.y >= 0 && s.y + size <= height, `${racks} racks of ${each} on ${wide}: ${s.x}, ${s.y}`);
        seen.add(`${s.x} ${s.y}`);
      }
      assert.equal(seen.size, squares.length);
    }
  }
});

test("a cluster without nodes has a map", () => assert.equal(layOut({}, 800).squares.length, 0));

test("the rows in view exist, wherever one scrolls in 100,000", () => {
  for (let top = 0; top < 100000; top += 37) {
    const from = firstRow(top * 31);
    assert.ok(from >= 0 && from <= top && from + 100 >= Math.min(top + 40, 100000), `row ${top}: from ${from}`);
  }
});

const bars = (from, to, merged) => ({ version: "v", from, to, merged, row: [], lane: [], job: [], task: [], state: [], placed: [], end: [], count: {}, gaps: {} });

test("bars suffice for what they cover, merged ones only from afar", () => {
  const p = { from: 1000, to: 2000, data: { from: 0, until: 9000, first: 0 } };
  assert.equal(suffices(p, undefined), false);
  assert.equal(suffices(p, bars(0, 0, false)), true);
  assert.equal(suffices(p, bars(0, 0, true)), false);
  assert.equal(suffices(p, bars(900, 2100, true)), true);
  assert.equal(suffices(p, bars(1100, 2100, false)), false);
});

test("time passes in the schedule while the page is hidden", () => {
  assert.equal(timeAt({ read: 1.7e12, came: 500 }, 3600500), 1.7e12 + 3600000);
});

test("only the parts in view are read", () => {
  const p = { y: 1000, height: 3000, top: [0, 500, 1000, 1500, 2500], laneHeight: 10, data: { parts: [0, 1, 2, 3, 4].map((row) => ({ row, lane: 0 })) } };
  assert.deepEqual(inView(p), [1, 2, 3]);
});

test("all that waits is listed, what has an expected start first", () => {
  const waiting = [0, 5, 0, 7].map((start, job) => ({ job, start }));
  assert.deepEqual(listedWaiting({ waiting }).map((w) => w.job), [1, 3, 0, 2]);
  assert.equal(listedWaiting({ waiting: Array.from({ length: 500 }, () => ({ start: 0 })) }).length, 40);
});

test("a job that waits says for what, who goes first, and what would have to give way", () => {
  const d = { jobs: [{ job: 4, name: "night" }, { job: 7, name: "report" }], ending: [{ name: "night build/3", end: Date.now() + 60000 }] };
  const wait = { job: 1, stage: "scan", tasks: 12, reason: "no node has the memory", start: 0, behind: 4, giving: null, stops: null };
  const first = waitingText({ ...d, jobs: [d.jobs[0], d.jobs[1]] }, wait);
  assert.match(first, /^report scan: 12 tasks wait\nno node has the memory\ngoes first: job 4 \(night\)\nnext to end: night build\/3 in \d+ .*\nits start is not known$/);
  const second = waitingText(d, { ...wait, behind: 0, giving: ["night build/1"], stops: ["night build/1 on n2", "a reservation of 9"], start: Date.now() + 3600000 * 3 });
  assert.match(second, /\ngives way: night build\/1\nto start one now, would have to give way: night build\/1 on n2, a reservation of 9\nexpected start .* \(in 3 hr\.?\)$/);
});
