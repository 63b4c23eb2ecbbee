// Package plain keeps text that a task, a user or a file name supplies from controlling a terminal
// or forging a line of a log: it finds control characters and escapes them.
package plain

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// isControl reports whether a rune acts on a terminal instead of being shown: C0, DEL and C1, the
// line separators of Unicode, and the characters that change the direction of text.
func isControl(r rune) bool {
	switch {
	case r == '\u2028', r == '\u2029', r == '\u061c', r == '\u200e', r == '\u200f', r >= '\u202a' && r <= '\u202e', r >= '\u2066' && r <= '\u2069':
		return true
	default:
		return unicode.IsControl(r)
	}
}

// HasControl reports whether s has a control character, newline and tab
// included, or is not valid UTF-8.
func HasControl(s string) bool {
	return strings.IndexFunc(s, isControl) >= 0 || !utf8.ValidString(s)
}

// Line returns s as one line of text: each control character, newline and tab
// included, as \u and four hex digits, and invalid UTF-8 as the replacement
// character. It returns s itself if there is nothing to replace.
func Line(s string) string {
	if !HasControl(s) {
		return s
	}
	return escape(s, "")
}

// Text is like Line but keeps newlines and tabs.
func Text(s string) string {
	if !HasControl(s) {
		return s
	}
	return escape(s, "\n\t")
}

// escape writes control characters as JSON does, so that JSON stays JSON.
func escape(s, except string) string {
	var b strings.Builder
	for _, r := range s {
		if isControl(r) && !strings.ContainsRune(except, r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Clean returns s without control characters: each is replaced by a space.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if isControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, string(utf8.RuneError)))
}

// Writer escapes control characters, except newline and tab, in all that is
// written. Text may be cut anywhere between two writes: the start of a rune at
// the end of a write appears with the next one, or at Flush.
type Writer struct {
	w       io.Writer
	partial []byte // start of a rune, at most 3 bytes
}

// NewWriter returns a Writer on w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Unwrap returns the writer below, for output that controls the terminal on
// purpose.
func (p *Writer) Unwrap() io.Writer { return p.w }

// Write writes b escaped. It returns len(b) unless the writer below fails.
func (p *Writer) Write(b []byte) (int, error) {
	all := b
	if len(p.partial) > 0 {
		all = append(p.partial, b...)
	}
	end := len(all)
	for i := 1; i < utf8.UTFMax && i <= len(all); i++ {
		if c := all[len(all)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(all[len(all)-i:]) {
				end = len(all) - i
			}
			break
		}
	}
	p.partial = append([]byte(nil), all[end:]...)
	if _, err := io.WriteString(p.w, Text(string(all[:end]))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Flush writes the start of a rune whose end never came.
func (p *Writer) Flush() error {
	b := p.partial
	p.partial = nil
	_, err := io.WriteString(p.w, Text(string(b)))
	return err
}
