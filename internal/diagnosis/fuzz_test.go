package diagnosis

import (
	"testing"

	"github.com/drover-run/drover/internal/fuzztest"
)

// FuzzPosition parses the position from which a caller wants to continue in a daemon's log.
func FuzzPosition(f *testing.F) {
	f.Add(position{1, 2, 3}.String())
	f.Add("-1-2-3")
	fuzztest.Run(f, func(t *testing.T, s string) {
		p, err := parsePosition(s)
		if err != nil {
			return
		}
		if back, err := parsePosition(p.String()); err != nil || back != p {
			t.Errorf("%q is %+v, shown as %q, read back as %+v (%v)", s, p, p, back, err)
		}
	})
}
