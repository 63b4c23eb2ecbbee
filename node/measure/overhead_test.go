package measure

import "testing"

// The overheads of three equal machines, as measured: 17, 18 and 19 MiB.
func TestEqualMachinesHaveEqualOverhead(t *testing.T) {
	const mib = 1 << 20
	for _, measured := range []int64{17*mib - 5, 17 * mib, 18*mib + 4096, 19 * mib} {
		if got := roundOverhead(measured); got != 24*mib {
			t.Errorf("%d bytes: %d, want 24 MiB", measured, got)
		}
	}
	if got := roundOverhead(0); got != 0 {
		t.Errorf("of nothing: %d", got)
	}
}
