package engine_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policies"
	"github.com/drover-run/drover/scheduler/schedtest"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

// alwaysReasoning hides the policy's method Reasons, so that it always reports reasons.
type alwaysReasoning struct{ scheduler.Policy }

// crowdedConfig returns jobs of many demands that arrive faster than they can run.
func crowdedConfig(seed uint64) engine.Config {
	r := rand.New(rand.NewPCG(seed, 5))
	c := engine.Config{Nodes: nodes(5, 3, schedtest.R(8, 16, 100)), Models: engine.Models{Spread: 0.4, MTBF: 10 * time.Minute, Repair: time.Minute}, Seed: seed}
	for i := range 2 {
		c.Tenants = append(c.Tenants, scheduler.TenantSpec{ID: scheduler.TenantID(i), Name: fmt.Sprint("t", i), Parent: scheduler.NoTenant, Weight: float64(i + 1)})
	}
	for i := range 60 {
		j := singleStageJob(time.Duration(i)*sec/2, 1+r.Int32N(6), schedtest.R(float64(1+r.IntN(4)), float64(1+r.IntN(6)), float64(r.IntN(40))), time.Duration(1+r.IntN(20))*sec)
		j.Tenant, j.Bound, j.Priority = scheduler.TenantID(i%2), 2*time.Minute, scheduler.Priority(1+r.IntN(2))
		if r.IntN(3) == 0 {
			j.Deadline = j.Submit + time.Duration(30+r.IntN(300))*sec
		}
		j.Stages = append(j.Stages, engine.Stage{Name: "then", After: []int32{0}, Tasks: 1 + r.Int32N(3), Demand: schedtest.R(1, float64(1+r.IntN(8)), 0), Work: 5 * sec})
		c.Jobs = append(c.Jobs, j)
	}
	return c
}

// The result does not depend on whether the policy reports reasons of waiting stages, and whether
// it stops early when nothing fits.
func TestReasonsDoNotChangeDecisions(t *testing.T) {
	for _, info := range policies.All() {
		for _, reserve := range []bool{false, true} {
			var kv []string
			for _, p := range info.Params {
				if reserve && p.Name == "reserve" {
					kv = []string{"reserve", "true"}
				}
			}
			if reserve && kv == nil {
				continue
			}
			t.Run(fmt.Sprint(info.Name, kv), func(t *testing.T) {
				c := crowdedConfig(seed.New(t))
				c.Policy = policy(t, info.Name, kv...)
				got := mustSimulate(t, c)
				c.Policy = alwaysReasoning{policy(t, info.Name, kv...)}
				if want := mustSimulate(t, c); !reflect.DeepEqual(got, want) {
					t.Errorf("without reasons %d events, makespan %v; with them %d, %v", got.Events, got.Makespan, want.Events, want.Makespan)
				}
			})
		}
	}
}
