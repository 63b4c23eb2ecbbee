// Times and durations as words. Scripts import this one, never page.js: its address in a
// page has a version that an import does not have, and it would run twice.
// @ts-check

/** Times are from the first second of a simulation. */
export const simulated = document.documentElement.hasAttribute("data-simulated");
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });

/** @param {number} ms @returns {string} how far ms, in milliseconds, is from now */
export function ago(ms) {
  if (simulated) return "";
  const s = Math.round((ms - Date.now()) / 1000);
  for (const [unit, size] of /** @type {[Intl.RelativeTimeFormatUnit, number][]} */ ([["day", 86400], ["hour", 3600], ["minute", 60]])) {
    if (Math.abs(s) >= size * 1.5) return relative.format(Math.round(s / size), unit);
  }
  return relative.format(s, "second");
}

/** @param {Intl.DateTimeFormatOptions} options, which cost much to read: once for a page */
const format = (options) => new Intl.DateTimeFormat([], { hour12: false, ...options });
const time = format({ hour: "2-digit", minute: "2-digit", second: "2-digit" }), day = format({ day: "numeric", month: "short" }), date = format({ day: "numeric", month: "short", year: "numeric" });
export const whole = format({ dateStyle: "medium", timeStyle: "long" });

/** @param {number} ms @returns {string} the time of day, with the date if it is another day */
export function clock(ms) {
  if (simulated) return "after " + Math.floor(ms / 3600000) + ":" + String(Math.floor(ms / 60000) % 60).padStart(2, "0") + ":" + String(Math.floor(ms / 1000) % 60).padStart(2, "0");
  const t = new Date(ms), today = new Date();
  if (t.toDateString() === today.toDateString()) return time.format(t);
  return (t.getFullYear() === today.getFullYear() ? day : date).format(t) + " " + time.format(t);
}

/** @param {number} ms @returns {string} a duration with two units at most */
export function duration(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (ms < 1000) return Math.max(0, Math.round(ms)) + " ms";
  if (s < 60) return s + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + (s % 60) + " s";
  if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " min";
  return Math.floor(s / 86400) + " d " + Math.floor((s % 86400) / 3600) + " h";
}
