package jobspec

import (
	"testing"

	"github.com/drover-run/drover/internal/fuzztest"
)

// FuzzUnits reads amounts as job files, flags and tenant files have them: none is below
// zero, and a size reads back as it is shown.
func FuzzUnits(f *testing.F) {
	for _, s := range []string{"0.137", "51m", "77MiB", "34567890", "3.3MB/s", "1e9", "-1", "9223372036854775807", "NaN", "1e400GiB"} {
		f.Add(s)
	}
	fuzztest.Run(f, func(t *testing.T, s string) {
		for name, parse := range map[string]func(string) (int64, error){"cpu": ParseCPU, "size": ParseSize, "rate": ParseRate} {
			v, err := parse(s)
			if err == nil && v < 0 {
				t.Errorf("%s %q is %d", name, s, v)
			}
		}
		if v, err := ParseSize(s); err == nil {
			if back, err := ParseSize(FormatSize(v)); err != nil || back < v-v/10 || back > v+v/10+1 {
				t.Errorf("size %q is %d, shown as %q, read back as %d (%v)", s, v, FormatSize(v), back, err)
			}
		}
	})
}
