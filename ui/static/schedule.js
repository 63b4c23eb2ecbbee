// The schedule: rows over time, what runs, what is reserved, what is expected.
// @ts-check
import { axis, colour, duration, follow, prepare, redraw, tip } from "./canvas.js";
import { ago, clock } from "./page.js";

/**
 * @typedef {{now: number, from: number, until: number, rows: {name: string, state: string, detail: string}[],
 *   jobs: {job: number, name: string, tenant: string, deadline: number, guaranteed: number}[],
 *   row: number[], job: number[], task: string[], state: string[], placed: number[], end: number[], weight: number[], gaps: Record<string, number[]>,
 *   reserved: {row: number, job: number, kind: string, start: number, end: number, latest: number}[],
 *   waiting: {job: number, stage: string, tasks: number, reason: string, start: number, estimate: number, behind: number, giving: string[] | null}[]}} Schedule
 * @typedef {{x: number, y: number, w: number, h: number, tip: () => string, href: string}} Spot
 * @typedef {{data: Schedule, lane: number[], lanes: number[], top: number[], height: number, from: number, to: number, y: number, spots: Spot[], laneHeight: number, moved: boolean}} Picture
 */

/** @type {WeakMap<HTMLCanvasElement, Picture>} */ const pictures = new WeakMap();
const labels = 130, head = 24, most = 640;

/** @param {Schedule} d @returns {{lane: number[], lanes: number[]}} for each attempt a lane of its row that is free, and how many lanes each row has */
function arrange(d) {
  const n = d.row?.length ?? 0, order = [...Array(n).keys()].sort((a, b) => d.placed[a] - d.placed[b] || a - b);
  /** @type {number[][]} */ const ends = d.rows.map(() => []);
  const lane = new Array(n).fill(0), horizon = Math.max(d.until, d.now);
  for (const i of order) {
    if (d.row[i] < 0) continue;
    const list = ends[d.row[i]], end = d.end[i] || horizon;
    let k = list.findIndex((e) => e <= d.placed[i]);
    if (k < 0) k = list.length;
    list[k] = end;
    lane[i] = k;
  }
  return { lane, lanes: ends.map((l) => Math.max(l.length, 1)) };
}

/** @param {HTMLElement} e @param {Schedule} data */
function show(e, data) {
  const c = /** @type {HTMLCanvasElement} */ (e), old = pictures.get(c);
  data.rows ??= [];
  data.jobs ??= [];
  data.reserved ??= [];
  data.waiting ??= [];
  const { lane, lanes } = arrange(data);
  if (data.waiting.length || data.reserved.some((r) => r.row < 0)) data.rows = [...data.rows]; // the rows for what has no node come below
  const total = lanes.reduce((a, b) => a + b, 0);
  const laneHeight = total > 400 ? 3 : total > 120 ? 6 : 13;
  const top = [];
  let y = 0;
  for (const n of lanes) {
    top.push(y);
    y += Math.max(n * laneHeight, 13) + 5;
  }
  // At first no time is shown before anything happened; the button All does.
  const first = Math.min(data.now, ...(data.placed ?? []).slice(0, 50000)), begin = Math.max(data.from, first - (data.until - first) * 0.05 - 1000);
  const p = { data, lane, lanes, top, height: y, from: begin, to: data.until + (data.until - data.from) * 0.03, y: 0, spots: [], laneHeight, moved: false };
  if (old?.moved) {
    p.from = old.from;
    p.to = old.to;
    p.y = old.y;
    p.moved = true;
  }
  pictures.set(c, p);
  draw(c);
}

/** @param {HTMLCanvasElement} c */
function draw(c) {
  const p = pictures.get(c);
  if (!p) return;
  const d = p.data, planned = d.waiting.filter((w) => w.start > 0), pool = d.reserved.filter((r) => r.row < 0);
  const below = (planned.length ? planned.length * 15 + 20 : 0) + (pool.length ? pool.length * 15 + 20 : 0);
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
    const y = rowY(i), rh = Math.max(p.lanes[i] * p.laneHeight, 13);
    if (y + rh < 0 || y > head + bodyHeight) return;
    const bad = r.state !== "up" && r.state !== "probation";
    if (bad) hatch(g, Math.max(left, x(d.now)), y, right, rh, col.line);
    g.fillStyle = col.line;
    g.fillRect(0, Math.round(y + rh) + 2, w, 1);
    g.fillStyle = bad ? colour("failed") : col.soft;
    g.fillText(fit(g, bad ? r.name + " " + r.state : r.name, left - 8), 2, y + 7);
    p.spots.push({ x: 0, y, w: left, h: rh, tip: () => r.name + ": " + r.state + (r.detail ? "\n" + r.detail : ""), href: "" });
  });
  for (const r of d.reserved) if (r.row >= 0) reserved(p, g, r, rowY(r.row), Math.max(p.lanes[r.row] * p.laneHeight, 13), clip, col, x);
  for (let i = 0; i < (d.row?.length ?? 0); i++) {
    if (d.row[i] < 0) continue;
    const y = rowY(d.row[i]) + p.lane[i] * p.laneHeight, bh = Math.max(p.laneHeight - (p.laneHeight > 4 ? 2 : 1), 2);
    if (y + bh < head - 4 || y > head + bodyHeight) continue;
    attempt(p, g, i, y, bh, clip, col);
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
  if (planned.length) {
    section("Expected starts");
    for (const wait of planned) {
      const [a, b] = clip(wait.start, wait.start + Math.max(wait.estimate, (p.to - p.from) / 200));
      g.strokeStyle = col.planned;
      g.setLineDash([3, 2]);
      if (b > a) g.strokeRect(a + 0.5, y - 5.5, Math.max(b - a - 1, 3), 10);
      g.setLineDash([]);
      g.fillStyle = col.soft;
      g.fillText(fit(g, (wait.job >= 0 ? d.jobs[wait.job].name + " " : "") + wait.stage, left - 8), 2, y);
      p.spots.push({ x: 0, y: y - 7, w, h: 14, tip: () => waitingText(d, wait), href: wait.job >= 0 ? "/jobs/" + d.jobs[wait.job].job : "" });
      y += 15;
    }
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
    p.spots.unshift({ x: at - 6, y: head - 8, w: 12, h: 12, tip: () => `${name} of ${j.name}: ${clock(t)} (${ago(t)})`, href: "/jobs/" + j.job });
  }
  const at = x(d.now);
  if (at >= left && at <= right) {
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
 * @param {Picture} p @param {CanvasRenderingContext2D} g @param {number} i @param {number} y @param {number} h
 * @param {(a: number, b: number) => [number, number]} clip @param {Record<string, string>} col
 */
function attempt(p, g, i, y, h, clip, col) {
  const d = p.data, live = d.state[i] === "running" || d.state[i] === "suspended" || d.state[i] === "stopping";
  const end = d.end[i] || (live ? d.now : d.placed[i]), [a, b] = clip(d.placed[i], Math.max(end, live ? d.now : 0));
  if (b <= a) return;
  if (live) {
    const [, until] = clip(d.placed[i], d.now);
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
    const [from, to] = clip(gaps[k], gaps[k + 1] || d.now);
    if (to <= from) continue;
    g.fillStyle = col.card;
    g.fillRect(from, y, to - from, h);
    g.fillStyle = col.suspended;
    g.fillRect(from, y + h / 2 - 1, to - from, Math.max(h / 4, 1.5));
  }
  const job = d.jobs[d.job[i]];
  p.spots.push({ x: a, y, w: Math.max(b - a, 3), h, href: job ? `/jobs/${job.job}/tasks/` + d.task[i].split("/").map(encodeURIComponent).join("/") : "",
    tip: () => [(job ? `${job.name} ${d.task[i]} (${job.tenant})` : "a job that you may not read") + ": " + d.state[i],
      `placed ${clock(d.placed[i])}, ${live ? (d.end[i] ? `expected end ${clock(d.end[i])} (${ago(d.end[i])})` : "its end is not known") : `ended ${clock(end)} after ${duration(end - d.placed[i])}`}`,
      ...(gaps.length ? [`suspended ${gaps.length / 2} times`] : [])].join("\n") });
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
  p.spots.unshift({ x: a, y, w: Math.max(b - a, 3), h, href: r.job >= 0 ? "/jobs/" + d.jobs[r.job].job : "",
    tip: () => [`reserved (${r.kind}) for ${r.job >= 0 ? d.jobs[r.job].name : "a job that you may not read"}`, `from ${clock(r.start)}${r.end ? ` until ${clock(r.end)}` : ""}`,
      ...(r.latest ? [`latest start that keeps the guarantee: ${clock(r.latest)}`] : [])].join("\n") });
}

/** @param {Schedule} d @param {Schedule["waiting"][number]} w */
function waitingText(d, w) {
  const j = d.jobs[w.job], behind = d.jobs.find((o) => o.job === w.behind);
  return [`${j ? j.name : "a job"} ${w.stage}: ${w.tasks} tasks wait`, w.reason, w.behind ? `goes first: job ${w.behind}${behind ? ` (${behind.name})` : ""}` : "",
    w.giving?.length ? "gives way: " + w.giving.join(", ") : freed(d), w.start ? `expected start ${clock(w.start)} (${ago(w.start)})` : "its start is not known"].filter((s) => s).join("\n");
}

/** @param {Schedule} d @returns {string} what would have to end first: the next attempts expected to */
function freed(d) {
  const next = [...Array(d.row?.length ?? 0).keys()].filter((i) => d.state[i] === "running" && d.end[i] > d.now).sort((a, b) => d.end[a] - d.end[b]).slice(0, 3);
  return next.length ? "next to end: " + next.map((i) => (d.jobs[d.job[i]]?.name ?? "another's") + " " + d.task[i] + " " + ago(d.end[i])).join(", ") : "";
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
  show(c, p.data);
  const q = pictures.get(c);
  if (q) {
    q.moved = false;
    q.from = q.data.from;
    q.to = q.data.until + (q.data.until - q.data.from) * 0.03;
    q.y = 0;
  }
  draw(c);
}

/** @param {EventTarget | null} t @returns {HTMLCanvasElement | null} */
function picture(t) {
  return t instanceof HTMLCanvasElement && pictures.has(t) ? t : null;
}

document.addEventListener("click", (e) => {
  const b = e.target instanceof Element ? e.target.closest("[data-zoom]") : null;
  const c = b?.closest("section")?.querySelector("canvas") ?? null;
  if (b && c) return b.getAttribute("data-zoom") === "all" ? all(c) : zoom(c, b.getAttribute("data-zoom") === "in" ? 0.5 : 2);
  const own = picture(e.target);
  const s = own && spot(own, e);
  if (s?.href && !dragged && !document.documentElement.hasAttribute("data-simulated")) location.href = s.href;
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
  c.style.cursor = s?.href ? "pointer" : "";
  tip(s ? s.tip() : "", e.clientX, e.clientY);
});
document.addEventListener("pointerout", (e) => picture(e.target) && tip(""));
document.addEventListener("keydown", (e) => {
  const c = picture(document.activeElement), p = c && pictures.get(c);
  if (!c || !p) return;
  const step = (p.to - p.from) / 8;
  switch (e.key) {
    case "+": zoom(c, 0.5); break;
    case "-": zoom(c, 2); break;
    case "0": all(c); break;
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
setInterval(() => { // time passes
  for (const c of document.querySelectorAll("canvas.schedule")) {
    const p = pictures.get(/** @type {HTMLCanvasElement} */ (c));
    if (!p || document.hidden || document.documentElement.hasAttribute("data-simulated")) continue;
    p.data.now += 1000;
    draw(/** @type {HTMLCanvasElement} */ (c));
  }
}, 1000);
redraw(() => document.querySelectorAll("canvas.schedule").forEach((c) => draw(/** @type {HTMLCanvasElement} */ (c))));
