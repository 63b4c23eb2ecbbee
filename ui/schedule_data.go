package ui

import (
	"cmp"
	"fmt"
	"slices"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// Limits of the picture of the schedule.
const (
	scheduleRows     = 2000 // rows of nodes; racks show more
	scheduleWaiting  = 400  // stages that wait
	scheduleReserved = 2000 // reservations
)

// scheduleData is the picture of the schedule but for its bars, of which it has
// those at the top. Times are Unix ms, 0 for none.
type scheduleData struct {
	Version  string          `json:"version"` // of the rows: bars of another version do not fit
	Now      int64           `json:"now"`
	From     int64           `json:"from"`
	Until    int64           `json:"until"`
	First    int64           `json:"first"` // when the first attempt was placed; 0: there is none
	Rows     []scheduleRow   `json:"rows"`
	Jobs     []jobLabel      `json:"jobs"`
	Parts    []schedulePart  `json:"parts"`
	Bars     []*scheduleBars `json:"bars"` // of the first parts
	Reserved []reservedBar   `json:"reserved"`
	Waiting  []waitingBar    `json:"waiting"`
	Ending   []endingAttempt `json:"ending"` // the next attempts expected to end
}

type scheduleRow struct {
	Name   string `json:"name"`
	State  string `json:"state"`
	Detail string `json:"detail"`
	Lanes  int    `json:"lanes"` // attempts beside each other
}

// schedulePart is where a part of the picture begins. It ends where the next one
// begins.
type schedulePart struct {
	Row  int `json:"row"`
	Lane int `json:"lane"`
}

// scheduleBars are the attempts of a part: columns, so that they are small.
type scheduleBars struct {
	Version string          `json:"version"`
	From    int64           `json:"from"` // only what is in this window; 0: everything
	To      int64           `json:"to"`
	Merged  bool            `json:"merged"` // some bars stand for several attempts
	Row     []int           `json:"row"`
	Lane    []int           `json:"lane"`
	Job     []int           `json:"job"` // index in Jobs, -1 for one that may not be read or for several
	Task    []string        `json:"task"`
	State   []string        `json:"state"`
	Placed  []int64         `json:"placed"`
	End     []int64         `json:"end"`
	Count   map[int]int     `json:"count"` // attempts of bars that stand for several
	Gaps    map[int][]int64 `json:"gaps"`  // of attempts that were suspended: from, to, from, to
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
	Stops    []string `json:"stops"` // what would have to give way for one task to start now
}

type endingAttempt struct {
	Name string `json:"name"`
	End  int64  `json:"end"`
}

// newScheduleData arranges what a schedule has beside attempts. It returns which
// row a node or a job belongs to, -1 for none.
func newScheduleData(p *droverv1.GetScheduleResponse, x *scheduleIndex, by string) (*scheduleData, func(node int32, job uint64) int) {
	d := &scheduleData{Now: p.GetNowMs(), From: p.GetFromMs(), Until: p.GetUntilMs(), Ending: nextToEnd(p, x)}
	for _, j := range p.GetJobs() {
		d.Jobs = append(d.Jobs, jobLabel{j.GetJob(), j.GetName(), j.GetTenant(), j.GetDeadlineMs(), j.GetGuaranteedMs()})
	}
	rowOf := d.addRows(p, by)
	for _, r := range p.GetReservations()[:min(len(p.GetReservations()), scheduleReserved)] {
		d.Reserved = append(d.Reserved, reservedBar{rowOf(r.GetNode(), r.GetJob()), x.position(r.GetJob()), r.GetKind(), r.GetStartMs(), r.GetEndMs(), r.GetLatestMs()})
	}
	for _, w := range p.GetWaiting()[:min(len(p.GetWaiting()), scheduleWaiting)] {
		b := waitingBar{Job: x.position(w.GetJob()), Stage: x.stageName(w.GetJob(), w.GetStage()), Tasks: w.GetTasks(), Reason: w.GetReason(), Start: w.GetExpectedStartMs(), Estimate: w.GetEstimateMs(), Behind: w.GetBehindJob()}
		for _, k := range w.GetGivesWay() {
			b.Giving = append(b.Giving, x.fullName(k))
		}
		for _, o := range w.GetObstacles() {
			b.Stops = append(b.Stops, x.obstacle(o).Label)
		}
		d.Waiting = append(d.Waiting, b)
	}
	return d, rowOf
}

// nextToEnd returns the running attempts that are expected to end next.
func nextToEnd(p *droverv1.GetScheduleResponse, x *scheduleIndex) (out []endingAttempt) {
	const most = 3
	var next []*droverv1.ScheduleAttempt
	for _, a := range p.GetAttempts() {
		if a.GetExpected() && a.GetLevel() <= droverv1.Level_LEVEL_RUNNING && a.GetEndMs() > p.GetNowMs() {
			at, _ := slices.BinarySearchFunc(next, a, func(a, b *droverv1.ScheduleAttempt) int { return cmp.Compare(a.GetEndMs(), b.GetEndMs()) })
			if at < most {
				next = slices.Insert(next, at, a)[:min(len(next)+1, most)]
			}
		}
	}
	for _, a := range next {
		name := x.fullName(a.GetKey())
		if x.position(a.GetKey().GetJob()) < 0 {
			name = "an attempt of a job that you may not read"
		}
		out = append(out, endingAttempt{name, a.GetEndMs()})
	}
	return out
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
			d.Rows = append(d.Rows, scheduleRow{Name: name, State: state, Detail: detail, Lanes: 1})
		}
		return at
	}
	if by == "tenants" || by == "jobs" {
		named := map[string]int{}
		for _, j := range p.GetJobs() {
			named[j.GetName()]++
		}
		for _, j := range p.GetJobs() {
			name, detail := j.GetTenant(), ""
			if by == "jobs" {
				name, detail = j.GetName(), "tenant "+j.GetTenant()
				if named[name] > 1 {
					name = fmt.Sprintf("%s (%d)", name, j.GetJob())
				}
			}
			if len(d.Rows) < scheduleRows {
				ofJob[j.GetJob()] = row(name, "up", detail)
			} else {
				ofJob[j.GetJob()] = -1
			}
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
