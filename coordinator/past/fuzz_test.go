package past

import (
	"testing"

	"github.com/drover-run/drover/internal/fuzztest"
)

// FuzzUnseal reads values of the history's database as they may stand on a disk.
func FuzzUnseal(f *testing.F) {
	f.Add([]byte("key"), []byte("value"))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 1}, make([]byte, 64))
	fuzztest.Run(f, func(t *testing.T, key, value []byte) {
		if k, _, payload, err := unseal(key, value); err == nil && (!k.known() || len(payload) > 1<<30) {
			t.Errorf("a value of kind %v with %d bytes", k, len(payload))
		}
	})
}
