package rotate

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzMark reads the mark of a log: a damaged one is none, or has no position below zero.
func FuzzMark(f *testing.F) {
	f.Add([]byte("00000000000000000017 00000000000000000042\n"))
	f.Add([]byte("-1 -1"))
	path := filepath.Join(f.TempDir(), "l")
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(MarkPath(path), b, 0o600); err != nil {
			t.Fatal(err)
		}
		if m, ok := ReadMark(path); ok && (m.Start < 0 || len(b) < markSize) {
			t.Errorf("%q is %+v", b, m)
		}
	})
}
