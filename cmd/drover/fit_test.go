package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/plain"
)

// What a list shows in terminals of several widths.
func TestListsFitTheTerminal(t *testing.T) {
	header := []string{"job", "name", "tenant", "state", "message"}
	rows := [][]string{{"7", "words", "analytics", "failed", "task r/0: 2 of 2 attempts failed; the last: program sh ended with exit status 3"}, {"6", "wörter", "a", "running", ""}}
	for _, c := range []struct {
		width   int
		message bool
		columns string // that are shown
		left    string
		first   string // the last cell of the first row
	}{
		{0, true, "job name tenant state message", "", rows[0][4]},
		{200, true, "job name tenant state message", "", rows[0][4]},
		{80, true, "job name tenant state message", "", "task r/0: program sh ended with exit status 3"},
		{60, true, "job name tenant state message", "", "task r/0: program sh ended…"},
		{54, true, "job name state message", "tenant", "task r/0: program sh ended with…"},
		{40, true, "job state message", "tenant name", "task r/0: program sh …"},
		{10, true, "job state message", "tenant name", "task r/0: program sh …"}, // what is not optional is shown
		{80, false, "job state message", "tenant name", rows[0][4]},
	} {
		h, r, left := fitList(c.width, header, rows, c.message, []string{"tenant", "name"})
		if got := strings.Join(h, " "); got != c.columns || strings.Join(left, " ") != c.left {
			t.Errorf("%d: columns %s, left out %s; want %s, %s", c.width, got, left, c.columns, c.left)
		}
		if got := r[0][len(h)-1]; got != c.first {
			t.Errorf("%d: the message is %q, want %q", c.width, got, c.first)
		}
		var b bytes.Buffer
		printTable(&b, h, r)
		for line := range strings.SplitSeq(b.String(), "\n") {
			if n := utf8.RuneCountInString(line); c.width > 40 && c.message && n > c.width {
				t.Errorf("%d: a line has %d letters: %s", c.width, n, line)
			}
		}
	}
	if strings.Join(header, " ") != "job name tenant state message" || len(rows[0]) != 5 || !slices.Contains(rows[0], "analytics") {
		t.Error("the caller's table has changed")
	}
}

// A terminal's width is that of its side of a pseudo-terminal; a file and a pipe have none.
func TestTerminalWidth(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("not proved here: the width of a terminal: %v", err)
	}
	defer terminal.Close()
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 77}); err != nil {
		t.Skipf("not proved here: the width of a terminal: %v", err)
	}
	if got := terminalWidth(plain.NewWriter(&output{w: terminal})); got != 77 {
		t.Errorf("%d columns, want 77", got)
	}
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if got := terminalWidth(file); got != 0 {
		t.Errorf("/dev/null has %d columns", got)
	}
	if got := terminalWidth(&bytes.Buffer{}); got != 0 {
		t.Errorf("a buffer has %d columns", got)
	}
}
