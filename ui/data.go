package ui

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/drover-run/drover/internal/fault"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// dataAddress returns the address of the data of a picture. It changes with
// the data, by which the script knows that it must read them again. pairs are
// the names and values of parameters.
func dataAddress(what string, data any, pairs ...string) string {
	b, err := json.Marshal(data)
	if err != nil {
		panic(err) // the types of this package can be encoded
	}
	v := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			v.Set(pairs[i], pairs[i+1])
		}
	}
	v.Set("v", digest(b)[:12])
	return "/data/" + what + "?" + v.Encode()
}

// serveData returns the data of a picture as JSON.
func (s *server) serveData(w http.ResponseWriter, r *http.Request) {
	q, err := s.newQuery(r.Context(), r.URL)
	var v any
	if err == nil {
		v, err = q.data(r.PathValue("what"))
	}
	if err != nil {
		http.Error(w, err.Error(), statusOf(err))
		return
	}
	writeJSON(w, r, v)
}

func (q *query) data(what string) (any, error) {
	switch what {
	case "nodes":
		nodes, err := q.nodes()
		if err != nil {
			return nil, err
		}
		return mapOf(filterNodes(nodes, q.values.Get("q"), q.values.Get("show"))), nil
	case "tasks":
		rows, total, err := q.taskRows(q.taskFilter(), q.number("from", 0), q.number("n", pageRows))
		return map[string]any{"rows": rows, "total": total}, err
	case "waterfall":
		return q.waterfall()
	case "schedule":
		plan, err := q.schedule(q.scheduleRequest())
		if err != nil {
			return nil, err
		}
		return newScheduleData(plan, q.values.Get("by")), nil
	default:
		return nil, fault.New(fault.NotFound, "there are no such data")
	}
}

func (q *query) taskFilter() taskFilter {
	return taskFilter{job: q.values.Get("job"), stage: q.values.Get("stage"), show: q.values.Get("show")}
}

// fallRow is a task of the waterfall.
type fallRow struct {
	Task  string    `json:"task"`
	Ready int64     `json:"ready"` // when its job was submitted
	Slow  bool      `json:"slow"`  // among the slowest of its stage
	Bars  []taskBar `json:"bars"`
}

// fallRows bounds the waterfall: more rows than that are no picture.
const fallRows = 1000

// waterfall returns the attempts of the chosen tasks.
func (q *query) waterfall() (any, error) {
	f := q.taskFilter()
	res, err := q.job(f.job)
	if err != nil {
		return nil, err
	}
	rows, total, err := q.taskRows(f, 0, fallRows)
	if err != nil {
		return nil, err
	}
	limit := slowLimits(res.GetStages())
	out := make([]fallRow, 0, len(rows))
	for i := range rows {
		t := &rows[i]
		out = append(out, fallRow{Task: t.name(), Ready: res.GetJob().GetSubmittedMs(), Slow: limit[t.Stage] > 0 && t.RanMs > limit[t.Stage], Bars: t.bars})
	}
	return map[string]any{"job": res.GetJob().GetJob(), "rows": out, "total": total, "now": now(), "ended": res.GetJob().GetEndedMs()}, nil
}

// slowLimits returns the time, in milliseconds, above which a task of a stage
// counts as slow: twice the mean, and near the longest.
func slowLimits(stages []*droverv1.StageSummary) map[string]int64 {
	out := map[string]int64{}
	for _, s := range stages {
		if s.GetDone() >= adviceTasks {
			out[s.GetName()] = max(2*s.GetMeanTaskMs(), s.GetMaxTaskMs()*9/10) - 1
		}
	}
	return out
}

// scheduleRequest returns what the schedule's page and picture ask for.
func (q *query) scheduleRequest() *droverv1.GetScheduleRequest {
	r := &droverv1.GetScheduleRequest{Job: q.values.Get("job"), Tenant: q.values.Get("tenant")}
	if h := q.number("past", 1); h > 1 && h <= 24*7 {
		// To the minute, so that equal pages share an answer.
		r.FromMs = (now()/60_000)*60_000 - int64(h)*3_600_000
	}
	return r
}

// scheduleData is the data of the picture of the schedule: columns, so that
// thousands of attempts are small. Times are Unix ms, 0 for none.
type scheduleData struct {
	Now    int64           `json:"now"`
	From   int64           `json:"from"`
	Until  int64           `json:"until"`
	Rows   []scheduleRow   `json:"rows"`
	Jobs   []jobLabel      `json:"jobs"`
	Row    []int           `json:"row"` // of each attempt
	Job    []int           `json:"job"` // index in Jobs, -1 for one that may not be read
	Task   []string        `json:"task"`
	State  []string        `json:"state"`
	Placed []int64         `json:"placed"`
	End    []int64         `json:"end"`
	Weight []int           `json:"weight"` // CPU of the row, in thousandths
	Gaps   map[int][]int64 `json:"gaps"`   // of attempts that have some: from, to, from, to

	Reserved []reservedBar `json:"reserved"`
	Waiting  []waitingBar  `json:"waiting"`
}

type scheduleRow struct {
	Name   string `json:"name"`
	State  string `json:"state"`
	Detail string `json:"detail"`
}

type jobLabel struct {
	Job        uint64 `json:"job"`
	Name       string `json:"name"`
	Tenant     string `json:"tenant"`
	Deadline   int64  `json:"deadline"`
	Guaranteed int64  `json:"guaranteed"`
}

type reservedBar struct {
	Row    int    `json:"row"` // -1: any node
	Job    int    `json:"job"`
	Kind   string `json:"kind"`
	Start  int64  `json:"start"`
	End    int64  `json:"end"`
	Latest int64  `json:"latest"`
}

type waitingBar struct {
	Job      int      `json:"job"`
	Stage    string   `json:"stage"`
	Tasks    int32    `json:"tasks"`
	Reason   string   `json:"reason"`
	Start    int64    `json:"start"` // expected; 0: not known
	Estimate int64    `json:"estimate"`
	Behind   uint64   `json:"behind"`
	Giving   []string `json:"giving"`
}

// newScheduleData arranges a schedule by node, rack or tenant.
func newScheduleData(p *droverv1.GetScheduleResponse, by string) *scheduleData {
	x := newScheduleIndex(p)
	d := &scheduleData{Now: p.GetNowMs(), From: p.GetFromMs(), Until: p.GetUntilMs(), Gaps: map[int][]int64{}}
	for _, j := range p.GetJobs() {
		d.Jobs = append(d.Jobs, jobLabel{j.GetJob(), j.GetName(), j.GetTenant(), j.GetDeadlineMs(), j.GetGuaranteedMs()})
	}
	rowOf := d.addRows(p, by)
	cpuOf := map[int32]int64{}
	for _, n := range p.GetNodes() {
		cpuOf[n.GetNode()] = n.GetAllocatable().GetCpu()
	}
	for _, a := range p.GetAttempts() {
		job, at := a.GetKey().GetJob(), len(d.Row)
		d.Row = append(d.Row, rowOf(a.GetNode(), job))
		d.Job = append(d.Job, x.position(job))
		d.Task = append(d.Task, x.taskName(a.GetKey()))
		d.State = append(d.State, attemptState(a))
		d.Placed, d.End = append(d.Placed, a.GetPlacedMs()), append(d.End, a.GetEndMs())
		d.Weight = append(d.Weight, int(1000*part(a.GetOccupied().GetCpu(), cpuOf[a.GetNode()])))
		for _, g := range a.GetGaps() {
			d.Gaps[at] = append(d.Gaps[at], g.GetFromMs(), g.GetToMs())
		}
	}
	for _, r := range p.GetReservations() {
		d.Reserved = append(d.Reserved, reservedBar{rowOf(r.GetNode(), r.GetJob()), x.position(r.GetJob()), r.GetKind(), r.GetStartMs(), r.GetEndMs(), r.GetLatestMs()})
	}
	for _, w := range p.GetWaiting() {
		b := waitingBar{Job: x.position(w.GetJob()), Stage: x.stageName(w.GetJob(), w.GetStage()), Tasks: w.GetTasks(), Reason: w.GetReason(), Start: w.GetExpectedStartMs(), Estimate: w.GetEstimateMs(), Behind: w.GetBehindJob()}
		for _, k := range w.GetGivesWay() {
			b.Giving = append(b.Giving, x.fullName(k))
		}
		d.Waiting = append(d.Waiting, b)
	}
	return d
}

// addRows adds the rows of the picture and returns which one a node or a job
// belongs to, -1 for none.
func (d *scheduleData) addRows(p *droverv1.GetScheduleResponse, by string) func(node int32, job uint64) int {
	names, ofNode, ofJob := map[string]int{}, map[int32]int{}, map[uint64]int{}
	row := func(name, state, detail string) int {
		at, ok := names[name]
		if !ok {
			at = len(d.Rows)
			names[name] = at
			d.Rows = append(d.Rows, scheduleRow{name, state, detail})
		}
		return at
	}
	if by == "tenants" {
		for _, j := range p.GetJobs() {
			ofJob[j.GetJob()] = row(j.GetTenant(), "up", "")
		}
		return func(_ int32, job uint64) int {
			if at, ok := ofJob[job]; ok {
				return at
			}
			return row("others", "up", "jobs that you may not read")
		}
	}
	busy := busyNodes(p)
	for _, n := range sortedNodes(p.GetNodes(), busy) {
		state := n.GetState()
		if n.GetDraining() && state == "up" {
			state = "draining"
		}
		if by == "racks" {
			ofNode[n.GetNode()] = row(n.GetRack(), "up", "")
		} else if len(d.Rows) < scheduleRows {
			ofNode[n.GetNode()] = row(n.GetName(), state, n.GetReason())
		}
	}
	return func(node int32, _ uint64) int {
		if at, ok := ofNode[node]; ok {
			return at
		}
		return -1
	}
}

// scheduleRows bounds the rows of nodes; racks show more.
const scheduleRows = 2000

// busyNodes returns the nodes with an attempt or a reservation.
func busyNodes(p *droverv1.GetScheduleResponse) map[int32]bool {
	out := map[int32]bool{}
	for _, a := range p.GetAttempts() {
		out[a.GetNode()] = true
	}
	for _, r := range p.GetReservations() {
		out[r.GetNode()] = true
	}
	return out
}

// sortedNodes returns nodes with something to show first, in the order of the
// list.
func sortedNodes(nodes []*droverv1.ScheduleNode, busy map[int32]bool) []*droverv1.ScheduleNode {
	out := slices.Clone(nodes)
	slices.SortStableFunc(out, func(a, b *droverv1.ScheduleNode) int {
		switch x, y := busy[a.GetNode()], busy[b.GetNode()]; {
		case x == y:
			return 0
		case x:
			return -1
		default:
			return 1
		}
	})
	return out
}

// attemptState returns an attempt's state in one word.
func attemptState(a *droverv1.ScheduleAttempt) string {
	if a.GetExpected() && a.GetLevel() > droverv1.Level_LEVEL_RUNNING {
		return "suspended"
	}
	if a.GetState() == "live" {
		return "running"
	}
	return a.GetState()
}

// name returns STAGE/INDEX.
func (r *taskRow) name() string { return fmt.Sprintf("%s/%d", r.Stage, r.Index) }
