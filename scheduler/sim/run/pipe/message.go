package pipe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

// version is the version of the messages.
const version = 1

// request is the input of the process: the time and the nodes, tenants and stages for placing. CPU is in
// millicores, memory in bytes, I/O in bytes per second, times in seconds from the start of the simulation.
type request struct {
	Version int      `json:"version"`
	Now     float64  `json:"now_s"`
	Nodes   []node   `json:"nodes"` // nodes that accept new tasks
	Tenants []tenant `json:"tenants"`
	Waiting []stage  `json:"waiting"` // stages with tasks that can start, in order of job and stage
}

// resources are CPU, memory and disk I/O.
type resources struct {
	CPU    int64 `json:"cpu"`
	Memory int64 `json:"memory"`
	IO     int64 `json:"io"`
}

func amounts(r scheduler.Resources) resources {
	return resources{r[scheduler.CPU], r[scheduler.Memory], r[scheduler.IO]}
}

// node is a node with its total and free capacity.
type node struct {
	ID       scheduler.NodeID `json:"id"`
	Name     string           `json:"name"`
	Rack     string           `json:"rack"`
	Capacity resources        `json:"capacity"`
	Free     resources        `json:"free"`
}

// tenant is a tenant with the use of its subtree. Parent is -1 at the root.
type tenant struct {
	ID     scheduler.TenantID `json:"id"`
	Name   string             `json:"name"`
	Parent int                `json:"parent"`
	Weight float64            `json:"weight"`
	Used   resources          `json:"used"`
}

// stage is a stage with tasks that can start. Estimate is the expected run time of a task and
// Deadline the job's deadline; 0 is none.
type stage struct {
	Job       scheduler.JobID    `json:"job"`
	Stage     int32              `json:"stage"`
	Name      string             `json:"name"`
	Tenant    scheduler.TenantID `json:"tenant"`
	Priority  string             `json:"priority"`
	Submitted float64            `json:"submitted_s"`
	Deadline  float64            `json:"deadline_s"`
	Estimate  float64            `json:"estimate_s"`
	Tasks     int32              `json:"tasks"` // that can start now
	Demand    resources          `json:"demand"`
}

// response is the output of the process. Wake, if above 0, is when it wants to be asked again even
// if nothing happens.
type response struct {
	Place []placement `json:"place"`
	Wake  float64     `json:"wake_s"`
}

// placement starts tasks of a stage on a node; 0 tasks count as 1.
type placement struct {
	Job   scheduler.JobID  `json:"job"`
	Stage int32            `json:"stage"`
	Node  scheduler.NodeID `json:"node"`
	Tasks int32            `json:"tasks"`
}

func seconds(t scheduler.Time) float64 {
	if t == 0 {
		return 0
	}
	return t.Sub(engine.Epoch).Seconds()
}

// newRequest describes the State. O(nodes + tenants + stages).
func newRequest(s *scheduler.State, now scheduler.Time) *request {
	r := &request{Version: version, Now: seconds(now), Nodes: []node{}, Tenants: []tenant{}, Waiting: []stage{}}
	for j, at := s.Queue().Next(0); j != nil; j, at = s.Queue().Next(at) {
		for _, g := range j.Stages {
			if n := g.Startable(); g.Ready() && n > 0 {
				r.Waiting = append(r.Waiting, stage{Job: j.Spec.ID, Stage: g.Index, Name: j.Spec.Name, Tenant: j.Spec.Tenant, Priority: j.Spec.Priority.String(),
					Submitted: seconds(j.Spec.Submitted), Deadline: seconds(j.Spec.Deadline), Estimate: g.Spec.Estimate.Seconds(), Tasks: n, Demand: amounts(g.Spec.Demand)})
			}
		}
	}
	for _, n := range s.Nodes() {
		if n != nil && n.Schedulable() {
			r.Nodes = append(r.Nodes, node{n.Spec.ID, n.Spec.Name, n.Spec.Path, amounts(n.Spec.Capacity), amounts(n.Free)})
		}
	}
	for id := scheduler.TenantID(0); ; id++ {
		t := s.Tenant(id)
		if t == nil {
			return r
		}
		r.Tenants = append(r.Tenants, tenant{id, t.Spec.Name, int(t.Spec.Parent), t.Spec.Weight, amounts(t.Used)})
	}
}

// parseResponse parses a line of the process.
func parseResponse(line []byte) (*response, error) {
	var r response
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		return nil, fmt.Errorf("it answered %.60q: expected an object with \"place\" and \"wake_s\": %w", line, err)
	}
	return &r, nil
}

// decide applies the placements to a trial of the State and returns them as a decision.
func (r *response) decide(s *scheduler.State, now scheduler.Time, limit int) (scheduler.Decision, error) {
	d := scheduler.Decision{Base: s.Index(), At: now}
	if r.Wake > 0 {
		if d.Wake = engine.Epoch.Add(time.Duration(r.Wake * float64(time.Second))); d.Wake <= now {
			return d, fmt.Errorf("wake_s is %v, which is not after now_s, %v", r.Wake, seconds(now))
		}
	}
	m := s.Journal().Mark()
	defer s.Journal().Rollback(m)
	for _, p := range r.Place {
		g, err := findStage(s, &p)
		if err != nil {
			return d, err
		}
		if n := g.Startable(); !g.Ready() || max(1, p.Tasks) > n {
			return d, fmt.Errorf("it placed %d tasks of job %d stage %d: only %d can start", max(1, p.Tasks), p.Job, p.Stage, n)
		}
		for k := range max(1, p.Tasks) {
			if len(d.Actions) == limit {
				return d, nil // the rest is requested again
			}
			node := s.Node(p.Node)
			disk, ok := node.Fits(g.Spec.Demand, g.Spec.Disk)
			if !ok || !node.Schedulable() {
				return d, fmt.Errorf("it placed job %d stage %d on node %d (%s), which has capacity for %d of its tasks", p.Job, p.Stage, p.Node, node.Spec.Name, k)
			}
			a := s.Attempts().PlaceAction(g, g.NextPending(0), p.Node, disk)
			if err := s.Apply(&a, now); err != nil {
				return d, fmt.Errorf("it placed job %d stage %d on node %d: %w", p.Job, p.Stage, p.Node, err)
			}
			d.Actions = append(d.Actions, a)
		}
	}
	return d, nil
}

func findStage(s *scheduler.State, p *placement) (*scheduler.Stage, error) {
	j := s.Job(p.Job)
	switch {
	case j == nil:
		return nil, fmt.Errorf("it placed job %d, which is unknown or has ended", p.Job)
	case p.Stage < 0 || int(p.Stage) >= len(j.Stages):
		return nil, fmt.Errorf("it placed stage %d of job %d, which has %d stages", p.Stage, p.Job, len(j.Stages))
	case p.Node < 0 || int(p.Node) >= len(s.Nodes()) || s.Node(p.Node) == nil:
		return nil, fmt.Errorf("it placed job %d on node %d: there are %d nodes", p.Job, p.Node, len(s.Nodes()))
	case p.Tasks < 0:
		return nil, fmt.Errorf("it placed %d tasks of job %d", p.Tasks, p.Job)
	}
	return j.Stages[p.Stage], nil
}
