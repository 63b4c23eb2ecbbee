package pipe

import (
	"testing"

	"github.com/drover-run/drover/internal/fuzztest"
)

// FuzzResponse parses random responses of a policy in another process.
func FuzzResponse(f *testing.F) {
	f.Add([]byte(`{"place":[{"job":1,"stage":0,"task":0,"node":1}],"wake_s":1.5}`))
	f.Add([]byte(`{"place":null,"wake_s":1e400}`))
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		if r, err := parseResponse(b); (err == nil) != (r != nil) {
			t.Errorf("%+v and %v", r, err)
		}
	})
}
