package ui

import (
	"fmt"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// scheduleIndex finds what a schedule refers to by number.
type scheduleIndex struct {
	jobs  map[uint64]int // position in list
	list  []*droverv1.ScheduleJob
	nodes map[int32]string
}

func newScheduleIndex(p *droverv1.GetScheduleResponse) *scheduleIndex {
	x := &scheduleIndex{jobs: map[uint64]int{}, list: p.GetJobs(), nodes: map[int32]string{}}
	for i, j := range p.GetJobs() {
		x.jobs[j.GetJob()] = i
	}
	for _, n := range p.GetNodes() {
		x.nodes[n.GetNode()] = n.GetName()
	}
	return x
}

// position returns where a job is in the list, -1 if it is not there.
func (x *scheduleIndex) position(job uint64) int {
	if i, ok := x.jobs[job]; ok {
		return i
	}
	return -1
}

func (x *scheduleIndex) jobName(job uint64) string {
	if i := x.position(job); i >= 0 {
		return x.list[i].GetName()
	}
	return ""
}

func (x *scheduleIndex) stageName(job uint64, stage int32) string {
	if i := x.position(job); i >= 0 && stage >= 0 && int(stage) < len(x.list[i].GetStages()) {
		return x.list[i].GetStages()[stage]
	}
	return ""
}

// taskName returns STAGE/INDEX, "" for a job that may not be read.
func (x *scheduleIndex) taskName(k *droverv1.AttemptKey) string {
	if s := x.stageName(k.GetJob(), k.GetStage()); s != "" {
		return fmt.Sprintf("%s/%d", s, k.GetTask())
	}
	return ""
}

func (x *scheduleIndex) fullName(k *droverv1.AttemptKey) string {
	return x.jobName(k.GetJob()) + " " + x.taskName(k)
}

func (x *scheduleIndex) taskAddress(k *droverv1.AttemptKey) string {
	if s := x.stageName(k.GetJob(), k.GetStage()); s != "" {
		return address("jobs", k.GetJob(), "tasks", s, k.GetTask())
	}
	return ""
}

// attemptRow is an attempt with what its row shows.
type attemptRow struct {
	*droverv1.ScheduleAttempt
	Name, Address, NodeName, State string
}

func (x *scheduleIndex) attempts(list []*droverv1.ScheduleAttempt, most int) (out []attemptRow) {
	for _, a := range list[:min(most, len(list))] {
		out = append(out, attemptRow{a, x.fullName(a.GetKey()), x.taskAddress(a.GetKey()), x.nodes[a.GetNode()], attemptState(a)})
	}
	return out
}

type waitingRow struct {
	*droverv1.ScheduleWaiting
	JobName, StageName string
	Giving             []choiceLink
	Stopping           []choiceLink // what would have to give way
	StopNode           string       // where
}

// obstacle returns what would have to give way, with the address of its page.
func (x *scheduleIndex) obstacle(o *droverv1.ScheduleObstacle) choiceLink {
	whose, to := "a job that you may not read", ""
	if name := x.jobName(o.GetJob()); name != "" {
		whose, to = "job "+name, address("jobs", o.GetJob())
	}
	switch {
	case o.GetReservation() != 0:
		return choiceLink{to, fmt.Sprintf("reservation %d of %s", o.GetReservation(), whose)}
	case to == "":
		return choiceLink{"", "an attempt of " + whose}
	default:
		return choiceLink{x.taskAddress(o.GetKey()), x.fullName(o.GetKey())}
	}
}

// stopping returns what would have to give way for a task of a stage, and on which
// node.
func (x *scheduleIndex) stopping(w *droverv1.ScheduleWaiting) (list []choiceLink, node string) {
	for _, o := range w.GetObstacles() {
		list, node = append(list, x.obstacle(o)), x.nodes[o.GetNode()]
	}
	return list, node
}

// choiceLink is a link with its text.
type choiceLink struct{ Address, Label string }

type reservationRow struct {
	*droverv1.ScheduleReservation
	JobName, NodeName string
}

type scheduleView struct {
	Summary, Job        string
	Bys, Tenants, Pasts []choice
	Address             string
	Waiting             []waitingRow
	Reservations        []reservationRow
	Guaranteed          []*droverv1.ScheduleJob
	Attempts            []attemptRow
	MoreAttempts        int
}

// schedulePage shows the schedule with its future.
func (q *query) schedulePage() (*view, error) {
	l, err := q.layout()
	if err != nil {
		return nil, err
	}
	tenants, err := q.tenants()
	if err != nil {
		return nil, err
	}
	req, plan, by := q.scheduleRequest(), l.plan, q.values.Get("by")
	d := &scheduleView{Job: req.GetJob(), Tenants: tenantChoices(tenants, req.GetTenant()),
		Bys: choices(by, scheduleBys...), Pasts: choices(q.values.Get("past"), "", "an hour ago", "6", "6 hours ago", "24", "a day ago")}
	active, tasks := 0, int64(0)
	for _, a := range plan.GetAttempts() {
		if a.GetExpected() {
			active++
		}
	}
	for _, w := range plan.GetWaiting() {
		tasks += int64(w.GetTasks())
	}
	d.Summary = fmt.Sprintf("%s on nodes, %s waiting", plural(int64(active), "attempt", "attempts"), plural(tasks, "task", "tasks"))
	d.addTables(plan, l.index)
	d.Address = dataAddress("schedule", l.digest, "by", by, "job", req.GetJob(), "tenant", req.GetTenant(), "past", q.values.Get("past"))
	return &view{Title: "Schedule", Nav: "Schedule", Template: "schedule", Scripts: []string{"schedule.js"}, Data: d}, nil
}

func (d *scheduleView) addTables(plan *droverv1.GetScheduleResponse, x *scheduleIndex) {
	for _, w := range plan.GetWaiting()[:min(len(plan.GetWaiting()), 2*pageRows)] {
		r := waitingRow{ScheduleWaiting: w, JobName: x.jobName(w.GetJob()), StageName: x.stageName(w.GetJob(), w.GetStage())}
		for _, k := range w.GetGivesWay() {
			r.Giving = append(r.Giving, choiceLink{x.taskAddress(k), x.fullName(k)})
		}
		r.Stopping, r.StopNode = x.stopping(w)
		d.Waiting = append(d.Waiting, r)
	}
	for _, r := range plan.GetReservations()[:min(len(plan.GetReservations()), 2*pageRows)] {
		row := reservationRow{r, x.jobName(r.GetJob()), x.nodes[r.GetNode()]}
		if r.GetNode() == 0 {
			row.NodeName = "any"
		}
		d.Reservations = append(d.Reservations, row)
	}
	for _, j := range plan.GetJobs() {
		if j.GetGuaranteedMs() > 0 {
			d.Guaranteed = append(d.Guaranteed, j)
		}
	}
	d.Attempts = x.attempts(plan.GetAttempts(), 2*pageRows)
	d.MoreAttempts = len(plan.GetAttempts()) + int(plan.GetMore()) - len(d.Attempts)
}
