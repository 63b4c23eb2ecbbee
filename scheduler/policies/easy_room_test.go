package policies

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
	"github.com/drover-run/drover/scheduler/timeline"
)

// The needs that easy remembers in a cycle, because no node has room for them, save searches and change nothing.
func TestNeedsWithoutRoomChangeNoDecision(t *testing.T) {
	remembered := 0
	newEasy := func() *easy { return mustNew(t, "easy", nil).(*easy) }
	rapid.Check(t, func(t *rapid.T) {
		c := schedtest.NewChaos(t, rapid.Uint64().Draw(t, "seed"))
		fast := newEasy()
		slow := newEasy()
		slow.most = 0
		for range rapid.IntRange(1, 20).Draw(t, "cycles") {
			for range 1 + c.R.IntN(6) {
				c.Step()
			}
			if c.R.IntN(4) == 0 {
				c.OrderWindows()
			}
			c.State.SetTime(c.Now)
			d := fast.Decide(c.State, c.Now, 1000)
			remembered += len(fast.noRoom)
			if other := slow.Decide(c.State, c.Now, 1000); d.String() != other.String() {
				t.Fatalf("with memory\n%s\nwithout\n%s", d.String(), other.String())
			}
			for i := range d.Actions {
				if err := c.State.Apply(&d.Actions[i], c.Now); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.State.PolicyStates().Apply(d.PolicyStates); err != nil {
				t.Fatal(err)
			}
		}
	})
	if remembered == 0 {
		t.Error("nothing was remembered")
	}
}

// A need has no room if one had none that is not larger in anything and not longer.
func TestSmallerNeedWithoutRoom(t *testing.T) {
	need := func(cpu, memory, io, space int64) timeline.Need {
		return scheduler.NodeNeed(scheduler.Resources{cpu, memory, io}, space)
	}
	e := easy{noRoom: []timedNeed{{need(4, 4, 4, 4), 4 * time.Second}}}
	for _, x := range []struct {
		need     timeline.Need
		duration time.Duration
		want     bool
	}{
		{need(4, 4, 4, 4), 4 * time.Second, true}, {need(5, 5, 5, 5), 5 * time.Second, true},
		{need(3, 5, 5, 5), 5 * time.Second, false}, {need(5, 3, 5, 5), 5 * time.Second, false}, {need(5, 5, 3, 5), 5 * time.Second, false},
		{need(5, 5, 5, 3), 5 * time.Second, false}, {need(5, 5, 5, 5), 3 * time.Second, false},
	} {
		if got := e.hasNoRoom(&x.need, x.duration); got != x.want {
			t.Errorf("%v for %v: %v", x.need, x.duration, got)
		}
	}
}
