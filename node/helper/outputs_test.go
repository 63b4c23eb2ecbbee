package helper

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/drover-run/drover/jobspec"
)

// The helper of a reduce task is told of the outputs of as many maps as are accepted.
func TestOutputsOfTheLargestJobFitIntoALine(t *testing.T) {
	if testing.Short() {
		t.Skip("not proved here: that the outputs of a million maps fit into a line; -short leaves out what takes seconds")
	}
	const nodes = 10_000
	addresses := make([]string, nodes)
	for i := range addresses {
		addresses[i] = fmt.Sprintf("%s-%d:65535", strings.Repeat("n", 255), i)
	}
	all := make(outputList, jobspec.MaxTasks)
	for i := range all {
		all[i] = MapOutput{Stage: 1, Task: int32(i), Attempt: math.MaxInt32, Run: math.MaxInt32, Address: addresses[i%nodes]}
	}
	line, err := Encode(&Request{Version: Version, Shuffle: &Shuffle{Job: 7, Maps: len(all), Update: Update{Outputs: all}}})
	if err != nil {
		t.Fatal(err)
	}
	var r Request
	if err := readLine(bufio.NewReader(bytes.NewReader(line)), &r); err != nil {
		t.Fatalf("a line of %d bytes: %v", len(line), err)
	}
	got := r.Shuffle.Outputs
	slices.SortFunc(got, func(a, b MapOutput) int { return cmp.Compare(a.Task, b.Task) })
	if !slices.Equal(got, all) {
		t.Errorf("%d outputs of %d, or others", len(got), len(all))
	}
}

func TestDamagedOutputsAreRefused(t *testing.T) {
	for _, line := range []string{`{"outputs":[{"numbers":[1,2]}]}`, `{"outputs":[1]}`, `{"outputs":[{"numbers":[1,2,99999999999]}]}`} {
		var u Update
		if err := readLine(bufio.NewReader(strings.NewReader(line+"\n")), &u); err == nil {
			t.Errorf("%s: %+v", line, u)
		}
	}
	var u Update
	if err := readLine(bufio.NewReader(strings.NewReader(`{"outputs":null}`+"\n")), &u); err != nil || len(u.Outputs) != 0 {
		t.Errorf("no outputs: %+v %v", u, err)
	}
}
