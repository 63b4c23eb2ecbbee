package main

import (
	"slices"
	"testing"

	"github.com/drover-run/drover/integration/preempt"
)

func TestCountInversions(t *testing.T) {
	for name, c := range map[string]struct {
		a, b []int
		want int
	}{
		"the same order": {[]int{0, 1, 2}, []int{0, 1, 2}, 0},
		"two swapped":    {[]int{0, 1, 2}, []int{1, 0, 2}, 1},
		"reversed":       {[]int{0, 1, 2, 3}, []int{3, 2, 1, 0}, 6},
		"empty":          {nil, nil, 0},
	} {
		if got := countInversions(c.a, c.b); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestReadPrediction(t *testing.T) {
	const text = `job,name,deadline_s,finish_s,met
1,maps-kill-2,,90,
2,deadline-kill-2-0,45,30.5,true
3,deadline-kill-2-1,48,20,true
4,deadline-kill-2-2,51,52,false
`
	p, err := readPrediction(&preempt.Outcome{Mode: preempt.Kill, EndOrder: []int{0, 1, 2}}, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if p.OnTime != 2 || p.Inversions != 1 || !slices.Equal(p.EndOrder, []int{1, 0, 2}) {
		t.Errorf("%+v", p)
	}
	for _, bad := range []string{"", "job,name,deadline_s,finish_s,met\n1,x,45,3,true\n", "job,name,deadline_s,finish_s,met\n1,x-1,45,,false\n"} {
		if _, err := readPrediction(&preempt.Outcome{}, []byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestParseModes(t *testing.T) {
	got, err := parseModes("alone,suspend,none", 2)
	if want := []preempt.Mode{"alone", "suspend", "none", "suspend", "none"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if _, err := parseModes("suspend,freeze", 1); err == nil {
		t.Error("an unknown mode was accepted")
	}
}
