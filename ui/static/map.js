// The map of nodes: a square for each, by rack.
// @ts-check
import { colour, follow, prepare, redraw, tip } from "./canvas.js";

/** @typedef {{racks: string[], rack: number[], name: string[], state: string[], cpu: number[], memory: number[], tasks: number[]}} Nodes */
/** @typedef {{x: number, y: number, i: number}} Square */

const places = new WeakMap();

/**
 * @param {Nodes} data @param {number} wide in pixels
 * @returns {{squares: Square[], labels: {text: string, x: number, y: number}[], size: number, gap: number, height: number}} where each node is
 */
export function layOut(data, wide) {
  const n = data.name?.length ?? 0;
  const size = n > 5000 ? 7 : n > 1500 ? 9 : n > 300 ? 13 : 20, gap = size > 9 ? 3 : 1, label = n > 5000 ? 0 : 15;
  /** @type {Square[]} */ const squares = [];
  /** @type {{text: string, x: number, y: number}[]} */ const labels = [];
  const perRack = /** @type {number[][]} */ ((data.racks ?? []).map(() => []));
  for (let i = 0; i < n; i++) perRack[data.rack[i]].push(i);
  let x = 0, y = label, tallest = 0;
  perRack.forEach((list, r) => {
    const cols = Math.max(1, Math.min(list.length, Math.floor(wide / (size + gap)), label ? Math.max(Math.ceil(Math.sqrt(list.length * 2)), Math.ceil(70 / (size + gap))) : 8));
    const w = cols * (size + gap), h = Math.ceil(list.length / cols) * (size + gap);
    if (x > 0 && x + w > wide) {
      x = 0;
      y += tallest + label + 8;
      tallest = 0;
    }
    if (label) labels.push({ text: data.racks[r], x, y: y - 5 });
    for (const [k, i] of list.entries()) squares.push({ x: x + (k % cols) * (size + gap), y: y + Math.floor(k / cols) * (size + gap), i });
    x += Math.max(w, label ? 80 : 0) + 10;
    tallest = Math.max(tallest, h);
  });
  return { squares, labels, size, gap, height: Math.max(y + tallest + 4, 24) };
}

/** @param {HTMLElement} e @param {Nodes} data */
function draw(e, data) {
  const c = /** @type {HTMLCanvasElement} */ (e), by = new URLSearchParams(location.search).get("by") ?? "";
  const { squares, labels, size, gap, height } = layOut(data, c.clientWidth || 600);
  const { g } = prepare(c, height);
  const colours = { rest: colour("rest"), running: colour("running"), bad: colour("failed"), warn: colour("suspended"), good: colour("done") };
  g.fillStyle = colour("soft");
  for (const l of labels) g.fillText(l.text, l.x, l.y, 78);
  for (const s of squares) {
    const state = data.state[s.i];
    if (state !== "up" && state !== "probation") {
      g.fillStyle = state === "down" ? colours.bad : colours.warn;
      g.fillRect(s.x, s.y, size, size);
      if (state !== "down") { // not by colour alone
        g.fillStyle = colours.rest;
        g.fillRect(s.x + size / 4, s.y + size / 4, size / 2, size / 2);
      }
      continue;
    }
    g.fillStyle = by === "state" ? colours.good : colours.rest;
    g.fillRect(s.x, s.y, size, size);
    if (by === "state") continue;
    const part = (by === "memory" ? data.memory : data.cpu)[s.i] / 1000, h = Math.min(1, part) * size;
    g.fillStyle = colours.running;
    g.fillRect(s.x, s.y + size - h, size, h);
  }
  places.set(c, { squares, size: size + gap, data });
}

/** @param {MouseEvent} e @returns {{i: number, data: Nodes} | null} */
function at(e) {
  const c = /** @type {HTMLCanvasElement} */ (e.target), p = places.get(c);
  if (!p) return null;
  const box = c.getBoundingClientRect(), x = e.clientX - box.left, y = e.clientY - box.top;
  const s = p.squares.find((/** @type {Square} */ s) => x >= s.x && x < s.x + p.size && y >= s.y && y < s.y + p.size);
  return s ? { i: s.i, data: p.data } : null;
}

document.addEventListener("mousemove", (e) => {
  if (!(e.target instanceof HTMLCanvasElement) || !e.target.matches(".map")) return;
  const s = at(e);
  e.target.style.cursor = s ? "pointer" : "";
  if (!s) return tip("");
  const d = s.data;
  tip(`${d.name[s.i]} (${d.state[s.i]}), rack ${d.racks[d.rack[s.i]]}\nCPU ${Math.round(d.cpu[s.i] / 10)} %, memory ${Math.round(d.memory[s.i] / 10)} % allocated, ${d.tasks[s.i]} tasks`, e.clientX, e.clientY);
});
document.addEventListener("mouseout", (e) => e.target instanceof HTMLCanvasElement && tip(""));
document.addEventListener("click", (e) => {
  if (!(e.target instanceof HTMLCanvasElement) || !e.target.matches(".map")) return;
  const s = at(e);
  if (s) location.href = "/nodes/" + encodeURIComponent(s.data.name[s.i]);
});

follow("canvas.map", "data-map", draw);
redraw(() => {
  for (const c of document.querySelectorAll("canvas.map")) if (places.has(c)) draw(/** @type {HTMLElement} */ (c), places.get(c).data);
});
