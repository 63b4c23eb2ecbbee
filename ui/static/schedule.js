// The schedule: rows over time, what runs, what is reserved, what is expected.
// @ts-check
import { axis, colour, follow, prepare, redraw, tip } from "./canvas.js";
import { ago, clock, duration, simulated } from "./format.js";

/**
 * @typedef {{version: string, from: number, to: number, merged: boolean, row: number[] | null, lane: number[], job: number[], task: string[], state: string[], placed: number[], end: number[],
 *   count: Record<string, number>, gaps: Record<string, number[]>}} Bars
 * @typedef {{version: string, now: number, from: number, until: number, first: number, rows: {name: string, state: string, detail: string, lanes: number}[],
 *   jobs: {job: number, name: string, tenant: string, deadline: number, guaranteed: number}[], parts: {row: number, lane: number}[], bars: (Bars | undefined)[],
 *   reserved: {row: number, job: number, kind: string, start: number, end: number, latest: number}[], ending: {name: string, end: number}[] | null,
 *   waiting: {job: number, stage: string, tasks: number, reason: string, start: number, estimate: number, behind: number, giving: string[] | null, stops: string[] | null}[]}} Schedule
 * @typedef {{x: number, y: number, w: number, h: number, tip: () => string, href: () => string}} Spot
 * @typedef {{data: Schedule, address: string, top: number[], height: number, from: number, to: number, y: number, spots: Spot[], waiting: Spot[], chosen: number, laneHeight: number, moved: boolean, asked: number, timer: number, failed: boolean, read: number, came: number}} Picture
 */

/** @type {WeakMap<HTMLCanvasElement, Picture>} */ const pictures = new WeakMap();
const labels = 130, head = 24, most = 640, listed = 40;
const nowhere = () => "";

/** @param {HTMLElement} e @param {Schedule} data */
async function show(e, data) {
  const c = /** @type {HTMLCanvasElement} */ (e), old = pictures.get(c);
  data.rows ??= [];
  data.jobs ??= [];
  data.parts ??= [];
  data.bars ??= [];
  data.reserved ??= [];
  data.waiting ??= [];
  const total = data.rows.reduce((a, r) => a + r.lanes, 0);
  const laneHeight = total > 400 ? 3 : total > 120 ? 6 : 13;
  const top = [];
  let y = 0;
  for (const r of data.rows) {
    top.push(y);
    y += Math.max(r.lanes * laneHeight, 13) + 5;
  }
  // At first no time is shown before anything happened; the button All does.
  const first = Math.min(data.now, data.first || data.now), begin = Math.max(data.from, first - (data.until - first) * 0.05 - 1000);
  /** @type {Picture} */
  const p = { data, address: c.getAttribute("data-schedule") ?? "", top, height: y, from: begin, to: data.until + (data.until - data.from) * 0.03, y: old?.y ?? 0, spots: [], waiting: [], chosen: old?.chosen ?? -1, laneHeight, moved: false, asked: 0, timer: 0, failed: false, read: data.now, came: performance.now() };
  if (old?.moved) {
    p.from = old.from;
    p.to = old.to;
    p.moved = true;
  }
  if (old) { // what is in view is there before the picture changes
    await complete(p);
    if (old !== pictures.get(c)) return; // another one came meanwhile
    clearTimeout(old.timer);
    if (old.moved) { // the reader went on
      p.from = old.from;
      p.to = old.to;
      p.moved = true;
    }
    p.y = old.y;
  }
  pictures.set(c, p);
  draw(c);
}

/** @param {{read: number, came: number}} p @param {number} at of performance.now() @returns {number} the cluster's time: no ticks come while the page is hidden, so that they cannot be counted */
export function timeAt(p, at) {
  return p.read + at - p.came;
}

/** @param {Picture} p @returns {number[]} the parts in view */
export function inView(p) {
  const parts = p.data.parts, low = Math.max(0, Math.min(p.y, p.height - most)), high = low + most;
  const at = (/** @type {number} */ k) => (k < parts.length ? p.top[parts[k].row] + parts[k].lane * p.laneHeight : p.height);
  return parts.map((_, k) => k).filter((k) => at(k) <= high && at(k + 1) >= low);
}

/** @param {Picture} p @param {Bars | undefined} b @returns {boolean} whether bars are there for what the picture shows, in enough detail */
export function suffices(p, b) {
  if (!b) return false;
  const detailed = (/** @type {number} */ span) => !b.merged || (p.to - p.from) * 3 > span;
  if (b.to > 0) return p.from >= b.from && p.to <= b.to && detailed(b.to - b.from);
  return detailed(p.data.until - (p.data.first || p.data.from));
}

/** @param {Picture} p reads the bars that are in view and not there @returns {Promise<boolean>} whether all have come */
async function complete(p) {
  if (p.address.startsWith("#")) return true; // a file of its own has all of them
  const asked = ++p.asked, span = p.to - p.from, from = Math.round(p.from - span / 2), to = Math.round(p.to + span / 2);
  const all = from <= (p.data.first || p.data.from) && to >= p.data.until;
  for (const k of inView(p)) {
    const has = p.data.bars[k];
    if (suffices(p, has)) continue;
    const some = !all && (p.moved || has);
    try {
      const res = await fetch(p.address + "&part=" + k + (some ? "&from=" + from + "&to=" + to : ""), { credentials: "same-origin" });
      if (!res.ok || asked !== p.asked) return false;
      /** @type {Bars} */ const got = await res.json();
      if (got.version !== p.data.version) return false; // the page will soon have other rows
      p.data.bars[k] = got;
    } catch {
      return false;
    }
  }
  return true;
}

/** @param {HTMLCanvasElement} c reads what is missing in view soon, and draws it */
function want(c) {
  const p = pictures.get(c);
  if (!p || p.address.startsWith("#") || p.timer || inView(p).every((k) => suffices(p, p.data.bars[k]))) return;
  p.timer = setTimeout(async () => {
    p.failed = !(await complete(p));
    p.timer = 0;
    if (pictures.get(c) === p) draw(c);
  }, p.failed ? 2000 : 150);
}

/** @param {HTMLCanvasElement} c */
function draw(c) {
  const p = pictures.get(c);
  if (!p) return;
  const d = p.data, waiting = listedWaiting(d), pool = d.reserved.filter((r) => r.row < 0).slice(0, listed);
  const below = (waiting.length ? waiting.length * 15 + 35 : 0) + (pool.length ? pool.length * 15 + 20 : 0);
  const bodyHeight = Math.min(p.height, most);
  const { g, w, h } = prepare(c, head + Math.max(bodyHeight, 20) + below + 6);
  const left = w < 500 ? 70 : labels, right = w - 6;
  p.y = Math.max(0, Math.min(p.y, p.height - bodyHeight));
  p.spots = [];
  const x = (/** @type {number} */ t) => left + ((t - p.from) / (p.to - p.from)) * (right - left);
  const col = { running: colour("running"), expected: colour("expected"), suspended: colour("suspended"), succeeded: colour("done"), failed: colour("failed"), other: colour("lost"), reserved: colour("reserved"), planned: colour("planned"), soft: colour("soft"), text: colour("text"), line: colour("line"), rest: colour("rest"), card: colour("card") };
  axis(g, left, right, h, p.from, p.to);
  g.save();
  g.beginPath();
  g.rect(0, head - 4, w, bodyHeight + 6);
  g.clip();
  const clip = (/** @type {number} */ a, /** @type {number} */ b) => /** @type {[number, number]} */ ([Math.max(x(a), left), Math.min(x(b), right)]);
  const rowY = (/** @type {number} */ r) => head + p.top[r] - p.y;
  g.textAlign = "left";
  g.textBaseline = "middle";
  d.rows.forEach((r, i) => {
    const y = rowY(i), rh = Math.max(r.lanes * p.laneHeight, 13);
    if (y + rh < 0 || y > head + bodyHeight) return;
    const bad = r.state !== "up" && r.state !== "probation";
    if (bad) hatch(g, Math.max(left, x(d.now)), y, right, rh, col.line);
    g.fillStyle = col.line;
    g.fillRect(0, Math.round(y + rh) + 2, w, 1);
    g.fillStyle = bad ? col.failed : col.soft;
    g.fillText(fit(g, bad ? r.name + " " + r.state : r.name, left - 8), 2, y + 7);
    p.spots.push({ x: 0, y, w: left, h: rh, tip: () => r.name + ": " + r.state + (r.detail ? "\n" + r.detail : ""), href: nowhere });
  });
  for (const r of d.reserved) {
    if (r.row < 0) continue;
    const y = rowY(r.row), rh = Math.max(d.rows[r.row].lanes * p.laneHeight, 13);
    if (y + rh >= 0 && y <= head + bodyHeight) reserved(p, g, r, y, rh, clip, col, x);
  }
  const bh = Math.max(p.laneHeight - (p.laneHeight > 4 ? 2 : 1), 2);
  for (const k of inView(p)) {
    const b = d.bars[k];
    for (let i = 0; b && i < (b.row?.length ?? 0); i++) {
      const row = /** @type {number[]} */ (b.row)[i];
      if (row >= d.rows.length) continue;
      const y = rowY(row) + b.lane[i] * p.laneHeight;
      if (y + bh >= head - 4 && y <= head + bodyHeight) attempt(p, g, b, i, y, bh, clip, col);
    }
  }
  g.restore();
  let y = head + bodyHeight + 12;
  const section = (/** @type {string} */ title) => {
    g.fillStyle = col.text;
    g.textAlign = "left";
    g.fillText(title, 2, y);
    y += 14;
  };
  if (pool.length) {
    section("Reserved on any node");
    for (const r of pool) {
      reserved(p, g, r, y - 6, 11, clip, col, x);
      g.fillStyle = col.soft;
      g.fillText(fit(g, r.job >= 0 ? d.jobs[r.job].name : "", left - 8), 2, y);
      y += 15;
    }
    y += 6;
  }
  p.waiting = [];
  if (waiting.length) {
    section("Waiting, and expected starts");
    for (const wait of waiting) {
      const [a, b] = wait.start ? clip(wait.start, wait.start + Math.max(wait.estimate, (p.to - p.from) / 200)) : [0, 0];
      g.strokeStyle = col.planned;
      g.setLineDash([3, 2]);
      if (b > a) g.strokeRect(a + 0.5, y - 5.5, Math.max(b - a - 1, 3), 10);
      g.setLineDash([]);
      g.fillStyle = col.soft;
      g.fillText(fit(g, (wait.job >= 0 ? d.jobs[wait.job].name + " " : "") + wait.stage, left - 8), 2, y);
      if (!wait.start && x(d.now) < right - 90) g.fillText("start not known", Math.max(x(d.now) + 6, left), y);
      const place = { x: 0, y: y - 7, w, h: 14, tip: () => waitingText(d, wait), href: () => (wait.job >= 0 ? "/jobs/" + d.jobs[wait.job].job : "") };
      p.spots.push(place);
      p.waiting.push(place);
      if (p.waiting.length - 1 === p.chosen) {
        g.strokeStyle = colour("focus");
        g.strokeRect(0.5, y - 7.5, w - 1, 15);
      }
      y += 15;
    }
  }
  const rest = d.waiting.length - waiting.length;
  if (rest > 0) {
    g.fillStyle = col.soft;
    g.fillText(`and ${rest} more in the table below`, left, y);
  }
  for (const j of d.jobs) for (const [t, name] of /** @type {[number, string][]} */ ([[j.guaranteed, "guaranteed end"], [j.deadline, "deadline"]])) {
    if (t < p.from || t > p.to) continue;
    const at = x(t);
    g.fillStyle = name === "deadline" ? colour("failed") : col.reserved;
    g.beginPath();
    g.moveTo(at - 5, head - 6);
    g.lineTo(at + 5, head - 6);
    g.lineTo(at, head + 2);
    g.fill();
    p.spots.unshift({ x: at - 6, y: head - 8, w: 12, h: 12, tip: () => `${name} of ${j.name}: ${clock(t)} (${ago(t)})`, href: () => "/jobs/" + j.job });
  }
  const at = x(d.now);
  if (at >= left && at <= right && !simulated) {
    g.fillStyle = colour("text");
    g.fillRect(Math.round(at), 18, 1.5, h - 18);
    g.textAlign = at > right - 40 ? "right" : "left";
    g.fillText("now", at + (at > right - 40 ? -4 : 4), h - 8);
  }
  if (p.height > bodyHeight) {
    g.fillStyle = col.line;
    g.fillRect(w - 4, head, 4, bodyHeight);
    g.fillStyle = col.soft;
    g.fillRect(w - 4, head + (p.y / p.height) * bodyHeight, 4, Math.max((bodyHeight / p.height) * bodyHeight, 12));
  }
  want(c);
}

/** @param {CanvasRenderingContext2D} g @param {string} text @param {number} width @returns {string} as much of text as fits */
function fit(g, text, width) {
  if (text.length < 6 || g.measureText(text).width <= width) return text;
  let n = Math.min(text.length, Math.ceil(width / 4));
  while (n > 3 && g.measureText(text.slice(0, n) + "…").width > width) n--;
  return text.slice(0, n) + "…";
}

/** @param {CanvasRenderingContext2D} g @param {number} left @param {number} y @param {number} right @param {number} h @param {string} fill */
function hatch(g, left, y, right, h, fill) {
  g.save();
  g.beginPath();
  g.rect(left, y, right - left, h);
  g.clip();
  g.strokeStyle = fill;
  g.lineWidth = 2;
  g.beginPath();
  for (let x = left - h; x < right; x += 8) {
    g.moveTo(x, y + h);
    g.lineTo(x + h, y);
  }
  g.stroke();
  g.restore();
  g.lineWidth = 1;
}

/**
 * @param {Picture} p @param {CanvasRenderingContext2D} g @param {Bars} d @param {number} i @param {number} y @param {number} h
 * @param {(a: number, b: number) => [number, number]} clip @param {Record<string, string>} col
 */
function attempt(p, g, d, i, y, h, clip, col) {
  const now = p.data.now, live = d.state[i] === "running" || d.state[i] === "suspended" || d.state[i] === "stopping";
  const end = d.end[i] || (live ? now : d.placed[i]), [a, b] = clip(d.placed[i], Math.max(end, live ? now : 0));
  if (b <= a) return;
  if (live) {
    const [, until] = clip(d.placed[i], now);
    g.fillStyle = col.running;
    g.fillRect(a, y, Math.max(until - a, 1), h);
    if (b > until) {
      g.fillStyle = col.expected;
      g.fillRect(Math.max(until, a), y, b - Math.max(until, a), h);
    }
  } else {
    g.fillStyle = d.state[i] === "succeeded" ? col.succeeded : d.state[i] === "failed" ? col.failed : col.other;
    g.fillRect(a, y, Math.max(b - a, 1.5), h);
  }
  const gaps = d.gaps?.[i] ?? [];
  for (let k = 0; k + 1 < gaps.length; k += 2) {
    const [from, to] = clip(gaps[k], gaps[k + 1] || now);
    if (to <= from) continue;
    g.fillStyle = col.card;
    g.fillRect(from, y, to - from, h);
    g.fillStyle = col.suspended;
    g.fillRect(from, y + h / 2 - 1, to - from, Math.max(h / 4, 1.5));
  }
  p.spots.push({ x: a, y, w: Math.max(b - a, 3), h, href: () => attemptAddress(p.data, d, i), tip: () => attemptText(p.data, d, i, live, end) });
}

/** @param {Schedule} all @param {Bars} d @param {number} i @returns {string} of the task of a bar, "" if it has none */
function attemptAddress(all, d, i) {
  const job = all.jobs[d.job[i]];
  if (!job) return "";
  return `/jobs/${job.job}` + (d.task[i] ? "/tasks/" + d.task[i].split("/").map(encodeURIComponent).join("/") : "");
}

/** @param {Schedule} all @param {Bars} d @param {number} i @param {boolean} live @param {number} end */
function attemptText(all, d, i, live, end) {
  const job = all.jobs[d.job[i]], n = d.count?.[i] ?? 0, gaps = d.gaps?.[i] ?? [];
  if (n > 1) return [`${n} short attempts${job ? ` of ${job.name} (${job.tenant})` : ""}${d.state[i] === "succeeded" ? "" : ", not all succeeded"}`, `from ${clock(d.placed[i])} to ${clock(end)}; zoom in for each`].join("\n");
  return [(job ? `${job.name} ${d.task[i]} (${job.tenant})` : "a job that you may not read") + ": " + d.state[i],
    `placed ${clock(d.placed[i])}, ${live ? (d.end[i] ? `expected end ${clock(d.end[i])} (${ago(d.end[i])})` : "its end is not known") : `ended ${clock(end)} after ${duration(end - d.placed[i])}`}`,
    ...(gaps.length ? [`suspended ${gaps.length / 2} times`] : [])].join("\n");
}

/**
 * @param {Picture} p @param {CanvasRenderingContext2D} g @param {Schedule["reserved"][number]} r @param {number} y @param {number} h
 * @param {(a: number, b: number) => [number, number]} clip @param {Record<string, string>} col @param {(t: number) => number} x
 */
function reserved(p, g, r, y, h, clip, col, x) {
  const d = p.data, [a, b] = clip(r.start, r.end || p.to), firm = r.kind === "project" || r.kind === "deadline";
  if (b <= a) return;
  g.strokeStyle = col.reserved;
  g.lineWidth = firm ? 2 : 1;
  g.strokeRect(a + 1, y + 0.5, Math.max(b - a - 2, 2), h - 1);
  g.lineWidth = 1;
  if (firm) {
    g.globalAlpha = 0.25;
    g.fillStyle = col.reserved;
    g.fillRect(a, y, b - a, h);
    g.globalAlpha = 1;
  }
  if (r.latest > p.from && r.latest < p.to) {
    g.fillStyle = col.reserved;
    g.fillRect(x(r.latest) - 1, y - 2, 2, h + 4);
  }
  p.spots.unshift({ x: a, y, w: Math.max(b - a, 3), h, href: () => (r.job >= 0 ? "/jobs/" + d.jobs[r.job].job : ""),
    tip: () => [`reserved (${r.kind}) for ${r.job >= 0 ? d.jobs[r.job].name : "a job that you may not read"}`, `from ${clock(r.start)}${r.end ? ` until ${clock(r.end)}` : ""}`,
      ...(r.latest ? [`latest start that keeps the guarantee: ${clock(r.latest)}`] : [])].join("\n") });
}

/** @param {Schedule} d @param {Schedule["waiting"][number]} w */
export function waitingText(d, w) {
  const j = d.jobs[w.job], behind = d.jobs.find((o) => o.job === w.behind);
  return [`${j ? j.name : "a job"} ${w.stage}: ${w.tasks} tasks wait`, w.reason, w.behind ? `goes first: job ${w.behind}${behind ? ` (${behind.name})` : ""}` : "",
    w.giving?.length ? "gives way: " + w.giving.join(", ") : freed(d), w.stops?.length ? "to start one now, would have to give way: " + w.stops.join(", ") : "", w.start ? `expected start ${clock(w.start)} (${ago(w.start)})` : "its start is not known"].filter((s) => s).join("\n");
}

/** @param {Schedule} d @returns {Schedule["waiting"]} what the picture lists, those with an expected start first */
export function listedWaiting(d) {
  return [...d.waiting.filter((w) => w.start > 0), ...d.waiting.filter((w) => !w.start)].slice(0, listed);
}

/** @param {HTMLCanvasElement} c @param {number} step to the next or the one before of what waits, and says of it what the pointer would */
function choose(c, step) {
  const p = pictures.get(c);
  if (!p?.waiting.length) return;
  p.chosen = p.chosen < 0 ? (step > 0 ? 0 : p.waiting.length - 1) : (p.chosen + step + p.waiting.length) % p.waiting.length;
  draw(c);
  const s = p.waiting[p.chosen], box = c.getBoundingClientRect();
  tip(s.tip(), box.left + Math.min(labels, box.width / 4), box.top + s.y);
}

/** @param {Schedule} d @returns {string} what would have to end first: the next attempts expected to */
function freed(d) {
  return d.ending?.length ? "next to end: " + d.ending.map((e) => e.name + " " + ago(e.end)).join(", ") : "";
}

/** @param {HTMLCanvasElement} c @param {number} factor @param {number} [around] of the width, 0 to 1 */
function zoom(c, factor, around = 0.5) {
  const p = pictures.get(c);
  if (!p) return;
  const t = p.from + (p.to - p.from) * around, span = Math.min(Math.max((p.to - p.from) * factor, 5000), 400 * 86400000);
  p.from = t - span * around;
  p.to = p.from + span;
  p.moved = true;
  draw(c);
}

/** @param {HTMLCanvasElement} c */
function all(c) {
  const p = pictures.get(c);
  if (!p) return;
  p.moved = false;
  p.from = p.data.from;
  p.to = p.data.until + (p.data.until - p.data.from) * 0.03;
  p.y = 0;
  draw(c);
}

/** @param {EventTarget | null} t @returns {HTMLCanvasElement | null} */
function picture(t) {
  return t instanceof HTMLCanvasElement && pictures.has(t) ? t : null;
}

document.addEventListener("click", (e) => {
  const b = e.target instanceof Element ? e.target.closest("[data-zoom]") : null;
  if (b) {
    for (const e of b.closest("section")?.querySelectorAll("canvas.schedule") ?? []) {
      const c = /** @type {HTMLCanvasElement} */ (e);
      if (b.getAttribute("data-zoom") === "all") all(c);
      else zoom(c, b.getAttribute("data-zoom") === "in" ? 0.5 : 2);
    }
    return;
  }
  const own = picture(e.target);
  const s = own && spot(own, e);
  const to = s?.href() ?? "";
  if (to && !dragged && !simulated) location.href = to;
});
document.addEventListener("wheel", (e) => {
  const c = picture(e.target), p = c && pictures.get(c);
  if (!c || !p) return;
  const box = c.getBoundingClientRect();
  if (e.ctrlKey || e.metaKey) {
    e.preventDefault();
    zoom(c, e.deltaY > 0 ? 1.25 : 0.8, Math.max(0, Math.min(1, (e.clientX - box.left - labels) / (box.width - labels))));
  } else if (p.height > most && !e.shiftKey) {
    const y = Math.max(0, Math.min(p.y + e.deltaY, p.height - most));
    if (y !== p.y) {
      e.preventDefault();
      p.y = y;
      draw(c);
    }
  }
}, { passive: false });

let dragged = false;
/** @type {{c: HTMLCanvasElement, x: number, from: number, to: number} | null} */ let drag = null;
document.addEventListener("pointerdown", (e) => {
  const c = picture(e.target), p = c && pictures.get(c);
  dragged = false;
  if (c && p) drag = { c, x: e.clientX, from: p.from, to: p.to };
});
document.addEventListener("pointerup", () => (drag = null));
document.addEventListener("pointermove", (e) => {
  const p = drag && pictures.get(drag.c);
  if (drag && p) {
    const dx = e.clientX - drag.x;
    if (Math.abs(dx) > 3) dragged = true;
    if (!dragged) return;
    const move = (dx / (drag.c.clientWidth - labels)) * (drag.to - drag.from);
    p.from = drag.from - move;
    p.to = drag.to - move;
    p.moved = true;
    return draw(drag.c);
  }
  const c = picture(e.target);
  if (!c) return;
  const s = spot(c, e);
  c.style.cursor = s?.href() ? "pointer" : "";
  tip(s ? s.tip() : "", e.clientX, e.clientY);
});
document.addEventListener("pointerout", (e) => picture(e.target) && tip(""));
document.addEventListener("focusout", (e) => {
  const c = picture(e.target), p = c && pictures.get(c);
  if (!c || !p || p.chosen < 0) return;
  p.chosen = -1;
  tip("");
  draw(c);
});
document.addEventListener("keydown", (e) => {
  const c = picture(document.activeElement), p = c && pictures.get(c);
  if (!c || !p || e.ctrlKey || e.metaKey || e.altKey) return; // those are the browser's
  const step = (p.to - p.from) / 8;
  switch (e.key) {
    case "+": zoom(c, 0.5); break;
    case "-": zoom(c, 2); break;
    case "0": all(c); break;
    case "n": choose(c, 1); break;
    case "p": choose(c, -1); break;
    case "Escape":
      p.chosen = -1;
      tip("");
      draw(c);
      break;
    case "Enter":
      if (!p.waiting[p.chosen]?.href() || simulated) return;
      location.href = p.waiting[p.chosen].href();
      break;
    case "ArrowLeft": case "ArrowRight":
      p.from += e.key === "ArrowLeft" ? -step : step;
      p.to += e.key === "ArrowLeft" ? -step : step;
      p.moved = true;
      draw(c);
      break;
    case "ArrowUp": case "ArrowDown":
      if (p.height <= most) return;
      p.y += e.key === "ArrowUp" ? -60 : 60;
      draw(c);
      break;
    default: return;
  }
  e.preventDefault();
});

/** @param {HTMLCanvasElement} c @param {MouseEvent} e @returns {Spot | undefined} what is below the pointer */
function spot(c, e) {
  const box = c.getBoundingClientRect(), x = e.clientX - box.left, y = e.clientY - box.top;
  const spots = pictures.get(c)?.spots ?? [];
  for (let i = spots.length - 1; i >= 0; i--) { // what was drawn last is on top
    const s = spots[i];
    if (x >= s.x && x <= s.x + s.w && y >= s.y && y <= s.y + s.h) return s;
  }
  return undefined;
}

follow("canvas.schedule", "data-schedule", show);
setInterval(() => {
  for (const c of document.querySelectorAll("canvas.schedule")) {
    const p = pictures.get(/** @type {HTMLCanvasElement} */ (c));
    if (!p || document.hidden || simulated) continue;
    p.data.now = timeAt(p, performance.now());
    draw(/** @type {HTMLCanvasElement} */ (c));
  }
}, 1000);
redraw(() => {
  for (const c of document.querySelectorAll("canvas.schedule")) draw(/** @type {HTMLCanvasElement} */ (c));
});
