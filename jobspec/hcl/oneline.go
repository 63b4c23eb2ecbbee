package hcl

import (
	"sort"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// spread puts a line break wherever HCL's grammar wants one between the items
// of a body, so that a block may stand on one line. It gives the new text and
// the offsets in it at which a break was put, ascending. Text that does not
// lex as expected comes back as it is: the parser then says what is wrong.
func spread(src []byte, file string) ([]byte, []int) {
	tokens, diags := hclsyntax.LexConfig(src, file, hcl.InitialPos)
	if diags.HasErrors() {
		return src, nil
	}
	var out []byte
	var breaks []int
	last := 0
	put := func(at int) {
		out = append(out, src[last:at]...)
		breaks = append(breaks, len(out))
		out = append(out, '\n')
		last = at
	}
	w := walker{tokens: tokens}
	for i := range tokens {
		if w.breakBefore(i) {
			put(tokens[i].Range.Start.Byte)
		}
		w.step(i)
	}
	return append(out, src[last:]...), breaks
}

// walker follows a token stream and knows whether it stands in a body or in an
// attribute's expression.
type walker struct {
	tokens hclsyntax.Tokens
	inExpr bool // after "name =", until the expression ends
	nested int  // brackets open inside that expression
	quoted int  // templates open inside that expression or a block's labels
}

// breakBefore tells whether a line break is missing before token i.
func (w *walker) breakBefore(i int) bool {
	if i == 0 || w.nested > 0 || w.quoted > 0 {
		return false
	}
	prev, t := w.tokens[i-1].Type, w.tokens[i].Type
	if prev == hclsyntax.TokenNewline || prev == hclsyntax.TokenComment {
		return false
	}
	switch {
	case w.inExpr && prev == hclsyntax.TokenEqual:
		return false
	case t == hclsyntax.TokenCBrace:
		return prev != hclsyntax.TokenOBrace
	case t == hclsyntax.TokenIdent && w.startsItem(i):
		return true
	case t == hclsyntax.TokenIdent && prev == hclsyntax.TokenCBrace:
		return true
	}
	return false
}

// startsItem tells whether the identifier i begins an attribute ("name =") or
// a block ("name {", `name "label" {`) after something that can end one.
func (w *walker) startsItem(i int) bool {
	if i+1 >= len(w.tokens) {
		return false
	}
	switch w.tokens[i-1].Type {
	case hclsyntax.TokenOBrace, hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen,
		hclsyntax.TokenCQuote, hclsyntax.TokenNumberLit, hclsyntax.TokenIdent, hclsyntax.TokenCHeredoc:
	default:
		return false
	}
	switch w.tokens[i+1].Type {
	case hclsyntax.TokenEqual:
		return true
	case hclsyntax.TokenOBrace, hclsyntax.TokenOQuote:
		return w.inExpr || w.tokens[i-1].Type == hclsyntax.TokenOBrace
	default:
		return false
	}
}

// step moves past token i.
func (w *walker) step(i int) {
	switch w.tokens[i].Type {
	case hclsyntax.TokenOQuote, hclsyntax.TokenOHeredoc, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
		w.quoted++
	case hclsyntax.TokenCQuote, hclsyntax.TokenCHeredoc, hclsyntax.TokenTemplateSeqEnd:
		w.quoted--
	case hclsyntax.TokenEqual:
		if w.nested == 0 && w.quoted == 0 {
			w.inExpr = true
		}
	case hclsyntax.TokenOBrack, hclsyntax.TokenOParen:
		w.nested++
	case hclsyntax.TokenCBrack, hclsyntax.TokenCParen:
		w.nested--
	case hclsyntax.TokenOBrace:
		// After "=" or inside an expression a brace opens an object; else a body.
		if w.nested > 0 || (w.inExpr && w.tokens[i-1].Type == hclsyntax.TokenEqual) {
			w.nested++
			return
		}
		w.inExpr = false
	case hclsyntax.TokenCBrace:
		if w.nested > 0 {
			w.nested--
			return
		}
		w.inExpr = false
	case hclsyntax.TokenNewline, hclsyntax.TokenComment:
		if w.nested == 0 {
			w.inExpr = false
		}
	}
}

// places maps ranges of the spread text back to the user's.
type places struct {
	src    []byte
	breaks []int // offsets in the spread text
	lines  []int // offset of each line's start in src
}

func newPlaces(src []byte, breaks []int) *places {
	p := &places{src: src, breaks: breaks, lines: []int{0}}
	for i, c := range src {
		if c == '\n' {
			p.lines = append(p.lines, i+1)
		}
	}
	return p
}

func (p *places) back(r hcl.Range) hcl.Range {
	r.Start, r.End = p.pos(r.Start), p.pos(r.End)
	return r
}

func (p *places) pos(at hcl.Pos) hcl.Pos {
	b := at.Byte - sort.SearchInts(p.breaks, at.Byte)
	b = min(max(b, 0), len(p.src))
	line := sort.SearchInts(p.lines, b+1)
	return hcl.Pos{Byte: b, Line: line, Column: b - p.lines[line-1] + 1}
}

// diagnostics maps every range of ds back, in place.
func (p *places) diagnostics(ds hcl.Diagnostics) {
	for _, d := range ds {
		if d.Subject != nil {
			r := p.back(*d.Subject)
			d.Subject = &r
		}
		if d.Context != nil {
			r := p.back(*d.Context)
			d.Context = &r
		}
	}
}
