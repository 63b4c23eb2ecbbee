package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/plain"
)

// columnGap is the number of spaces between the columns of a table.
const columnGap = 2

// leastMessage is the minimum width of a message in the last column, in characters: a shorter
// message says nothing.
const leastMessage = 24

// printList prints a table whose last column may be a message. On a terminal that is too narrow, it
// shortens the message down to leastMessage, then leaves out optional columns in the given order,
// and names them in a line below. A file or a pipe gets the whole table.
func printList(w io.Writer, header []string, rows [][]string, message bool, optional ...string) {
	header, rows, left := fitList(terminalWidth(w), header, rows, message, optional)
	printTable(w, header, rows)
	if len(left) > 0 {
		fmt.Fprintf(w, "a wider terminal also shows: %s\n", strings.Join(left, ", "))
	}
}

// fitList returns the table as a terminal of this width, in characters, shows it, and the optional
// columns that were left out. Width 0: no terminal, so the table is unchanged. It does not change its
// arguments.
func fitList(width int, header []string, rows [][]string, message bool, optional []string) (_ []string, _ [][]string, left []string) {
	need := func() (n int) {
		for i := range header {
			if n += columnWidth(header, rows, i); i > 0 {
				n += columnGap
			}
		}
		return n
	}
	last := len(header) - 1
	if width == 0 || need() <= width {
		return header, rows, nil
	}
	least := columnWidth(header, rows, last)
	if message {
		least = min(least, leastMessage)
	}
	for _, name := range optional {
		if need()-columnWidth(header, rows, last)+least <= width {
			break
		}
		if i := slices.Index(header, name); i >= 0 {
			header, rows = withoutColumn(header, rows, i)
			last, left = last-1, append(left, name)
		}
	}
	if over := need() - width; message && over > 0 {
		most := max(columnWidth(header, rows, last)-over, least)
		rows = slices.Clone(rows)
		for i, r := range rows {
			rows[i] = append(slices.Clone(r[:last]), shortenedMessage(plain.Line(r[last]), most))
		}
	}
	return header, rows, left
}

// columnWidth returns the width of a column's longest cell, in characters.
func columnWidth(header []string, rows [][]string, column int) int {
	n := utf8.RuneCountInString(header[column])
	for _, r := range rows {
		n = max(n, utf8.RuneCountInString(plain.Line(r[column])))
	}
	return n
}

func withoutColumn(header []string, rows [][]string, column int) ([]string, [][]string) {
	out := make([][]string, len(rows))
	for i, r := range rows {
		out[i] = slices.Delete(slices.Clone(r), column, column+1)
	}
	return slices.Delete(slices.Clone(header), column, column+1), out
}

// terminalWidth returns the width of the terminal behind w, in characters; 0 if w is no terminal or
// its width is unknown.
func terminalWidth(w io.Writer) int {
	w = rawWriter(w)
	if o, ok := w.(*output); ok {
		w = o.w
	}
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}
