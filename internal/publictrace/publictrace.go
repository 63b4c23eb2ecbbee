// Package publictrace holds two public traces and the results of other simulators for them, so that
// the tests of Drover's simulator can compare with these results on every machine. data/README.md
// gives the source of each file. Only tests import it.
package publictrace

import (
	"bufio"
	"compress/gzip"
	"embed"
	"io"
	"strings"
	"testing"
)

// The files of the folder data. The results have one line for each job of their trace.
const (
	KTHSP2            = "KTH-SP2.swf.gz"
	KTHSP2Waits       = "KTH-SP2.waits.txt.gz" // seconds: FCFS, EASY, conservative
	FB2010            = "FB-2010.tsv.gz"
	FB2010Completions = "FB-2010.completions.txt.gz" // seconds: FIFO, PS, LAS, SRPT
)

//go:embed data
var data embed.FS

// Open returns the unpacked content of a file.
func Open(t testing.TB, name string) io.Reader {
	t.Helper()
	f, err := data.Open("data/" + name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	r, err := gzip.NewReader(f)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return r
}

// Rows returns the fields of each line of a file, except comments.
func Rows(t testing.TB, name string) [][]string {
	t.Helper()
	var rows [][]string
	s := bufio.NewScanner(Open(t, name))
	for s.Scan() {
		if line := s.Text(); !strings.HasPrefix(line, ";") {
			rows = append(rows, strings.Fields(line))
		}
	}
	if err := s.Err(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return rows
}
