// The tasks of a job: a table of which only the rows in view exist, and the
// waterfall of their attempts.
// @ts-check
import { axis, colour, follow, mayPass, prepare, redraw, retryAfter, tip } from "./canvas.js";
import { clock, duration } from "./format.js";
import { morph } from "./morph.js";

/** @typedef {{stage: string, index: number, state: string, node: string, attempts: number, failed: number, waited: number, ran: number, progress: number, status: string}} Row */
/** @typedef {{attempt: number, placed: number, started: number, end: number, state: string, paused: number, fetching: number, committing: number, suspended: number, since: number}} Bar */
/** @typedef {{job: number, rows: {task: string, ready: number, slow: boolean, bars: Bar[]}[], total: number, now: number, ended: number}} Fall */

const rowHeight = 31, // as the style sheet says: its content fits
   windowRows = 100;

/** @param {number} scrolled in pixels @returns {number} the first row that is to exist, some before those in view */
export function firstRow(scrolled) {
  const top = Math.floor(scrolled / rowHeight);
  return Math.max(0, Math.floor((top - windowRows / 4) / 25) * 25);
}

/** A table of which the rows near the view exist. */
class VirtualTable {
  /** @param {HTMLElement} box */
  constructor(box) {
    this.box = box;
    this.body = /** @type {HTMLTableSectionElement} */ (box.querySelector("tbody"));
    this.job = location.pathname.split("/")[2];
    this.from = -1;
    this.asked = 0;
    box.dataset.managed = "y";
    box.addEventListener("scroll", () => this.show(false));
    document.addEventListener("drover:update", () => this.show(true));
    this.show(true);
  }

  /** @param {boolean} again even if the rows in view are the same */
  async show(again) {
    const from = firstRow(this.box.scrollTop);
    if (from === this.from && !again) return;
    this.from = from;
    const turn = ++this.asked, address = this.box.dataset.tasks + "&from=" + from + "&n=" + windowRows;
    try {
      const res = await fetch(address, { credentials: "same-origin" });
      if (res.ok) {
        const got = await res.json();
        if (turn === this.asked) this.fill(got, from);
        return;
      }
      if (!mayPass(res)) return;
    } catch {
      // It is read again below.
    }
    if (turn !== this.asked) return;
    this.from = -1;
    setTimeout(() => turn === this.asked && this.show(true), retryAfter); // the page may not change any more
  }

  /** @param {{rows: Row[] | null, total: number}} got @param {number} from */
  fill(got, from) {
    const rows = got.rows ?? [];
    const spacer = (/** @type {string} */ key, /** @type {number} */ n) => {
      const tr = document.createElement("tr"), td = document.createElement("td");
      tr.setAttribute("data-key", key + " " + n); // one of another height is another one: the page's policy lets no attribute change it
      td.colSpan = 8;
      td.style.height = n * rowHeight + "px";
      td.style.padding = "0";
      tr.setAttribute("aria-hidden", "true");
      tr.append(td);
      return tr;
    };
    const out = rows.map((r) => this.row(r));
    if (from > 0) out.unshift(spacer("before", from));
    const rest = got.total - from - rows.length;
    if (rest > 0) out.push(spacer("after", rest));
    const next = /** @type {HTMLElement} */ (this.body.cloneNode(false));
    next.replaceChildren(...out);
    morph(this.body, next); // a link keeps its focus
  }

  /** @param {Row} r */
  row(r) {
    const tr = document.createElement("tr");
    const cell = (/** @type {string | Node} */ v, /** @type {string} */ c = "") => {
      const td = document.createElement("td");
      td.className = c;
      td.append(v);
      if (typeof v === "string") td.title = v;
      tr.append(td);
    };
    const th = document.createElement("th"), a = document.createElement("a");
    tr.setAttribute("data-key", r.stage + "/" + r.index);
    th.scope = "row";
    a.href = `/jobs/${this.job}/tasks/${encodeURIComponent(r.stage)}/${r.index}`;
    a.textContent = r.stage + "/" + r.index;
    th.append(a);
    tr.append(th);
    const chip = document.createElement("span");
    chip.className = "chip s-" + r.state.replaceAll(/[^a-z]/g, "");
    chip.textContent = r.state;
    cell(chip);
    cell(r.node);
    cell(r.attempts + (r.failed ? ` (${r.failed} failed)` : ""), "n");
    cell(r.waited < 0 ? "–" : duration(r.waited), "n"); // a task that has not been placed still waits
    cell(duration(r.ran), "n");
    cell(Math.round(r.progress * 100) + " %", "n");
    cell(r.status);
    return tr;
  }
}

const falls = new WeakMap();

/** @param {HTMLElement} e @param {Fall} data */
function draw(e, data) {
  const c = /** @type {HTMLCanvasElement} */ (e), rows = data.rows ?? [];
  const h = rows.length > 300 ? 2 : rows.length > 80 ? 5 : 14, gap = h > 4 ? 2 : 0, top = 22;
  const { g, w } = prepare(c, top + Math.max(rows.length, 1) * (h + gap) + 6);
  const now = data.ended || data.now;
  let from = Infinity, to = 0;
  for (const r of rows) {
    if (r.ready) from = Math.min(from, r.ready);
    for (const b of r.bars ?? []) to = Math.max(to, b.end || now);
  }
  if (!Number.isFinite(from) || to <= from) {
    from = Math.min(from, now - 1000);
    to = Math.max(now, from + 1000);
  }
  const left = h > 10 ? 92 : 4, right = w - 4;
  const x = (/** @type {number} */ t) => left + ((t - from) / (to - from)) * (right - left);
  axis(g, left, right, top + rows.length * (h + gap), from, to);
  const colours = { waiting: colour("rest"), starting: colour("starting"), fetching: colour("fetching"), committing: colour("committing"), running: colour("running"), suspended: colour("suspended"), succeeded: colour("done"), failed: colour("failed"), lost: colour("lost"), stopped: colour("lost") };
  const bar = (/** @type {number} */ a, /** @type {number} */ b, /** @type {number} */ y, /** @type {string} */ fill) => {
    g.fillStyle = fill;
    g.fillRect(x(a), y, Math.max(x(b) - x(a), 1), h);
  };
  g.textAlign = "left";
  rows.forEach((r, i) => {
    const y = top + i * (h + gap), bars = r.bars ?? [];
    if (r.ready) bar(r.ready, bars[0]?.placed || now, y, colours.waiting);
    for (const b of bars) {
      const end = b.end || now, begun = b.started || (["back-off", "starting", "fetching"].includes(b.state) ? end : b.placed);
      const fetched = Math.min(b.fetching, begun - b.placed), ran = end - Math.min(b.committing, end - begun);
      const paused = Math.min(b.paused, begun - fetched - b.placed);
      if (paused > 0) bar(b.placed, b.placed + paused, y, colours.waiting);
      bar(b.placed + paused, begun - fetched, y, colours.starting);
      if (fetched > 0) bar(begun - fetched, begun, y, colours.fetching);
      const held = Math.min(b.since ? ran - b.since : b.suspended, ran - begun);
      bar(begun, ran - held, y, colours[/** @type {keyof colours} */ (b.state === "suspended" ? "running" : b.state)] ?? colours.running);
      if (held > 0) bar(ran - held, ran, y, colours.suspended);
      if (ran < end) bar(ran, end, y, colours.committing);
    }
    if (h > 10) {
      g.fillStyle = colour(r.slow ? "failed" : "soft");
      g.fillText((r.slow ? "slow " : "") + r.task, 0, y + h / 2 + 1, left - 8);
    } else if (r.slow) {
      g.fillStyle = colour("text");
      g.fillRect(x(bars[bars.length - 1]?.end || now) + 2, y, 5, Math.max(h - 1, 1));
    }
  });
  falls.set(c, { data, top, h: h + gap });
}

document.addEventListener("mousemove", (e) => {
  const c = e.target;
  if (!(c instanceof HTMLCanvasElement) || !c.matches(".waterfall")) return;
  const f = falls.get(c), r = f?.data.rows?.[Math.floor((e.clientY - c.getBoundingClientRect().top - f.top) / f.h)];
  if (!r) return tip("");
  const lines = (r.bars ?? []).map((/** @type {Bar} */ b) => `attempt ${b.attempt}: placed ${clock(b.placed)}, ${b.state}` +
    (b.started ? `, ran ${duration((b.end || f.data.now) - b.started)}` : "") + (b.suspended ? `, of it suspended ${duration(b.suspended)}` : "") +
    (b.paused ? `, paused for ${duration(b.paused)} since the attempts before it failed` : "") +
    (b.fetching ? `, fetched its input in ${duration(b.fetching)}` : "") + (b.committing ? `, wrote its output in ${duration(b.committing)}` : ""));
  tip([r.task + (r.slow ? ", among the slowest" : ""), ...(lines.length ? lines : [r.ready ? "waits" : "waits for another stage"])].join("\n"), e.clientX, e.clientY);
});
document.addEventListener("mouseout", (e) => e.target instanceof HTMLCanvasElement && tip(""));
document.addEventListener("click", (e) => {
  const c = e.target;
  if (!(c instanceof HTMLCanvasElement) || !c.matches(".waterfall")) return;
  const f = falls.get(c), r = f?.data.rows?.[Math.floor((e.clientY - c.getBoundingClientRect().top - f.top) / f.h)];
  if (r) location.href = `/jobs/${f.data.job}/tasks/` + r.task.split("/").map(encodeURIComponent).join("/");
});

for (const e of document.querySelectorAll(".virtual")) new VirtualTable(/** @type {HTMLElement} */ (e));
follow("canvas.waterfall", "data-waterfall", draw);
redraw(() => {
  for (const c of document.querySelectorAll("canvas.waterfall")) if (falls.has(c)) draw(/** @type {HTMLElement} */ (c), falls.get(c).data);
});
