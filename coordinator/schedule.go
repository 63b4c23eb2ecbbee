package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline/forecast"
	"github.com/drover-run/drover/scheduler/estimate"
)

// Limits of a schedule.
const (
	maxScheduled    = 20_000    // attempts of one response
	schedulePast    = time.Hour // shown unless the caller asks for another time
	leastProgress   = 0.05      // below it, progress predicts no end
	minutesOfTheEnd = time.Minute
)

// GetSchedule returns the attempts that have occupied nodes since a time in the past, the
// reservations, and the stages that wait. It looks at every attempt that is not forgotten, and
// describes only those of the response. O(attempts not forgotten).
func (s *clientService) GetSchedule(ctx context.Context, req *connect.Request[droverv1.GetScheduleRequest]) (*connect.Response[droverv1.GetScheduleResponse], error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	expected := s.expected(ctx)
	now := s.core.now()
	b := &scheduleBuilder{core: s.core, ctx: ctx, req: req.Msg, now: now, from: now.Add(-schedulePast), jobs: map[uint64]bool{},
		out: &droverv1.GetScheduleResponse{NowMs: now.UnixMilli()}}
	if ms := req.Msg.GetFromMs(); ms > 0 {
		b.from = time.UnixMilli(ms)
	}
	b.out.FromMs = b.from.UnixMilli()
	var err error
	s.core.view(func(f *facts.Facts) {
		if b.job, err = s.events.resolveJob(ctx, f, req.Msg.GetJob()); err == nil {
			b.collectAttempts(f)
		}
	})
	if err == nil {
		b.chooseAttempts() // without the lock
		s.core.view(func(f *facts.Facts) { b.build(f, expected) })
	}
	if errors.Is(err, fault.NotFound) {
		j, pastErr := s.core.pastJobs.find(ctx, req.Msg.GetJob())
		if pastErr != nil {
			return nil, cmp.Or(pastErr, err)
		}
		err = b.buildPast(j)
	}
	if err == nil {
		err = b.addPast()
	}
	if err != nil {
		return nil, err
	}
	b.cut()
	return connect.NewResponse(b.out), nil
}

// scheduleBuilder builds one response under the facts' read lock.
type scheduleBuilder struct {
	core *core
	ctx  context.Context
	req  *droverv1.GetScheduleRequest
	now  time.Time
	from time.Time
	job  uint64 // only this one; 0: all

	candidates []candidate // of the response's attempts

	gaps  map[string][]*droverv1.ScheduleGap
	jobs  map[uint64]bool // to be listed in the response
	known map[uint64]bool // already in the facts: not looked up in the history
	out   *droverv1.GetScheduleResponse
}

// candidate is an attempt that matches the request.
type candidate struct {
	key           facts.Key
	node          int32
	active        bool
	readable      bool // the caller may know whose it is
	placed, ended int64
}

// collectAttempts collects the attempts that match the request.
func (b *scheduleBuilder) collectAttempts(f *facts.Facts) {
	from, only := b.from.UnixNano(), int32(-1)
	if name := b.req.GetNode(); name != "" {
		if n := f.NodeByName(name); n != nil {
			only = n.ID
		} else {
			return
		}
	}
	for _, id := range f.JobIDs() {
		j := f.Job(id)
		if !b.wants(j) || !b.overlaps(j) {
			continue
		}
		readable := b.readable(f, j)
		if !readable && (b.job != 0 || b.req.GetTenant() != "") {
			continue // a caller may not learn that this job has reserved some of the capacity
		}
		f.EachAttempt(j, func(k facts.Key, _ *facts.Task, a *facts.Attempt) {
			active := a.State.IsActive()
			if (active || a.Ended >= from) && (only < 0 || a.Node == only) && f.Node(a.Node) != nil {
				b.candidates = append(b.candidates, candidate{k, a.Node, active, readable, a.Placed, a.Ended})
			}
		})
	}
}

// overlaps reports whether a job may have attempts in the time span of the response.
func (b *scheduleBuilder) overlaps(j *facts.Job) bool {
	return !j.HasEnded() || j.Live > 0 || j.Ended >= b.from.UnixNano()
}

// limit returns the largest number of attempts in the response.
func (b *scheduleBuilder) limit() int {
	if n := int(b.req.GetLimit()); n > 0 && n <= maxScheduled {
		return n
	}
	return maxScheduled
}

// chooseAttempts drops candidates beyond the limit: it keeps active ones first, then those that
// ended last.
func (b *scheduleBuilder) chooseAttempts() {
	more := len(b.candidates) - b.limit()
	if more <= 0 {
		return
	}
	slices.SortStableFunc(b.candidates, func(x, y candidate) int {
		switch {
		case x.active != y.active:
			if x.active {
				return -1
			}
			return 1
		case x.active:
			return cmp.Or(cmp.Compare(x.node, y.node), cmp.Compare(x.placed, y.placed))
		default:
			return cmp.Compare(y.ended, x.ended)
		}
	})
	b.candidates, b.out.More = b.candidates[:b.limit()], int32(more)
}

func (b *scheduleBuilder) build(f *facts.Facts, expected forecast.Expected) {
	b.gaps, b.known = suspensionGaps(f), map[uint64]bool{}
	for _, id := range f.JobIDs() {
		b.known[id] = true
	}
	b.addNodes(f)
	b.addAttempts(f)
	for _, id := range f.JobIDs() {
		if j := f.Job(id); b.wants(j) && b.overlaps(j) {
			b.addWaiting(f, j, expected)
		}
	}
	b.addReservations(f)
	for _, id := range f.JobIDs() {
		if b.jobs[id] {
			b.addJob(f, f.Job(id))
		}
	}
}

func (b *scheduleBuilder) addNodes(f *facts.Facts) {
	for _, n := range f.Nodes() {
		b.out.Nodes = append(b.out.Nodes, &droverv1.ScheduleNode{Node: n.ID, Name: n.Info.GetName(), Rack: n.Info.GetRack(), State: nodeState(n), Draining: n.Draining,
			Allocatable: n.Info.GetAllocatable(), Reason: b.core.rights.visibleReason(b.ctx, n.Reason), RetryAtMs: n.RetryAt / 1e6})
	}
}

// wants reports whether a job matches the request.
func (b *scheduleBuilder) wants(j *facts.Job) bool {
	return j != nil && (b.job == 0 || j.ID == b.job) && (b.req.GetTenant() == "" || b.req.GetTenant() == j.Spec.Tenant)
}

func (b *scheduleBuilder) readable(f *facts.Facts, j *facts.Job) bool {
	return b.core.rights.needJob(b.ctx, mayRead, f, j) == nil
}

// addAttempts describes the chosen candidates. One that was forgotten meanwhile is left out.
func (b *scheduleBuilder) addAttempts(f *facts.Facts) {
	b.out.Attempts = make([]*droverv1.ScheduleAttempt, 0, len(b.candidates))
	for i := range b.candidates {
		k := b.candidates[i].key
		j, a := f.Job(k.Job), f.Attempt(k)
		if j == nil || a == nil || f.Node(a.Node) == nil {
			continue
		}
		out := b.attempt(j, k, a)
		if b.candidates[i].readable {
			b.jobs[j.ID] = true
			out.Key = k.Proto(a.Run)
			if a.State.IsActive() && (a.Level > droverv1.Level_LEVEL_RUNNING || a.Target > droverv1.Level_LEVEL_RUNNING) {
				out.PreemptorJob = a.Suspension.Preemptor
			}
		} else {
			out.Key = &droverv1.AttemptKey{Run: a.Run}
		}
		b.out.Attempts = append(b.out.Attempts, out)
	}
}

func (b *scheduleBuilder) attempt(j *facts.Job, k facts.Key, a *facts.Attempt) *droverv1.ScheduleAttempt {
	out := &droverv1.ScheduleAttempt{Node: a.Node, PlacedMs: a.Placed / 1e6, EndMs: a.Ended / 1e6, State: a.State.String(), Level: a.Level}
	if a.Suspension.Count > 0 { // else it has no gaps
		out.Gaps = b.gaps[gapKey(j.ID, taskName(j, k))]
	}
	if a.State.IsActive() {
		seen := a.Seen()
		out.Occupied = a.Occupied.Proto()
		if live := b.core.sessions.seen(a.Node, k, a.Run); live != nil {
			seen = live
		}
		out.EndMs, out.Expected = b.expectedEnd(&j.Stages[k.Stage], a, seen), true
		if a.Level != droverv1.Level_LEVEL_RUNNING && a.Suspension.SuspendedAt > 0 && !openGap(out.Gaps) {
			out.Gaps = append(slices.Clone(out.Gaps), &droverv1.ScheduleGap{FromMs: a.Suspension.SuspendedAt / 1e6})
		}
		out.StartedMs = seen.GetStartedMs()
	}
	return out
}

func openGap(gaps []*droverv1.ScheduleGap) bool { return len(gaps) > 0 && gaps[len(gaps)-1].ToMs == 0 }

// expectedEnd returns when an active attempt is expected to end, Unix ms, 0 if unknown: by its
// progress if it has some, otherwise by the predicted run time if that is no guess. An attempt that is
// overdue is expected to run as long again, as the expected starts have it.
func (b *scheduleBuilder) expectedEnd(st *facts.Stage, a *facts.Attempt, seen *droverv1.SeenAttempt) int64 {
	now := b.now.UnixMilli()
	ran := seen.GetRunningMs()
	if p := seen.GetProgress(); p >= leastProgress && p < 1 && ran > 0 {
		return now + int64(float64(ran)*(1-p)/p)
	}
	runTime := cmp.Or(a.EstimateNS, st.EstimateNS) / 1e6
	switch {
	case runTime == 0 || isGuess(estimate.ParseSource(st.EstimateSource)):
		return 0
	case ran >= runTime:
		return now + ran
	case ran > 0:
		return now + max(runTime-ran, 1000)
	default:
		return max(a.Placed/1e6+runTime, now+1000)
	}
}

// addWaiting adds the stages of a readable job that have waiting tasks.
func (b *scheduleBuilder) addWaiting(f *facts.Facts, j *facts.Job, expected forecast.Expected) {
	if j.HasEnded() || !b.readable(f, j) {
		return
	}
	for i := range j.Stages {
		st := &j.Stages[i]
		id := stageID(j.ID, int32(i))
		if st.Pending == 0 {
			continue
		}
		out := &droverv1.ScheduleWaiting{Job: j.ID, Stage: int32(i), Tasks: st.Pending, EstimateMs: st.EstimateNS / 1e6}
		if w, ok := b.core.waits.of(id); ok {
			out.Reason, out.BehindJob = b.core.waits.reason(f, &w), uint64(w.Behind.Job)
			if r := f.Reservation(uint64(w.Reservation)); w.Reservation != 0 && r != nil {
				out.BehindJob = r.GetJob()
			}
		} else {
			out.Reason = unfinishedStage(j, i)
		}
		out.ExpectedStartMs = b.core.jobs.expectedStart(f, expected, j.ID, i, b.now)
		b.jobs[j.ID] = true
		b.addObstacles(f, out)
		b.out.Waiting = append(b.out.Waiting, out)
	}
}

// unfinishedStage returns which stage a stage waits for, "" if none.
func unfinishedStage(j *facts.Job, i int) string {
	for _, k := range j.Spec.StagesBefore(i) {
		if j.Stages[k].Done < j.Stages[k].Tasks {
			return "stage " + j.Spec.Stages[k].Name + " is not done"
		}
	}
	return ""
}

// addReservations adds the reservations, and to each waiting stage the attempts
// that are being suspended for its job.
func (b *scheduleBuilder) addReservations(f *facts.Facts) {
	for _, r := range f.Reservations() {
		j := f.Job(r.GetJob())
		if (b.job != 0 || b.req.GetTenant() != "") && !b.wants(j) {
			continue
		}
		out := &droverv1.ScheduleReservation{Id: r.GetId(), Kind: scheduler.ReservationKind(r.GetKind()).String(), Node: r.GetNode(),
			StartMs: r.GetStart() / 1e6, LatestMs: r.GetLatest() / 1e6, Demand: r.GetDemand()}
		if r.GetEnd() > 0 && scheduler.Time(r.GetEnd()) < scheduler.Never {
			out.EndMs = r.GetEnd() / 1e6
		}
		if n := f.Node(r.GetNode()); b.req.GetNode() != "" && n != nil && n.Info.GetName() != b.req.GetNode() {
			continue
		}
		if j != nil && b.readable(f, j) {
			out.Job, out.Stage, out.Task = j.ID, r.GetStage(), r.GetTask()
			b.jobs[j.ID] = true
		} else if b.job != 0 {
			continue
		}
		b.out.Reservations = append(b.out.Reservations, out)
	}
	giving := map[uint64][]*droverv1.AttemptKey{}
	for _, a := range b.out.Attempts {
		if p := a.GetPreemptorJob(); p != 0 {
			giving[p] = append(giving[p], a.GetKey())
		}
	}
	for _, w := range b.out.Waiting {
		w.GivesWay = giving[w.GetJob()]
	}
}

// cut limits the attempts of the response: it keeps active ones first, then those that ended last.
// It also sets the last planned end.
func (b *scheduleBuilder) cut() {
	list := b.out.Attempts
	slices.SortStableFunc(list, func(x, y *droverv1.ScheduleAttempt) int {
		if x.GetExpected() != y.GetExpected() {
			if x.GetExpected() {
				return -1
			}
			return 1
		}
		if x.GetExpected() {
			return cmp.Or(cmp.Compare(x.GetNode(), y.GetNode()), cmp.Compare(x.GetPlacedMs(), y.GetPlacedMs()))
		}
		return cmp.Compare(y.GetEndMs(), x.GetEndMs())
	})
	limit := b.limit()
	if n := len(list) - limit; n > 0 {
		b.out.More, b.out.Attempts = b.out.More+int32(n), list[:limit]
	}
	until := b.now.Add(minutesOfTheEnd).UnixMilli()
	for _, a := range b.out.Attempts {
		until = max(until, a.GetEndMs())
	}
	for _, r := range b.out.Reservations {
		until = max(until, r.GetStartMs(), r.GetEndMs(), r.GetLatestMs())
	}
	for _, w := range b.out.Waiting {
		until = max(until, w.GetExpectedStartMs()+w.GetEstimateMs())
	}
	b.out.UntilMs = until
}

func (b *scheduleBuilder) addJob(f *facts.Facts, j *facts.Job) {
	out := &droverv1.ScheduleJob{Job: j.ID, Name: j.Name, Tenant: j.Spec.Tenant, State: j.State, DeadlineMs: j.DeadlineNS() / 1e6, GuaranteedMs: f.Deadlines().LatestDeparture(j) / 1e6}
	for i := range j.Spec.Stages {
		out.Stages = append(out.Stages, j.Spec.Stages[i].Name)
	}
	b.out.Jobs = append(b.out.Jobs, out)
}

// suspensionGaps returns the suspensions in the remembered events, by gapKey,
// oldest first. O(events).
func suspensionGaps(f *facts.Facts) map[string][]*droverv1.ScheduleGap {
	out := map[string][]*droverv1.ScheduleGap{}
	for _, e := range f.EventLog().Since(0, facts.MaxEvents) {
		suspended := e.Kind == "task.suspended"
		if !suspended && e.Kind != "task.resumed" {
			continue
		}
		name := e.Task[:max(strings.LastIndexByte(e.Task, '.'), 0)] // a migration changes the run
		k := gapKey(e.JobID, name)
		switch list := out[k]; {
		case suspended && !openGap(list):
			out[k] = append(list, &droverv1.ScheduleGap{FromMs: e.At / 1e6})
		case !suspended && openGap(list):
			list[len(list)-1].ToMs = e.At / 1e6
		}
	}
	return out
}

func gapKey(job uint64, task string) string { return fmt.Sprintf("%d %s", job, task) }

// taskName returns stage/index.attempt.
func taskName(j *facts.Job, k facts.Key) string {
	return fmt.Sprintf("%s/%d.%d", j.Spec.Stages[k.Stage].Name, k.Task, k.Attempt)
}
