package median

import (
	"slices"
	"testing"
)

func TestOf(t *testing.T) {
	for _, c := range []struct {
		values []int64
		want   int64
	}{
		{[]int64{7}, 7},
		{[]int64{9, 1}, 5},
		{[]int64{9, 1, 2}, 2},
		{[]int64{9, 1, 2, 4}, 3},
	} {
		before := slices.Clone(c.values)
		if got := Of(c.values); got != c.want || !slices.Equal(c.values, before) {
			t.Errorf("the median of %d is %d, want %d; they are %d now", before, got, c.want, c.values)
		}
	}
	if got := Of([]float64{2, 1}); got != 1.5 {
		t.Errorf("the median of 1 and 2 is %g", got)
	}
}
