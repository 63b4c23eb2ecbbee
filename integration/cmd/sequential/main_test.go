package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// A package is sequential unless it, its tests, or a package that either imports, directly or
// indirectly, starts a goroutine. That the tests of c start a goroutine has no effect on d, which
// imports c.
func TestDivide(t *testing.T) {
	sequential, others, err := divide(filepath.Join("testdata", "m"))
	if err != nil {
		t.Fatal(err)
	}
	const module = "example.org/m/"
	for _, c := range []struct{ what, got, want string }{
		{"sequential", strings.Join(sequential, " "), "d e"},
		{"others", strings.Join(others, " "), "a b c f g"},
	} {
		if got := strings.ReplaceAll(c.got, module, ""); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

// Scheduling packages, the facts and an attempt's state machine start no goroutine; servers do.
func TestDivideThisModule(t *testing.T) {
	sequential, others, err := divide(filepath.Join("..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		list  []string
		wants string
	}{
		{sequential, "scheduler scheduler/deadline/forecast scheduler/policies scheduler/sim/engine scheduler/threedsf coordinator/facts node/task jobspec internal/words internal/imports"},
		{others, "coordinator coordinator/replica node cmd/drover hdfs/client integration/simcluster scheduler/sim/run mapreduce/harness"},
	} {
		has := " " + strings.Join(c.list, " ") + " "
		for name := range strings.FieldsSeq(c.wants) {
			if !strings.Contains(has, "/drover/"+name+" ") {
				t.Errorf("%s is on the other side", name)
			}
		}
	}
}
