// This program runs a scheduling policy of its own in Drover's simulator.
package main

import (
	"fmt"
	"os"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/report"
	"github.com/drover-run/drover/scheduler/sim/run"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

// firstFit starts each task that can start on the first node with capacity for it.
type firstFit struct{}

func (firstFit) Name() string { return "first_fit" }

func (firstFit) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	d := scheduler.Decision{Base: s.Index(), At: now}
	defer s.Journal().Rollback(s.Journal().Mark()) // what follows is a trial
	for j, at := s.Queue().Next(0); j != nil; j, at = s.Queue().Next(at) {
		for _, g := range j.Stages {
			for g.Ready() && len(d.Actions) < limit {
				n := s.Cluster().NextNode(g, 0)
				if n == scheduler.NoNode {
					break
				}
				disk, _ := s.Node(n).Fits(g.Spec.Demand, g.Spec.Disk)
				a := s.Attempts().PlaceAction(g, g.NextPending(0), n, disk)
				if s.Apply(&a, now) != nil {
					break
				}
				d.Actions = append(d.Actions, a)
			}
		}
	}
	return d
}

func main() {
	if err := simulate(firstFit{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// simulate runs a policy on 200 jobs and prints two numbers.
func simulate(p scheduler.Policy) error {
	w, err := trace.Generate("heavy_tailed", map[string]string{"jobs": "200", "interval_s": "4"}, 1)
	if err != nil {
		return err
	}
	cluster := run.Cluster{Nodes: []run.NodeGroup{{Count: 5, CPU: "8", Memory: "32GiB"}}}
	nodes, err := cluster.Build()
	if err != nil {
		return err
	}
	c := engine.Config{Nodes: nodes, Tenants: w.Tenants, Jobs: w.Jobs, Policy: p, Seed: 1}
	r, err := engine.Simulate(c)
	if err != nil {
		return err
	}
	n := report.Summarise(&c, r, report.DefaultJobUnit)
	fmt.Printf("%s: mean response %.1f s, CPU use %.0f%%\n", p.Name(), n.MeanResponse, 100*n.UtilisationCPU)
	return nil
}
