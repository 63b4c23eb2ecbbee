package environ

import (
	"slices"
	"testing"
)

func TestMerge(t *testing.T) {
	a, b := []string{"PATH=/bin", "A=1"}, []string{"B=x=y", "A=2", "A=", "EMPTY"}
	if got, want := Merge(a, nil, b), []string{"PATH=/bin", "A=", "B=x=y", "EMPTY"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if a[1] != "A=1" || b[1] != "A=2" {
		t.Errorf("the lists were changed: %q %q", a, b)
	}
	if got := Merge(); got != nil {
		t.Errorf("of nothing: %q", got)
	}
}
