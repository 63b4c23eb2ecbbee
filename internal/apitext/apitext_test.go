package apitext

import (
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

func TestWords(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{JobState(droverv1.JobState_JOB_STATE_COMMITTING), "committing"},
		{Cause(droverv1.Cause_CAUSE_EXIT), "exit"},
		{Cause(droverv1.Cause_CAUSE_UNSPECIFIED), "unspecified"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
