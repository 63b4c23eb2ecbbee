package coordinator

import (
	"strings"
	"testing"

	"github.com/drover-run/drover/jobspec"
)

// Stages come after those that they wait for, and else stay in the order of the job file.
func TestStagesAreSorted(t *testing.T) {
	stage := func(name string, kind jobspec.StageKind, after ...string) jobspec.Stage {
		return jobspec.Stage{Name: name, Kind: kind, After: after}
	}
	for name, c := range map[string]struct {
		stages []jobspec.Stage
		want   string
	}{
		"in order":               {[]jobspec.Stage{stage("b", jobspec.KindGroup), stage("a", jobspec.KindGroup)}, "b a"},
		"the other way round":    {[]jobspec.Stage{stage("c", jobspec.KindGroup, "b"), stage("b", jobspec.KindGroup, "a"), stage("a", jobspec.KindGroup)}, "a b c"},
		"the reduce stage first": {[]jobspec.Stage{stage("r", jobspec.KindReduce), stage("g", jobspec.KindGroup), stage("m", jobspec.KindMap, "g")}, "g m r"},
		"a cycle":                {[]jobspec.Stage{stage("a", jobspec.KindGroup, "b"), stage("b", jobspec.KindGroup, "a")}, "a b"},
	} {
		var got []string
		for _, s := range sortStages(&jobspec.Job{Stages: c.stages}) {
			got = append(got, s.Name)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}
