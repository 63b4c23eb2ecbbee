package trace

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A history has stages without tasks (an empty input) and tasks that never ran (a
// job that was stopped). Neither is replayed, and neither is an error.
func TestHistoryLeavesOutWhatNeverRan(t *testing.T) {
	ran := `{"attempts":[{"state":"succeeded","place_ms":10,"end_ms":20,"run_ms":5}]}`
	atOnce := `{"attempts":[{"state":"stopped","place_ms":10,"end_ms":10}]}`
	stage := func(name, after, tasks string) string {
		return `{"name":"` + name + `","kind":"group","cpu":1,"memory":1,"io":0,"disk":0,"after":` + after + `,"tasks":[` + tasks + `]}`
	}
	lines := []string{
		`{"version":1,"job":1,"name":"stopped","submit_ms":0,"stages":[` + stage("a", "[]", ran+`,{},{"attempts":[]},`+atOnce) + `]}`,
		`{"version":1,"job":2,"name":"empty","submit_ms":0,"stages":[` + strings.Join([]string{stage("map", "[]", ran), stage("none", "[0]", ""), stage("also", "[1]", "{}"), stage("end", "[0,2]", ran)}, ",") + `]}`,
		`{"version":1,"job":3,"name":"nothing","submit_ms":0,"stages":[` + stage("a", "[]", "{}") + `]}`,
	}
	h, err := ReadHistory(strings.NewReader(strings.Join(lines, "\n")), Options{Name: "h"})
	if err != nil {
		t.Fatal(err)
	}
	type shape struct {
		Name  string
		After []int32
		Tasks int
	}
	got := map[string][]shape{}
	for _, j := range h.Jobs {
		for _, g := range j.Stages {
			got[j.Name] = append(got[j.Name], shape{g.Name, g.After, len(g.Tasks)})
		}
	}
	want := map[string][]shape{"stopped": {{"a", nil, 2}}, "empty": {{"map", nil, 1}, {"end", []int32{0}, 1}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if w := h.Workload(HistoryRule{}).Jobs; len(w) != 2 || w[0].Stages[0].WorkPerTask[1] <= 0 {
		t.Errorf("%+v", w)
	}
}
