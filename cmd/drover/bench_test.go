package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/drover-run/drover/scheduler/bench"
)

func TestBenchSchedulerPrintsOneObjectACase(t *testing.T) {
	var out, errs bytes.Buffer
	err := newApp(strings.NewReader(""), &out, &errs).Run([]string{"drover", "bench", "scheduler", "-nodes", "5,10", "-placements", "2000", "-json"})
	if err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	dec := json.NewDecoder(&out)
	for _, nodes := range []int{5, 10} {
		var r bench.Result
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if r.Nodes != nodes || r.Placements < 2000 || r.PlacementsPerS <= 0 || r.Packing <= 0 || r.RSSBytes == 0 {
			t.Errorf("%+v", r)
		}
	}
	if dec.More() {
		t.Error("more objects than cases")
	}
}

func TestBenchSchedulerRefusesWhatItDoesNotKnow(t *testing.T) {
	for name, args := range map[string][]string{
		"an unknown policy":    {"-policy", "fiffo"},
		"unknown features":     {"-features", "most"},
		"a parameter of none":  {"-set", "colour=red"},
		"a flag that is words": {"-set", "strict"},
	} {
		var out, errs bytes.Buffer
		full := append([]string{"drover", "bench", "scheduler", "-nodes", "2", "-placements", "10"}, args...)
		if err := newApp(strings.NewReader(""), &out, &errs).Run(full); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
