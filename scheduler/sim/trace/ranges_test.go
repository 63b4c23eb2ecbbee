package trace

import (
	"strings"
	"testing"
)

// TestGeneratedTimesFit: times that an integer of nanoseconds cannot hold are refused; they became
// submissions before second 0.
func TestGeneratedTimesFit(t *testing.T) {
	for name, c := range map[string]struct {
		generator string
		params    map[string]string
		want      string
	}{
		"arrivals over 300 years": {"poisson", map[string]string{"jobs": "100", "interval_s": "1e9"}, "would be submitted after 4000000000 s"},
		"a task of 300 years":     {"heavy_tailed", map[string]string{"jobs": "1000", "interval_s": "0", "task_s": "1e9"}, "a task would run for more than 4000000000 s"},
	} {
		if _, err := Generate(c.generator, c.params, 1); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want …%s…", name, err, c.want)
		}
	}
}
