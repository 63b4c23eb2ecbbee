package schedtest

import (
	"encoding/json"

	"github.com/drover-run/drover/scheduler"
)

// facts is all independent facts of a State: two States with equal facts are the same to every
// policy.
type facts struct {
	Index             uint64
	Nodes             []scheduler.NodeSpec
	Tenants           []scheduler.TenantSpec
	Projects          []scheduler.ProjectSpec
	Jobs              []jobFacts
	Reservations      []*scheduler.Reservation `json:",omitempty"`
	PolicyStates      []scheduler.PolicyState
	UnplannedReleases uint64
	TasksEver         uint64
	FinishedTasks     []scheduler.FinishedTask
}

type jobFacts struct {
	Spec        scheduler.JobSpec
	Phase       scheduler.JobPhase
	FirstPlaced scheduler.Time
	Avoided     []scheduler.NodeID `json:",omitempty"`
	Stages      []stageFacts
}

type stageFacts struct {
	Spec     scheduler.StageSpec
	Done     []int32
	Past     []pastFacts
	Inputs   [][]scheduler.NodeID // of each task, if the stage has inputs
	Local    [][]int64
	TaskTime int64
	LastTick scheduler.Time
	Progress float64
	Attempts []*scheduler.Attempt
}

// pastFacts is the record of a task's earlier attempts.
type pastFacts struct {
	Task, NextAttempt, Failures int32
	FailedOn                    []scheduler.NodeID `json:",omitempty"`
}

// Bytes returns the facts of a State as JSON. Equal States have equal bytes.
func Bytes(s *scheduler.State) []byte {
	f := facts{Index: s.Index(), Reservations: s.Reservations().All(), PolicyStates: s.PolicyStates().All(),
		UnplannedReleases: s.Reservations().UnplannedReleases(), TasksEver: s.History().TaskCount()}
	for _, n := range s.Nodes() {
		f.Nodes = append(f.Nodes, n.Spec)
	}
	for _, t := range s.Tenants() {
		f.Tenants = append(f.Tenants, t.Spec)
	}
	for _, p := range s.Projects() {
		f.Projects = append(f.Projects, p.Spec)
	}
	for j := range s.Jobs() {
		of := jobFacts{Spec: j.Spec, Phase: j.Phase, FirstPlaced: j.FirstPlaced, Avoided: j.Avoided()}
		for _, g := range j.Stages {
			of.Stages = append(of.Stages, stageFactsOf(s, g))
		}
		f.Jobs = append(f.Jobs, of)
	}
	for t := range s.History().Tasks {
		f.FinishedTasks = append(f.FinishedTasks, *t)
	}
	raw, err := json.Marshal(f)
	if err != nil {
		panic(err) // JSON can write every value of a State
	}
	return raw
}

func stageFactsOf(s *scheduler.State, g *scheduler.Stage) stageFacts {
	of := stageFacts{Spec: g.Spec, TaskTime: int64(g.TaskTime(g.CountedUntil())), LastTick: g.CountedUntil(), Progress: g.Progress()}
	for i := range g.Spec.Tasks {
		if g.IsDone(i) {
			of.Done = append(of.Done, i)
		}
		if next := s.Attempts().NextAttempt(g, i); next > 1 {
			of.Past = append(of.Past, pastFacts{i, next, g.Failures(i), g.FailedOn(i)})
		}
		if g.Spec.Inputs != nil {
			_, nodes, local := g.Input(i)
			of.Inputs, of.Local = append(of.Inputs, nodes), append(of.Local, local)
		}
	}
	for a := range s.Attempts().In(g) {
		of.Attempts = append(of.Attempts, a)
	}
	return of
}
