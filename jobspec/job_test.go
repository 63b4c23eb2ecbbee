package jobspec

import (
	"slices"
	"testing"
)

func TestStagesBefore(t *testing.T) {
	stage := func(name string, kind StageKind, after ...string) Stage {
		return Stage{Name: name, Kind: kind, After: after}
	}
	for name, c := range map[string]struct {
		stages []Stage
		want   [][]int32
	}{
		"groups":                                              {[]Stage{stage("a", KindGroup), stage("b", KindGroup, "a"), stage("c", KindGroup, "b", "a")}, [][]int32{nil, {0}, {0, 1}}},
		"a reduce stage follows the map stage":                {[]Stage{stage("m", KindMap), stage("r", KindReduce)}, [][]int32{nil, {0}}},
		"also if that comes later":                            {[]Stage{stage("r", KindReduce), stage("m", KindMap)}, [][]int32{{1}, nil}},
		"also beside others, and once if it is named":         {[]Stage{stage("g", KindGroup), stage("m", KindMap, "g"), stage("r", KindReduce, "m", "g")}, [][]int32{nil, {0}, {0, 1}}},
		"a group after a reduce stage":                        {[]Stage{stage("m", KindMap), stage("r", KindReduce), stage("g", KindGroup, "r")}, [][]int32{nil, {0}, {1}}},
		"a name that is unknown or the stage's own is none":   {[]Stage{stage("a", KindGroup, "a", "x")}, [][]int32{nil}},
		"a reduce stage alone, which Validate refuses":        {[]Stage{stage("r", KindReduce)}, [][]int32{nil}},
		"a name that is given twice is one stage to wait for": {[]Stage{stage("a", KindGroup), stage("b", KindGroup, "a", "a")}, [][]int32{nil, {0}}},
	} {
		j := Job{Stages: c.stages}
		for i, want := range c.want {
			if got := j.StagesBefore(i); !slices.Equal(got, want) {
				t.Errorf("%s: before stage %d: %v, want %v", name, i, got, want)
			}
		}
	}
}
