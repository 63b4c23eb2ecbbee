// As much of a browser's document as the scripts need to be loaded, and as morph needs to change
// one tree into another. Tests import it before the scripts.

class Node {
  static ELEMENT_NODE = 1;
  static TEXT_NODE = 3;

  /** @param {number} type @param {string} name @param {string | null} value */
  constructor(type, name, value) {
    this.nodeType = type;
    this.nodeName = name;
    this.nodeValue = value;
    /** @type {Node[]} */ this.childNodes = [];
    /** @type {Node | null} */ this.parentNode = null;
  }

  get firstChild() {
    return this.childNodes[0] ?? null;
  }

  get nextSibling() {
    const all = this.parentNode?.childNodes ?? [];
    return all[all.indexOf(this) + 1] ?? null;
  }

  removals = 0;

  remove() {
    if (this.parentNode) this.removals++;
    const all = this.parentNode?.childNodes ?? [];
    if (this.parentNode) all.splice(all.indexOf(this), 1);
    this.parentNode = null;
  }

  /** @param {Node} child @param {Node | null} before */
  insertBefore(child, before) {
    child.remove();
    this.childNodes.splice(before ? this.childNodes.indexOf(before) : this.childNodes.length, 0, child);
    child.parentNode = this;
  }

  get textContent() {
    return this.nodeValue ?? this.childNodes.map((c) => c.textContent).join("");
  }
}

class Element extends Node {
  /** @type {{name: string, value: string}[]} */ attributes = [];

  get id() {
    return this.getAttribute("id") ?? "";
  }

  /** @param {string} name */
  getAttribute(name) {
    return this.attributes.find((a) => a.name === name)?.value ?? null;
  }

  /** @param {string} name */
  hasAttribute(name) {
    return this.getAttribute(name) !== null;
  }

  /** @param {string} name @param {string} value */
  setAttribute(name, value) {
    this.removeAttribute(name);
    this.attributes.push({ name, value });
  }

  /** @param {string} name */
  removeAttribute(name) {
    this.attributes = this.attributes.filter((a) => a.name !== name);
  }
}

class HTMLInputElement extends Element {}
class HTMLSelectElement extends Element {}

/** @param {string} name @param {Record<string, string>} attributes @param {(Node | string)[]} children */
export function element(name, attributes = {}, ...children) {
  const kind = { INPUT: HTMLInputElement, SELECT: HTMLSelectElement }[name.toUpperCase()] ?? Element;
  const e = new kind(Node.ELEMENT_NODE, name.toUpperCase(), null);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  for (const c of children) e.insertBefore(typeof c === "string" ? new Node(Node.TEXT_NODE, "#text", c) : c, null);
  return e;
}

/** @param {Node} n @returns {string} as a page would write it, attributes in order */
export function markup(n) {
  if (!(n instanceof Element)) return n.nodeValue ?? "";
  const attributes = n.attributes.map((a) => ` ${a.name}="${a.value}"`).sort().join("");
  return `<${n.nodeName.toLowerCase()}${attributes}>${n.childNodes.map(markup).join("")}</>`;
}

const listens = { addEventListener() {}, matches: false };
Object.assign(globalThis, {
  Node, Element, HTMLInputElement, HTMLSelectElement,
  HTMLCanvasElement: class extends Element {},
  document: { ...listens, documentElement: element("html"), activeElement: null, querySelectorAll: () => [] },
  addEventListener() {},
  matchMedia: () => listens,
  setInterval() {}, // nothing is to keep the test alive
});
