package rotate

import (
	"testing"

	"github.com/drover-run/drover/internal/fuzztest"
)

// FuzzMark reads the mark of a log: a damaged mark counts as none, or has no negative position.
func FuzzMark(f *testing.F) {
	f.Add([]byte("00000000000000000017 00000000000000000042\n"))
	f.Add([]byte("-1 -1"))
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		if m, ok := parseMark(b); ok && (m.Start < 0 || len(b) < markSize) {
			t.Errorf("%q is %+v", b, m)
		}
	})
}
