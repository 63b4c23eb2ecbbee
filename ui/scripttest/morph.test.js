import assert from "node:assert/strict";
import { test } from "node:test";
import { element as e, markup } from "./document.js";

const { morph } = await import("../static/morph.js");

const row = (key, ...cells) => e("tr", { "data-key": key }, ...cells.map((c) => e("td", {}, c)));

test("any tree becomes the wanted one", () => {
  const trees = [
    () => e("main"),
    () => e("main", {}, "text"),
    () => e("main", { class: "a" }, e("p", {}, "one"), e("p", {}, "two")),
    () => e("main", { class: "b", id: "x" }, e("ul", {}, e("li", {}, "1"), e("li", {}, "2"), e("li", {}, "3"))),
    () => e("main", {}, e("table", {}, row("a", "1"), row("b", "2"), row("c", "3"))),
    () => e("main", {}, e("table", {}, row("c", "3"), row("a", "4"), row("d", "5")), e("p", {}, "after")),
    () => e("main", {}, "before", e("section", { id: "s" }, e("h2", {}, "head")), "between", e("p", {}, "one"), "after"),
    () => e("main", {}, e("section", { id: "t" }), e("section", { id: "s" }, e("h2", {}, "other"), e("h3", {}))),
  ];
  for (const from of trees) {
    for (const to of trees) {
      const old = from();
      morph(old, to());
      assert.equal(markup(old), markup(to()));
    }
  }
});

test("rows are found again by their keys", () => {
  const table = e("table", {}, row("a", "1"), row("b", "2"), row("c", "3"));
  const [, b, c] = table.childNodes;
  morph(table, e("table", {}, row("c", "3"), row("x", "0"), row("b", "9")));
  assert.equal(table.childNodes[0], c);
  assert.equal(table.childNodes[2], b);
  assert.equal(b.textContent, "9");
});

test("what is kept is not taken out: it would lose its focus and how far it was scrolled", () => {
  const notice = () => e("div", { class: "notice" }, "waits"), more = () => e("div", { class: "notice" }, "still waits");
  const table = () => e("section", { id: "tasks" }, e("div", { class: "virtual" }));
  const shapes = [
    () => e("main", {}, e("div", { class: "title" }), e("div", { class: "cols lead" }), e("section", { class: "card" }), table(), e("div", { class: "cols" })),
    () => e("main", {}, e("div", { class: "title" }), notice(), e("div", { class: "cols lead" }), e("section", { class: "card" }), table(), e("div", { class: "cols" })),
    () => e("main", {}, e("div", { class: "title" }), notice(), more(), e("div", { class: "cols lead" }), e("section", { class: "card" }), table(), e("div", { class: "cols" })),
    () => e("main", {}, e("div", { class: "title" }), e("div", { class: "cols lead" }), table(), e("p", {}, "end")),
    () => e("main", {}, "\n", e("div", { class: "title" }), "\n", notice(), "\n", e("div", { class: "cols lead" }), "\n", table(), "\n"),
    () => e("main", {}, "\n", e("div", { class: "title" }), "\n", e("div", { class: "cols lead" }), "\n", table(), "\n"),
    () => e("main", {}, table(), "\n\n"),
  ];
  for (const from of shapes) {
    for (const to of shapes) {
      const old = from(), kept = old.childNodes.find((c) => c.id === "tasks");
      kept.removals = 0;
      morph(old, to());
      assert.equal(markup(old), markup(to()));
      assert.equal(kept.removals, 0);
      assert.ok(old.childNodes.includes(kept));
    }
  }
});

test("what the reader has done stays", () => {
  const typed = e("input", { name: "search", value: "" });
  const old = e("main", {}, e("details", { open: "" }, e("summary", {}, "more")), typed, e("time", { datetime: "2026-01-01T00:00:00Z" }, "3 min ago"));
  document.activeElement = typed;
  typed.setAttribute("value", "half a wo");
  morph(old, e("main", {}, e("details", {}, e("summary", {}, "less")), e("input", { name: "search", value: "new" }), e("time", { datetime: "2026-01-01T00:00:00Z" }, "00:00")));
  document.activeElement = null;
  assert.equal(markup(old), '<main><details open=""><summary>less</></><input name="search" value="half a wo"></><time datetime="2026-01-01T00:00:00Z">3 min ago</></>');
});

test("what a script manages keeps its content, but follows its attributes", () => {
  const drawn = e("canvas", { height: "300", style: "height: 300px", "data-map": "/map?v=1" });
  const old = e("main", {}, e("div", { "data-managed": "y", "data-tasks": "/t?v=1" }, e("p", {}, "rows")), drawn);
  morph(old, e("main", {}, e("div", { "data-tasks": "/t?v=2" }), e("canvas", { height: "20", "data-map": "/map?v=2" })));
  assert.equal(markup(old), '<main><div data-managed="y" data-tasks="/t?v=2"><p>rows</></><canvas data-map="/map?v=2" height="300" style="height: 300px"></></>');
});
