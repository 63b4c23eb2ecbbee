package threedsf

import (
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/drf"
	"github.com/drover-run/drover/scheduler/lasmq"
	"github.com/drover-run/drover/scheduler/locality"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// projectWorld is schedtest.Chaos with projects: their jobs come one by one.
type projectWorld struct {
	*schedtest.Chaos
	projects scheduler.ProjectID
}

// step advances the clock by up to 5 s and applies a random event.
func (w *projectWorld) step() {
	if w.R.IntN(5) > 0 {
		w.Step()
		return
	}
	w.Now = w.Now.Add(time.Duration(w.R.IntN(5000)) * time.Millisecond)
	if w.projects == 0 || w.R.IntN(3) == 0 {
		w.projects++
		spec := scheduler.ProjectSpec{ID: w.projects, Name: "p", Tenant: w.randomTenant().Spec.ID, Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: int32(1 + w.R.IntN(3))}
		if err := w.State.Events().PutProject(spec); err != nil {
			w.Fatalf("%v", err)
		}
	}
	pr := w.State.Project(1 + scheduler.ProjectID(w.R.IntN(int(w.projects))))
	if len(pr.Jobs) >= int(pr.Spec.Jobs) {
		return
	}
	bound := time.Duration(2+w.R.IntN(20)) * time.Second
	w.SubmitStages(w.State.Tenant(pr.Spec.Tenant).Spec.Name, []scheduler.StageSpec{{Name: "main", Kind: scheduler.KindGroup, Tasks: int32(1 + w.R.IntN(4)),
		Demand: schedtest.R(float64(1+w.R.IntN(3)), float64(1+w.R.IntN(3)), 0), Estimate: bound / 2}},
		func(j *scheduler.JobSpec) { j.Project, j.Bound = pr.Spec.ID, bound })
}

func (w *projectWorld) randomTenant() *scheduler.Tenant {
	return w.State.Tenants()[w.R.IntN(len(w.State.Tenants()))]
}

// decide lets a policy decide and applies what it decided.
func (w *projectWorld) decide(p *Policy, limit int) scheduler.Decision {
	d, err := scheduler.Cycle(w.State, p, w.Now, limit, scheduler.AcceptAll)
	if err != nil {
		w.Fatalf("%v", err)
	}
	return d
}

// fullConfig has all modules switched on, as the policy 3dsf has by default, with times that matter within a minute.
func fullConfig() Config {
	return Config{Name: "3dsf", Level: drf.Largest, Resources: 3, Locality: true, Network: locality.Network{Bandwidth: 50_000_000}, MaxLocalityWait: 5 * time.Second,
		MaxLocalityYield: 10 * time.Second, SmallTaskBytes: schedtest.MiB, PriorityOrder: true, ReserveNodes: true, Aging: 20 * time.Second,
		LASMQ:     &lasmq.Config{Queues: 4, First: 5, Step: 2, Decay: 0.5, Order: lasmq.OrderRemaining, Horizon: 10 * time.Second, Unit: schedtest.R(1, 2, 1000)},
		Deadlines: true, Order: deadline.EMWTF, Preempt: deadline.Suspend, MaxSuspended: 30 * time.Second, Migrate: true,
		Guarantees: Guarantees{Enabled: true, SF: 0.5, MaxTries: 20, Margin: 2 * time.Second, CompressEvery: 3 * time.Second}}
}
