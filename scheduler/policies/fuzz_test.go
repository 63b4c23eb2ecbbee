package policies

import (
	"bytes"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// FuzzEveryPolicyOnALoadedState: no State that can be loaded from a file makes a
// policy or Check panic, or break a rule.
func FuzzEveryPolicyOnALoadedState(f *testing.F) {
	for seed := range uint64(6) {
		c := schedtest.NewChaos(f, seed)
		for range 40 {
			c.Step()
		}
		f.Add(c.State.Bytes(), uint8(seed))
	}
	all := All()
	f.Fuzz(func(t *testing.T, raw []byte, which uint8) {
		s, err := scheduler.Load(bytes.NewReader(raw))
		if err != nil {
			return
		}
		p, err := New(all[int(which)%len(all)].Name, nil)
		if err != nil {
			t.Fatal(err)
		}
		before := s.Bytes()
		now := scheduler.Time(time.Hour)
		d := p.Decide(s, now, 100)
		if !bytes.Equal(before, s.Bytes()) {
			t.Fatalf("%s changed the State", p.Name())
		}
		if v := scheduler.Check(s, &d, now); len(v) > 0 {
			t.Fatalf("%s: %v", p.Name(), v)
		}
	})
}
