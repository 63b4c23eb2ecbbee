package policies

import (
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// cappedWorld is a cluster that 3dsf schedules, with tenants that have caps.
type cappedWorld struct {
	*schedtest.World
	t        *testing.T
	policy   scheduler.Policy
	projects scheduler.ProjectID
}

func newCappedWorld(t *testing.T, nodes int, tenants ...string) *cappedWorld {
	w := &cappedWorld{World: schedtest.New(t).AddNodes(nodes, schedtest.R(4, 16, 100)).AddTenants(tenants...), t: t}
	w.policy = w.newPolicy()
	return w
}

func (w *cappedWorld) newPolicy() scheduler.Policy {
	return mustNew(w.t, "3dsf", map[string]string{"sf": "0", "margin": "2s", "guarantee_share": "1"})
}

// setCap sets the cap of a tenant's total.
func (w *cappedWorld) setCap(tenant string, cap scheduler.Resources) {
	spec := w.Tenant(tenant).Spec
	spec.Caps.Total = scheduler.Limit(cap)
	if err := w.State.Events().PutTenant(spec); err != nil {
		w.t.Fatal(err)
	}
}

// project submits a project of one job.
func (w *cappedWorld) project(tenant string, tasks int32, demand scheduler.Resources, bound time.Duration) *scheduler.Job {
	w.projects++
	if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: w.projects, Tenant: w.Tenant(tenant).Spec.ID, Priority: scheduler.PriorityLow,
		Submitted: w.Now, Jobs: 1}); err != nil {
		w.t.Fatal(err)
	}
	return w.State.Job(w.Submit(tenant, tasks, demand, func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Project, j.Bound = w.projects, bound }))
}

// round lets the policy decide, starts what it placed, and suspends and resumes what it said, one attempt in each 100 ms.
func (w *cappedWorld) round() {
	w.t.Helper()
	policytest.Round(w.t, w.State, w.policy, w.newPolicy, w.Now, 100)
	w.Start().Advance(100 * time.Millisecond)
	for _, a := range w.Attempts() {
		var err error
		switch a.Phase {
		case scheduler.AttemptSuspending:
			has := scheduler.Footprint{Memory: a.Demand[scheduler.Memory]}
			if a.Target == scheduler.LevelSwapped {
				has = scheduler.Footprint{Swap: a.Demand[scheduler.Memory]}
			}
			err = w.State.Events().AttemptSuspended(a.ID, a.Run, a.Target, has, w.Now)
		case scheduler.AttemptResuming:
			err = w.State.Events().AttemptResumed(a.ID, a.Run, w.Now)
		default:
			continue
		}
		if err != nil {
			w.t.Fatal(err)
		}
		return
	}
}

// A guaranteed task that is due starts although regular work of its tenant, or of another one below the same cap, fills the
// cap on other nodes: as many of these tasks as it needs give way, and nobody takes what they free.
func TestDueGuaranteeStartsUnderAFullCap(t *testing.T) {
	for name, x := range map[string]struct {
		regular  string
		accepted bool // they have deadlines that were accepted without a guarantee
		cap      scheduler.Resources
		first    scheduler.Resources // demand of what fills the cap
		demand   scheduler.Resources
		want     int32 // suspended
	}{
		"of its tenant":              {"top/a", false, schedtest.R(4, 0, 0), schedtest.R(1, 1, 0), schedtest.R(2, 2, 0), 2},
		"of another tenant below it": {"top/b", false, schedtest.R(4, 0, 0), schedtest.R(1, 1, 0), schedtest.R(2, 2, 0), 2},
		"of accepted deadlines":      {"top/b", true, schedtest.R(4, 0, 0), schedtest.R(1, 1, 0), schedtest.R(2, 2, 0), 2},
		"of memory":                  {"top/a", false, schedtest.R(0, 4, 0), schedtest.R(1, 1, 0), schedtest.R(1, 3, 0), 3},
	} {
		t.Run(name, func(t *testing.T) {
			w := newCappedWorld(t, 3, "top", "top/a", "top/b", "other")
			w.setCap("top", x.cap)
			regular := w.State.Job(w.Submit(x.regular, 20, x.first, func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
				if x.accepted {
					j.Deadline, j.Accepted, g.Estimate = w.Now.Add(time.Hour), true, 10*time.Minute
				}
			}))
			w.round()
			if got := regular.Stages[0].Running; got != 4 {
				t.Fatalf("%d regular tasks fill the cap, want 4", got)
			}
			j := w.project("top/a", 1, x.demand, 9*time.Second)
			for i := 0; i < 15 && j.Live == 0; i++ {
				w.round()
			}
			if g := regular.Stages[0]; j.Live != 1 || g.Suspended != x.want || w.State.Project(1).HasState(scheduler.ViolatedState) {
				t.Errorf("%d of 1 tasks started with %d suspended, want %d; violated: %v", j.Live, g.Suspended, x.want, w.State.Project(1).HasState(scheduler.ViolatedState))
			}
			w.round()
			if used := w.Tenant("top").Used; x.cap[scheduler.CPU] > 0 && used[scheduler.CPU] != x.cap[scheduler.CPU] {
				t.Errorf("%v is in use below the cap %v", used, x.cap)
			}
		})
	}
}

// provedPolicy proves what its policy decides: a new instance decides the same, and each reason is true.
type provedPolicy struct {
	scheduler.Policy
	t      *testing.T
	maker  policytest.Maker
	waited int // for due tasks below a cap
}

func (p *provedPolicy) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	d := policytest.DecideWarmAndCold(p.t, s, p.Policy, p.maker, now, limit)
	after := s.Clone()
	for i := range d.Actions {
		if err := after.Apply(&d.Actions[i], now); err != nil {
			p.t.Fatal(err)
		}
	}
	if err := after.PolicyStates().Apply(d.PolicyStates); err != nil {
		p.t.Fatal(err)
	}
	if err := policytest.ProveAll(after, &d, now, limit); err != nil {
		p.t.Fatalf("%v\n%s", err, d.String())
	}
	for _, w := range d.Waiting {
		if r := after.Reservations().Get(w.Reservation); w.Reason == scheduler.ReasonReservation && r.Kind.IsGuarantee() && r.Start <= now &&
			!after.TenantTree().Allows(after.Stage(r.StageID())) {
			p.waited++
		}
	}
	return d
}

// cappedGuarantees returns a world of guarantees in which the tenants are below another one with a cap, and have caps
// themselves now and then.
func cappedGuarantees(t *testing.T, seed uint64) (*guaranteeWorld, *provedPolicy) {
	params := map[string]string{"max_suspended": []string{"10m", "2s"}[seed%2], "guarantee_share": "1"}
	p := newGuaranteeWorld(t, seed, 3, params)
	proved := &provedPolicy{Policy: p.policy, t: t, maker: func() scheduler.Policy { return mustNew(t, "3dsf", params) }}
	p.policy = proved
	p.AddTenants("top")
	put := func(name string, cap scheduler.Resources) {
		spec := p.Tenant(name).Spec
		if name != "top" {
			spec.Parent = p.Tenant("top").Spec.ID
		}
		spec.Caps.Total = scheduler.Limit(cap)
		if err := p.State.Events().PutTenant(spec); err != nil {
			t.Fatal(err)
		}
	}
	put("top", schedtest.R(float64(4+p.r.IntN(4)), float64([]int{0, 12}[p.r.IntN(2)]), 0))
	put("a", schedtest.R(float64([]int{0, 4}[p.r.IntN(2)]), 0, 0))
	put("b", schedtest.R(0, float64([]int{0, 6}[p.r.IntN(2)]), 0))
	return p, proved
}

// Due tasks below a cap wait for what gives way there, and everything else for them.
func TestDueTasksWaitUnderCaps(t *testing.T) {
	waited := 0
	for range soakRounds(8) {
		seed := seed.New(t)
		p, proved := cappedGuarantees(t, seed)
		for range 200 {
			p.advanceSecond(true)
		}
		for range 600 {
			p.advanceSecond(false)
		}
		waited += proved.waited
	}
	if t.Logf("%d times a stage waited for a due task below a cap", waited); waited == 0 {
		t.Error("no stage waited for a due task below a cap")
	}
}
