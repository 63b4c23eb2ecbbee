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

// splitText is the text of a job file as HCL's parser reads it.
type splitText struct {
	text   []byte
	breaks []int           // ascending offsets in text of line breaks that the file does not have
	values hcl.Diagnostics // templates and numbers that a job file cannot have, by their place in the file; text has blanks there
}

// splitOneLineBlocks inserts a line break wherever HCL's grammar requires one between the items of
// a body, so that a block may be on one line. It returns the problems of checkNesting and of the
// lexer, with their positions in src. If there are any, only problems of templates can be reported
// in addition: the parser would repeat those of the lexer, and report each one-line block that was
// not split.
func splitOneLineBlocks(src []byte, file string) (split splitText, problems hcl.Diagnostics) {
	tokens, diags := hclsyntax.LexConfig(src, file, hcl.InitialPos)
	if problems := checkNesting(tokens); problems.HasErrors() { // also in text that cannot be lexed: the parser reads it
		return split, problems
	}
	templates, ranges := checkTemplates(tokens)
	if diags.HasErrors() && templates.HasErrors() {
		return split, templates
	}
	if diags.HasErrors() {
		return split, diags
	}
	numbers, problems := checkNumbers(tokens)
	if problems.HasErrors() {
		return split, problems
	}
	split.values = append(templates, numbers...)
	slices.SortStableFunc(split.values, byPosition)
	src = blanked(src, numbers, ranges)
	// As for HCL's parser, only a comment up to the end of its line ends an item.
	tokens = slices.DeleteFunc(tokens, func(t hclsyntax.Token) bool {
		return t.Type == hclsyntax.TokenComment && !bytes.HasSuffix(t.Bytes, []byte("\n"))
	})
	var out []byte
	last := 0
	put := func(at int) {
		out = append(out, src[last:at]...)
		split.breaks = append(split.breaks, len(out))
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
	split.text = append(out, src[last:]...)
	return split, nil
}

// blanked returns a copy of a text in which these values are 1, and these templates are blanks.
func blanked(src []byte, numbers hcl.Diagnostics, templates []hcl.Range) []byte {
	if len(numbers)+len(templates) == 0 {
		return src
	}
	out := bytes.Clone(src)
	blank := func(r hcl.Range) {
		for i := r.Start.Byte; i < r.End.Byte; i++ {
			out[i] = ' '
		}
	}
	for _, d := range numbers {
		blank(*d.Subject)
		out[d.Subject.Start.Byte] = '1'
	}
	for _, r := range templates {
		blank(r)
	}
	return out
}

// checkTemplates refuses each "${" and "%{" of a text but ${var.NAME}, and returns the ranges of those refused to their ends. What
// is no variable of the file can only be a program's: HCL would make "1" of a shell's "${1}", without a word. Of those in others
// the outermost is refused.
func checkTemplates(tokens hclsyntax.Tokens) (problems hcl.Diagnostics, ranges []hcl.Range) {
	open, ofVariable := 0, false
	for i, t := range tokens {
		switch t.Type {
		case hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			if open++; open > 1 {
				continue
			}
			if ofVariable = isVariableTemplate(tokens[i:]); ofVariable {
				continue
			}
			sign := string(t.Bytes[:1])
			wrong, hint := "%{ has no meaning in a job file", fmt.Sprintf("for %s{ in the text, such as a variable of the shell, write %s%s{", sign, sign, sign)
			if sign == "$" {
				wrong, hint = "${ is no variable of the file", hint+"; for a variable of the file ${var.NAME}"
			}
			problems = append(problems, errorAt(t.Range, wrong, hint)...)
			ranges = append(ranges, t.Range)
		case hclsyntax.TokenTemplateSeqEnd:
			if open = max(open-1, 0); open == 0 && len(ranges) > 0 && !ofVariable {
				ranges[len(ranges)-1].End = t.Range.End
			}
		}
	}
	return problems, ranges
}

// isVariableTemplate reports whether tokens begin with ${var.NAME}.
func isVariableTemplate(tokens hclsyntax.Tokens) bool {
	want := []hclsyntax.TokenType{hclsyntax.TokenTemplateInterp, hclsyntax.TokenIdent, hclsyntax.TokenDot, hclsyntax.TokenIdent, hclsyntax.TokenTemplateSeqEnd}
	for i, t := range want {
		if len(tokens) <= i || tokens[i].Type != t {
			return false
		}
	}
	return string(tokens[0].Bytes) == "${" && string(tokens[1].Bytes) == "var" && string(tokens[4].Bytes) == "}"
}

// Bounds of numbers: HCL computes with them exactly, and to write 1e9999999 as text takes 20 s and 400 MiB.
const (
	maxNumberBytes = 40
	maxExponent    = 18
	maxProducts    = 100 // multiplications and divisions in a file, which make numbers long too
)

// checkNumbers returns an error for each number that is too long or has a unit without quotes, and
// as tooMany one for too many products. Templates are not read.
func checkNumbers(tokens hclsyntax.Tokens) (numbers, tooMany hcl.Diagnostics) {
	products, templates := 0, 0
	for i := range tokens {
		t := &tokens[i]
		switch t.Type {
		case hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			templates++
		case hclsyntax.TokenTemplateSeqEnd:
			templates = max(templates-1, 0)
		}
		if templates > 0 {
			continue
		}
		switch t.Type {
		case hclsyntax.TokenNumberLit:
			if !isShortNumber(string(t.Bytes)) {
				numbers = append(numbers, errorAt(t.Range, "a number is too long", fmt.Sprintf("write at most %d digits, and an exponent of at most %d", maxNumberBytes, maxExponent))...)
			} else if unit := unitOf(tokens, i); unit != nil {
				quantity := string(t.Bytes) + string(unit.Bytes)
				numbers = append(numbers, errorAt(hcl.RangeBetween(t.Range, unit.Range), fmt.Sprintf("%s is neither a number nor a text", quantity), fmt.Sprintf("write a quantity with a unit in quotes: %q", quantity))...)
			}
		case hclsyntax.TokenStar, hclsyntax.TokenSlash, hclsyntax.TokenPercent:
			if products++; products > maxProducts {
				return nil, errorAt(t.Range, "too many products", fmt.Sprintf("write at most %d in a file", maxProducts))
			}
		}
	}
	return numbers, nil
}

// isShortNumber reports whether a number is within the bounds, if the text is one.
func isShortNumber(text string) bool {
	_, exponent, _ := strings.Cut(strings.ToLower(text), "e")
	n, err := strconv.Atoi(cmp.Or(exponent, "0"))
	return len(text) <= maxNumberBytes && err == nil && n <= maxExponent && n >= -maxExponent
}

// Bounds of nesting: HCL's parser calls itself for each level, and for each operator and index, without a limit.
// Two megabytes of "(" ended the program.
const (
	maxNesting   = 100
	maxOperators = 1000 // in a file, with indices of indices
)

// checkNesting returns an error for the first token that is nested too deep, or for too many
// operators.
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
