package coordtest

import (
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// A run that is taken from the node and wanted again is started twice; one that is wanted all the time is not.
func TestStartsOfARunAreCounted(t *testing.T) {
	run := &droverv1.AttemptKey{Job: 1, Attempt: 1, Run: 1}
	put := []*droverv1.WantedAttempt{{Key: run, Goal: droverv1.Goal_GOAL_RUN}}
	for name, tc := range map[string]struct {
		then []*droverv1.Wanted // after the run was put
		want int
	}{
		"put again":                      {[]*droverv1.Wanted{{Put: put}}, 1},
		"in a full set":                  {[]*droverv1.Wanted{{Full: true, Put: put}}, 1},
		"removed":                        {[]*droverv1.Wanted{{Remove: []*droverv1.AttemptKey{run}}}, 1},
		"removed and put":                {[]*droverv1.Wanted{{Remove: []*droverv1.AttemptKey{run}}, {Put: put}}, 2},
		"not in a full set, and put":     {[]*droverv1.Wanted{{Full: true}, {Put: put}}, 2},
		"removed and put in one message": {[]*droverv1.Wanted{{Remove: []*droverv1.AttemptKey{run}, Put: put}}, 2},
	} {
		for what, b := range map[string]Behaviour{"runs on": Hang, "ended": Succeed} {
			n := New(nil, Info("n1"), NewFS(), b)
			for i, w := range append([]*droverv1.Wanted{{Full: true, Put: put}}, tc.then...) {
				w.Revision = uint64(i + 1)
				n.apply(w)
			}
			if runs, most := n.StartCounts(); runs != 1 || most != tc.want {
				t.Errorf("%s, the attempt %s: %d runs, one started %d times, want 1 and %d", name, what, runs, most, tc.want)
			}
		}
	}
}
