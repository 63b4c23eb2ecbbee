package policies

import (
	"testing"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
)

// Every policy of the table conforms with its default parameters.
func TestEveryPolicyConforms(t *testing.T) {
	for _, info := range table {
		t.Run(info.Name, func(t *testing.T) {
			policytest.Run(t, func() scheduler.Policy {
				p, err := New(info.Name, nil)
				if err != nil {
					t.Fatal(err)
				}
				if p.Name() != info.Name {
					t.Fatalf("%q calls itself %q", info.Name, p.Name())
				}
				return p
			})
		})
	}
}

// observedPolicy notes whether a policy has made a reservation.
type observedPolicy struct {
	scheduler.Policy
	reserved *bool
}

func (o observedPolicy) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	d := o.Policy.Decide(s, now, limit)
	for i := range d.Actions {
		*o.reserved = *o.reserved || d.Actions[i].Kind == scheduler.ActReserve
	}
	return d
}

// Only policies with Reserves release reservations of policies.
func TestInfoSaysWhichPoliciesReserve(t *testing.T) {
	first := seed.New(t)
	for _, info := range table {
		reserved := false
		for world := range uint64(20) {
			policytest.RunWorld(t, func() scheduler.Policy { return observedPolicy{mustNew(t, info.Name, nil), &reserved} }, first+world, 30)
		}
		if reserved != info.Reserves {
			t.Errorf("%s: Reserves is %t, and it made reservations: %t", info.Name, info.Reserves, reserved)
		}
	}
}

// Between events a policy that plans decides nothing before it said that it would.
func TestPlansHoldOverTime(t *testing.T) {
	for _, name := range []string{"conservative", "two_tier", "pdsonqueue"} {
		policytest.RunOverTime(t, func() scheduler.Policy { return mustNew(t, name, nil) })
	}
}

func TestStrictFifoConforms(t *testing.T) {
	policytest.Run(t, func() scheduler.Policy { return &fifo{strict: true} })
}

func TestNaiveDRFConforms(t *testing.T) {
	policytest.Run(t, func() scheduler.Policy { return mustNew(t, "drf", map[string]string{"stop_at_first_misfit": "true"}) })
}

// Worlds in which a policy once failed, with the fault.
func TestWorldsThatFailedOnceConform(t *testing.T) {
	for name, c := range map[string]struct {
		policy string
		seed   uint64
		cycles int
		params map[string]string
	}{
		"room that a decision took only for a moment, then a compression":      {"two_tier", 0xe2a5e, 7, nil},
		"room that a compression took from a later task, after a repair":       {"conservative", 0x120926, 8, nil},
		"a drained node whose window is about to begin":                        {"conservative", 0x273f15, 10, nil},
		"plans that begin where running tasks alone exceed a node that leaves": {"two_tier", 0xbac5aaf4f, 7, nil},
		"a task past its estimate where the decision gives a guarantee":        {"conservative", 0x11f68bfb53d2, 10, nil},
		"a task that waited for its own node, and then for any":                {"two_tier", 0xaf63be9, 8, nil},
		"a frozen task that is planned to end before others' guarantees":       {"conservative", 0x9df1b8bbacf08225, 27, nil},
		"a due task whose node leaves before it would end":                     {"3dsf", 0x45aafcb047e37, 2, nil},
		"a stage of which the last action moved the task it waited with":       {"3dsf", 0x1c660af60, 2, nil},
		"nodes reserved where nothing fits, as only a new State does not know": {"ideal", 0xd81, 10, map[string]string{"reserve": "true"}},
		"a task after which another tenant's next one is over a cap":           {"drf", 2187, 14, map[string]string{"stop_at_first_misfit": "true"}},
		"a waiting task that would end too late as time alone passes":          {"multifactor", 13019989627788220492, 30, nil},
		"the demotion of a job whose first task is placed in the last pass":    {"las_mq", 0x1ae411c5b, 8, map[string]string{"reserve": "true"}},
	} {
		t.Run(name, func(t *testing.T) {
			policytest.RunWorld(t, func() scheduler.Policy { return mustNew(t, c.policy, c.params) }, c.seed, c.cycles)
		})
	}
}
