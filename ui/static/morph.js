// Changes what is on a page into what is wanted, keeping what the reader has done.
// @ts-check

/** @param {Node} n @returns {string} by what a node is found again */
function key(n) {
  return n instanceof Element ? n.id || n.getAttribute("data-key") || "" : "";
}

/** @param {Node} n @returns {string} the same of what may become each other: by key, otherwise by class */
function sign(n) {
  const k = key(n);
  return n.nodeType + n.nodeName + (k !== "" ? "#" + k : n instanceof Element ? "." + (n.getAttribute("class") ?? "") : "");
}

/**
 * Changes old, which is on the page, into wanted. What the reader has done
 * stays: open details, focus, what was typed, and parts that a script manages.
 * @param {Node} old @param {Node} wanted
 */
export function morph(old, wanted) {
  if (!(old instanceof Element) || !(wanted instanceof Element)) {
    if (old.nodeValue !== wanted.nodeValue) old.nodeValue = wanted.nodeValue;
    return;
  }
  if (old.nodeName === "TIME" && old.getAttribute("datetime") === wanted.getAttribute("datetime")) return;
  const typed = old instanceof HTMLInputElement || old instanceof HTMLSelectElement;
  if (typed && old === document.activeElement) return;
  for (const { name, value } of wanted.attributes) {
    const drawn = old.nodeName === "CANVAS" && name === "height"; // setting it would clear the picture
    if (!drawn && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    const own = name === "data-managed" || (name === "open" && old.nodeName === "DETAILS") || old.nodeName === "CANVAS";
    if (!own && !wanted.hasAttribute(name)) old.removeAttribute(name);
  }
  if (typed || old.hasAttribute("data-managed")) return;
  const list = [...wanted.childNodes], left = new Map(); // how many of each kind are still to come
  for (const child of list) left.set(sign(child), (left.get(sign(child)) ?? 0) + 1);
  let at = old.firstChild;
  for (const child of list) {
    const kind = sign(child);
    // What nobody wants goes first, and text before an element. To take out what stands behind it would cost that its focus and how far
    // it is scrolled.
    while (at && sign(at) !== kind && (!left.get(sign(at)) || (at.nodeType === Node.TEXT_NODE && child.nodeType === Node.ELEMENT_NODE))) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
    left.set(kind, left.get(kind) - 1);
    let found = at;
    if (found && sign(found) !== kind) {
      while (found && sign(found) !== kind) found = found.nextSibling;
      if (found && key(child) === "" && key(found) === "" && child.nodeType === Node.ELEMENT_NODE && at && key(at) === "" && at.nodeType !== Node.TEXT_NODE) found = null;
    }
    if (!found) {
      old.insertBefore(child, at);
      continue;
    }
    if (found !== at) old.insertBefore(found, at);
    else at = at ? at.nextSibling : null;
    morph(found, child);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}
