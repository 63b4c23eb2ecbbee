package hcl

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// splitOneLineBlocks inserts a line break wherever HCL's grammar requires one
// between the items of a body, so that a block may stand on one line. It returns
// the new text and the ascending offsets of the inserted breaks in it. The problems
// are those of checkNesting and checkTemplates, of the lexer or of checkNumbers, at their place in src. The
// parser would report those of the lexer too, and each one-line block that was not split.
func splitOneLineBlocks(src []byte, file string) (text []byte, breaks []int, problems hcl.Diagnostics) {
	tokens, diags := hclsyntax.LexConfig(src, file, hcl.InitialPos)
	if problems := checkNesting(tokens); problems.HasErrors() { // also in text that cannot be lexed: the parser reads it
		return src, nil, problems
	}
	if problems := checkTemplates(tokens); problems.HasErrors() {
		return src, nil, problems
	}
	if diags.HasErrors() {
		return src, nil, diags
	}
	if problems := checkNumbers(tokens); problems.HasErrors() {
		return src, nil, problems
	}
	// As for HCL's parser, only a comment up to the end of its line ends an item.
	tokens = slices.DeleteFunc(tokens, func(t hclsyntax.Token) bool {
		return t.Type == hclsyntax.TokenComment && !bytes.HasSuffix(t.Bytes, []byte("\n"))
	})
	var out []byte
	last := 0
	put := func(at int) {
		out = append(out, src[last:at]...)
		breaks = append(breaks, len(out))
		out = append(out, '\n')
		last = at
	}
	w := tokenWalker{tokens: tokens}
	for i := range tokens {
		if w.needsBreakBefore(i) {
			put(tokens[i].Range.Start.Byte)
		}
		w.advance(i)
	}
	return append(out, src[last:]...), breaks, nil
}

// checkTemplates refuses the first "${" or "%{" of a text. A job file has no variables, so that they can only be a
// program's: HCL would make "1" of a shell's "${1}", without a word.
func checkTemplates(tokens hclsyntax.Tokens) hcl.Diagnostics {
	for _, t := range tokens {
		if t.Type == hclsyntax.TokenTemplateInterp || t.Type == hclsyntax.TokenTemplateControl {
			sign := string(t.Bytes[:1])
			return errorAt(t.Range, fmt.Sprintf("a job file has no variables: %s{ has no meaning in it", sign),
				fmt.Sprintf("for %s{ in the text, such as a variable of the shell, write %s%s{", sign, sign, sign))
		}
	}
	return nil
}

// Bounds of numbers: HCL computes with them exactly, and to write 1e9999999 as text takes 20 s and 400 MiB.
const (
	maxNumberBytes = 40
	maxExponent    = 18
	maxProducts    = 100 // multiplications and divisions in a file, which make numbers long too
)

// checkNumbers returns an error for the first number that is too long or has a unit without quotes, or for too many
// products.
func checkNumbers(tokens hclsyntax.Tokens) hcl.Diagnostics {
	products := 0
	for i := range tokens {
		switch t := &tokens[i]; t.Type {
		case hclsyntax.TokenNumberLit:
			_, exponent, _ := strings.Cut(strings.ToLower(string(t.Bytes)), "e")
			n, err := strconv.Atoi(cmp.Or(exponent, "0"))
			if len(t.Bytes) > maxNumberBytes || err != nil || n > maxExponent || n < -maxExponent {
				return errorAt(t.Range, "a number is too long", fmt.Sprintf("write at most %d digits, and an exponent of at most %d", maxNumberBytes, maxExponent))
			}
			if unit := unitOf(tokens, i); unit != nil {
				quantity := string(t.Bytes) + string(unit.Bytes)
				return errorAt(hcl.RangeBetween(t.Range, unit.Range), fmt.Sprintf("%s is neither a number nor a text", quantity), fmt.Sprintf("write a quantity with a unit in quotes: %q", quantity))
			}
		case hclsyntax.TokenStar, hclsyntax.TokenSlash, hclsyntax.TokenPercent:
			if products++; products > maxProducts {
				return errorAt(t.Range, "too many products", fmt.Sprintf("write at most %d in a file", maxProducts))
			}
		}
	}
	return nil
}

// Bounds of nesting: HCL's parser calls itself for each level, and for each operator and index, without a limit.
// Two megabytes of "(" ended the program.
const (
	maxNesting   = 100
	maxOperators = 1000 // in a file, with indices of indices
)

// checkNesting returns an error for the first token that is nested too deep, or for too many operators.
func checkNesting(tokens hclsyntax.Tokens) hcl.Diagnostics {
	depth, operators := 0, 0
	for i := range tokens {
		t := &tokens[i]
		switch t.Type {
		case hclsyntax.TokenOBrack:
			depth++
			if i > 0 && tokens[i-1].Type == hclsyntax.TokenCBrack {
				operators++
			}
		case hclsyntax.TokenOBrace, hclsyntax.TokenOParen, hclsyntax.TokenOQuote, hclsyntax.TokenOHeredoc, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			depth++
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenCQuote, hclsyntax.TokenCHeredoc, hclsyntax.TokenTemplateSeqEnd:
			depth = max(depth-1, 0)
		case hclsyntax.TokenPlus, hclsyntax.TokenMinus, hclsyntax.TokenBang, hclsyntax.TokenAnd, hclsyntax.TokenOr, hclsyntax.TokenQuestion, hclsyntax.TokenEqualOp,
			hclsyntax.TokenNotEqual, hclsyntax.TokenLessThan, hclsyntax.TokenLessThanEq, hclsyntax.TokenGreaterThan, hclsyntax.TokenGreaterThanEq:
			operators++
		}
		if depth > maxNesting {
			return errorAt(t.Range, "nested too deep", fmt.Sprintf("write at most %d levels of brackets, blocks and templates", maxNesting))
		}
		if operators > maxOperators {
			return errorAt(t.Range, "too many operators", fmt.Sprintf("write at most %d in a file", maxOperators))
		}
	}
	return nil
}

// unitOf returns the word that follows number i without a space, as in 256MiB; nil if there is none.
func unitOf(tokens hclsyntax.Tokens, i int) *hclsyntax.Token {
	if i+1 == len(tokens) || tokens[i+1].Type != hclsyntax.TokenIdent || tokens[i+1].Range.Start.Byte != tokens[i].Range.End.Byte {
		return nil
	}
	return &tokens[i+1]
}

func errorAt(r hcl.Range, summary, hint string) hcl.Diagnostics {
	return hcl.Diagnostics{{Severity: hcl.DiagError, Summary: summary, Detail: hint, Subject: &r}}
}

// tokenWalker follows a token stream and tracks whether it is in a body or in an
// attribute's expression.
type tokenWalker struct {
	tokens        hclsyntax.Tokens
	inExpr        bool // after "name =", until the expression ends
	openBrackets  int  // brackets open inside that expression
	openTemplates int  // templates open inside that expression or a block's labels
}

// needsBreakBefore reports whether a line break is missing before token i.
func (w *tokenWalker) needsBreakBefore(i int) bool {
	if i == 0 || w.openBrackets > 0 || w.openTemplates > 0 {
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

// startsItem reports whether identifier i begins an attribute ("name =") or a
// block ("name {", `name "label" {`) after a token that can end an item.
func (w *tokenWalker) startsItem(i int) bool {
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

// advance moves past token i.
func (w *tokenWalker) advance(i int) {
	switch w.tokens[i].Type {
	case hclsyntax.TokenOQuote, hclsyntax.TokenOHeredoc, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
		w.openTemplates++
	case hclsyntax.TokenCQuote, hclsyntax.TokenCHeredoc, hclsyntax.TokenTemplateSeqEnd:
		w.openTemplates--
	case hclsyntax.TokenEqual:
		if w.openBrackets == 0 && w.openTemplates == 0 {
			w.inExpr = true
		}
	case hclsyntax.TokenOBrack, hclsyntax.TokenOParen:
		w.openBrackets++
	case hclsyntax.TokenCBrack, hclsyntax.TokenCParen:
		w.openBrackets--
	case hclsyntax.TokenOBrace:
		// After "=" or inside an expression a brace opens an object, otherwise a body.
		if w.openBrackets > 0 || (w.inExpr && w.tokens[i-1].Type == hclsyntax.TokenEqual) {
			w.openBrackets++
			return
		}
		w.inExpr = false
	case hclsyntax.TokenCBrace:
		if w.openBrackets > 0 {
			w.openBrackets--
			return
		}
		w.inExpr = false
	case hclsyntax.TokenNewline, hclsyntax.TokenComment:
		if w.openBrackets == 0 {
			w.inExpr = false
		}
	}
}

// positionMap maps ranges of the split text back to the original text.
type positionMap struct {
	src        []byte
	breaks     []int // offsets in the split text
	lineStarts []int // offset of each line's start in src
}

func newPositionMap(src []byte, breaks []int) *positionMap {
	p := &positionMap{src: src, breaks: breaks, lineStarts: []int{0}}
	for i, c := range src {
		if c == '\n' {
			p.lineStarts = append(p.lineStarts, i+1)
		}
	}
	return p
}

func (p *positionMap) originalRange(r hcl.Range) hcl.Range {
	r.Start, r.End = p.originalPos(r.Start), p.originalPos(r.End)
	return r
}

func (p *positionMap) originalPos(at hcl.Pos) hcl.Pos {
	b := at.Byte - sort.SearchInts(p.breaks, at.Byte)
	b = min(max(b, 0), len(p.src))
	line := sort.SearchInts(p.lineStarts, b+1)
	return hcl.Pos{Byte: b, Line: line, Column: b - p.lineStarts[line-1] + 1}
}

// mapDiagnostics maps every range of ds back in place.
func (p *positionMap) mapDiagnostics(ds hcl.Diagnostics) {
	for _, d := range ds {
		if d.Subject != nil {
			r := p.originalRange(*d.Subject)
			d.Subject = &r
		}
		if d.Context != nil {
			r := p.originalRange(*d.Context)
			d.Context = &r
		}
	}
}
