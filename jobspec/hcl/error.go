package hcl

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/mitchellh/go-wordwrap"
)

// Error holds every problem of one job file with its source range.
type Error struct {
	Diags hcl.Diagnostics
	src   []byte
}

// Limits of what is shown of a file with many problems or long lines.
const (
	maxShown      = 20  // problems
	maxShownLines = 20  // lines of one problem
	maxShownLine  = 400 // bytes of one line
	hintWidth     = 100 // characters in a line of a hint
)

// Error formats each problem with file, line, column in characters, source text and hint.
func (e *Error) Error() string {
	var b bytes.Buffer
	e.Write(&b, false)
	return strings.TrimRight(b.String(), "\n")
}

// Write writes the problems as Error formats them, optionally in colour, and how many more there are.
// The writer of package hcl is not used for it: for each problem it splits the whole file into
// characters and allocates 4 KiB for each line, 200 MiB for a file of 90 kB.
func (e *Error) Write(w io.Writer, colour bool) {
	s := &sourceWriter{w: w, src: e.src}
	if colour {
		s.red, s.yellow, s.strong, s.plain = "\x1b[31m", "\x1b[33m", "\x1b[1;4m", "\x1b[0m"
	}
	for _, d := range e.Diags[:min(len(e.Diags), maxShown)] {
		s.problem(d)
	}
	if more := len(e.Diags) - maxShown; more > 0 {
		s.printf("and %d more problems\n", more)
	}
}

// sourceWriter writes problems with the lines of the file that they are about.
type sourceWriter struct {
	w                          io.Writer
	src                        []byte
	red, yellow, strong, plain string // codes of the terminal
}

// printf ignores errors: those of writing to a buffer or a terminal do not matter here.
func (s *sourceWriter) printf(format string, args ...any) { _, _ = fmt.Fprintf(s.w, format, args...) }

func (s *sourceWriter) problem(d *hcl.Diagnostic) {
	colour, word := s.red, "Error"
	if d.Severity == hcl.DiagWarning {
		colour, word = s.yellow, "Warning"
	}
	s.printf("%s%s%s: %s\n\n", colour, word, s.plain, d.Summary)
	if d.Subject != nil {
		first, _ := s.bytesOf(*d.Subject)
		column := utf8.RuneCount(s.src[bytes.LastIndexByte(s.src[:first], '\n')+1:first]) + 1
		s.printf("  on %s:%d:%d:\n", d.Subject.Filename, d.Subject.Start.Line, column)
		shown := *d.Subject
		if d.Context != nil {
			shown = hcl.RangeOver(shown, *d.Context)
		}
		s.lines(shown, *d.Subject)
		s.printf("\n")
	}
	if d.Detail != "" {
		s.printf("%s\n\n", wordwrap.WrapString(d.Detail, hintWidth))
	}
}

// lines writes the lines that overlap shown, and marks the part in strong.
func (s *sourceWriter) lines(shown, strong hcl.Range) {
	first, end := s.bytesOf(shown)
	from, to := s.bytesOf(strong)
	start := bytes.LastIndexByte(s.src[:first], '\n') + 1
	number := bytes.Count(s.src[:start], []byte("\n")) + 1
	for n := 0; start < end; n++ {
		if n == maxShownLines {
			s.printf("      and %d more lines\n", bytes.Count(s.src[start:end], []byte("\n"))+1)
			return
		}
		stop := len(s.src)
		if i := bytes.IndexByte(s.src[start:], '\n'); i >= 0 {
			stop = start + i
		}
		a, b := min(max(from, start), stop), min(max(to, start), stop)
		s.line(number+n, s.src[start:a], s.src[a:b], s.src[b:stop])
		start = stop + 1
	}
}

// line writes one line, cut where it is long: around its marked part.
func (s *sourceWriter) line(number int, before, marked, after []byte) {
	const margin = maxShownLine / 4
	left, right := "", ""
	if len(before)+len(marked)+len(after) > maxShownLine {
		if len(before) > margin {
			before, left = before[len(before)-margin:], "..."
		}
		if rest := maxShownLine - len(before); len(marked) > rest {
			marked, after, right = marked[:rest], nil, "..."
		} else if rest -= len(marked); len(after) > rest {
			after, right = after[:rest], "..."
		}
	}
	after = bytes.TrimSuffix(after, []byte("\r"))
	if len(marked) == 0 {
		s.printf("%4d: %s%s%s%s\n", number, left, before, after, right)
		return
	}
	s.printf("%4d: %s%s%s%s%s%s%s\n", number, left, before, s.strong, marked, s.plain, after, right)
}

// bytesOf returns the part of the file that a range is, at least one byte where there is one.
func (s *sourceWriter) bytesOf(r hcl.Range) (from, to int) {
	from = min(max(r.Start.Byte, 0), len(s.src))
	return from, min(max(r.End.Byte, from+1), len(s.src))
}
