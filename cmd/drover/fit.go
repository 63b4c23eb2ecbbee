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

// leastMessage is the least letters of the message in the last column of a list: with fewer it says nothing.
const leastMessage = 24

// printList prints a table whose last column may be a message. On a terminal that is too narrow for it, the message is
// shortened, and then optional columns are left out, the first of them first, so that each row has one line. A line says which.
// Elsewhere, as for a program, nothing is left out.
func printList(w io.Writer, header []string, rows [][]string, message bool, optional ...string) {
	header, rows, left := fitList(terminalWidth(w), header, rows, message, optional)
	printTable(w, header, rows)
	if len(left) > 0 {
		fmt.Fprintf(w, "a wider terminal also shows: %s\n", strings.Join(left, ", "))
	}
}

// fitList returns what of a table a terminal of this width shows, and the optional columns that it does not. A width of 0 is
// none.
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

// columnWidth returns the letters of a column's longest cell.
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

// terminalWidth returns the columns of the terminal that w is, 0 if it is none or does not say.
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
