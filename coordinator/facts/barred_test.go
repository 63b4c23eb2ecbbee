package facts

import (
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

func TestWhatANodeCouldNotDo(t *testing.T) {
	const running, frozen, swapped, checkpointed = droverv1.Level_LEVEL_RUNNING, droverv1.Level_LEVEL_FROZEN, droverv1.Level_LEVEL_SWAPPED, droverv1.Level_LEVEL_CHECKPOINTED
	for name, c := range map[string]struct {
		stays, asked droverv1.Level
		want         []droverv1.Level
	}{
		"frozen, not swapped":                  {frozen, swapped, []droverv1.Level{swapped}},
		"frozen, not checkpointed":             {frozen, checkpointed, []droverv1.Level{swapped, checkpointed}},
		"swapped, not checkpointed":            {swapped, checkpointed, []droverv1.Level{checkpointed}},
		"what cannot be frozen can do nothing": {running, frozen, []droverv1.Level{frozen, swapped, checkpointed}},
	} {
		want := uint8(0)
		for _, l := range c.want {
			want |= 1 << l
		}
		if got := barredBy(c.stays, c.asked); got != want {
			t.Errorf("%s: %b, want %b", name, got, want)
		}
	}
}
