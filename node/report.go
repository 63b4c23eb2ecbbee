package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/node/store"
)

// Limits of what is reported about one attempt. Part of it comes from files that
// the task can write.
const (
	maxReportCounters = 256
	maxReportText     = 2100 // bytes of a text; oneLine cuts at 2000 and adds a mark
	maxReportLostMaps = 10_000
	maxAttemptBytes   = 256 << 10 // of the report of one attempt
)

// sendReport sends one report and clears what it contained from the lists. more
// reports whether further changes are pending.
func (d *daemon) sendReport(ctx context.Context, full bool) (more bool, err error) {
	req := d.nextReport(full)
	sent := req.GetAttempts()
	req.Responses = d.requests.TakeResponses()
	req.Load = d.currentLoad(ctx)
	ctx, cancel := context.WithTimeout(ctx, reportLimit)
	defer cancel()
	sentAt := d.lease.now()
	res, err := d.cfg.Coordinator.Report(ctx, connect.NewRequest(req))
	if err != nil {
		d.requests.ReturnResponses(req.Responses)
		return false, wire.FromError(err) // the next session starts with a full report
	}
	if !res.Msg.GetRegisterAgain() {
		d.renewLease(ctx, sentAt, res.Msg.GetLeaseMs())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range sent {
		if s.GetPhase() == droverv1.Phase_PHASE_GONE { // keeps those that went during this report
			delete(d.gone, store.IDOf(s.GetKey()))
		}
	}
	if res.Msg.GetRegisterAgain() {
		return false, errRegisterAgain
	}
	return len(d.dirty) > 0 || len(d.gone) > 0, nil
}

// nextReport returns the next report: everything or what has changed, in the
// order of the ids, as far as maxReportAttempts and maxReportBytes allow. What is
// left stays marked for the next report; the coordinator takes a full report as
// the first of several.
func (d *daemon) nextReport(full bool) *droverv1.ReportRequest {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sequence++
	req := &droverv1.ReportRequest{Node: d.id.Node, Epoch: d.id.Epoch, Sequence: d.sequence, Full: full, AppliedRevision: d.id.Revision}
	if full {
		for id, a := range d.attempts {
			if !a.orphaned {
				d.dirty[id] = true
			}
		}
	}
	ids := slices.Collect(maps.Keys(d.dirty))
	for id := range d.gone {
		if !d.dirty[id] {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	bytes := 0
	for _, id := range ids {
		if len(req.Attempts) == maxReportAttempts {
			break
		}
		s := d.reportLocked(id)
		if n := proto.Size(s); len(req.Attempts) > 0 && bytes+n > maxReportBytes {
			break
		} else {
			bytes += n
		}
		delete(d.dirty, id)
		if s != nil {
			req.Attempts = append(req.Attempts, s)
		}
	}
	return req
}

// reportLocked returns the current report of an attempt, PHASE_GONE for a removed
// one, and nil for one that is not reported. daemon.mu must be held.
func (d *daemon) reportLocked(id store.ID) *droverv1.SeenAttempt {
	a := d.attempts[id]
	switch {
	case a != nil && a.orphaned:
		return nil
	case a != nil:
		return a.snapshot()
	case d.gone[id]:
		return &droverv1.SeenAttempt{Key: id.Key(), Phase: droverv1.Phase_PHASE_GONE}
	default:
		return nil
	}
}

// boundReport returns s if it keeps the limits, and otherwise a copy that does
// and says so; no report of one attempt may keep those of others from the
// coordinator. nil stays nil.
func boundReport(s *droverv1.SeenAttempt) *droverv1.SeenAttempt {
	if isBounded(s) {
		return s
	}
	c := proto.CloneOf(s)
	counters, dropped := boundCounters(c.GetCounters(), maxReportCounters)
	c.Counters = counters
	c.Message = joinTexts(clipText(c.GetMessage()), refusedCounters(dropped))
	c.Status, c.LevelNote, c.Step = clipText(c.GetStatus()), clipText(c.GetLevelNote()), clipText(c.GetStep())
	c.StderrTail = strings.ToValidUTF8(c.GetStderrTail()[max(0, len(c.GetStderrTail())-stderrTailBytes):], "")
	c.LostMaps = c.LostMaps[:min(len(c.LostMaps), maxReportLostMaps)]
	c.LevelSteps = c.LevelSteps[:min(len(c.LevelSteps), maxLevelSteps)]
	for _, step := range c.LevelSteps {
		step.Step, step.Error = clipText(step.GetStep()), clipText(step.GetError())
	}
	if proto.Size(c) > maxAttemptBytes { // cannot happen within the limits above
		c.Counters, c.LevelSteps, c.LostMaps = nil, nil, nil
		c.Message = clipText(c.GetMessage() + "; its counters and steps are left out: the report was too long")
	}
	return c
}

func isBounded(s *droverv1.SeenAttempt) bool {
	if s == nil {
		return true
	}
	for _, text := range []string{s.GetMessage(), s.GetStatus(), s.GetLevelNote(), s.GetStep()} {
		if len(text) > maxReportText {
			return false
		}
	}
	if len(s.GetCounters()) > maxReportCounters || len(s.GetStderrTail()) > 2*stderrTailBytes || len(s.GetLostMaps()) > maxReportLostMaps || len(s.GetLevelSteps()) > maxLevelSteps {
		return false
	}
	for name := range s.GetCounters() {
		if len(name) > mapreduce.MaxCounterName {
			return false
		}
	}
	return proto.Size(s) <= maxAttemptBytes
}

// clipText cuts a text to maxReportText bytes.
func clipText(s string) string {
	if len(s) <= maxReportText {
		return s
	}
	return oneLine(s)
}

// programCounters returns the counters that the task's program reported, named
// GROUP:NAME. Those beyond the limits are refused, which the attempt's message
// then says; dropped is how many reports the harness refused already.
func (a *attempt) programCounters(c mapreduce.Counters, dropped int64) map[string]int64 {
	all := map[string]int64{}
	for group, names := range c {
		for name, v := range names {
			all[group+":"+name] = v
		}
	}
	kept, refused := boundCounters(all, mapreduce.MaxCounters)
	a.progress.refused = refusedCounters(refused + dropped)
	return kept
}

// boundCounters returns at most limit of the counters, the first by name, and how
// many it left out for that or for their names.
func boundCounters(all map[string]int64, limit int) (kept map[string]int64, dropped int64) {
	valid := make(map[string]int64, len(all))
	for name, v := range all {
		if name = oneLine(name); len(name) <= mapreduce.MaxCounterName {
			valid[name] = v
		}
	}
	names := slices.Sorted(maps.Keys(valid))
	for _, name := range names[min(len(names), limit):] {
		delete(valid, name)
	}
	return valid, int64(len(all) - len(valid))
}

// refusedCounters returns what is said of counters that were left out; "" for
// none.
func refusedCounters(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d reports of counters were refused: a task may have %d counters, with names of %d bytes", n, mapreduce.MaxCounters, mapreduce.MaxCounterName)
}
