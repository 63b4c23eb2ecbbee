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
)

// Limits of what is reported about one attempt. Part of it comes from files that
// the task can write.
const (
	maxReportCounters    = 256
	maxReportText        = 2100 // bytes of a text; oneLine cuts at 2000 and adds a mark
	maxReportLostOutputs = 10_000
	maxAttemptBytes      = 256 << 10 // of the report of one attempt
)

// sendReport sends one report to the leader of that term and clears what it contained from the
// lists. more reports whether further changes are pending.
func (d *daemon) sendReport(ctx context.Context, term uint64, full bool) (more bool, err error) {
	req := d.attempts.nextReport(full)
	sent := req.GetAttempts()
	var moreResponses bool
	req.Responses, moreResponses = d.requests.TakeResponses()
	req.Load = d.load.current(d.clock.Monotonic())
	ctx, cancel := context.WithTimeout(ctx, reportLimit)
	defer cancel()
	sentAt := d.exclusive.lease.now()
	res, err := d.cfg.Coordinator.Report(ctx, connect.NewRequest(req))
	if err == nil {
		err = checkLeader(res.Msg.GetTerm(), term) // a lease of another leader, which may be restored, counts only after the next registration
	}
	if err != nil {
		d.requests.ReturnResponses(req.Responses)
		return false, wire.FromError(err) // the next session starts with a full report
	}
	if !res.Msg.GetRegisterAgain() {
		d.renewLease(sentAt, res.Msg.GetLeaseMs())
	}
	more = d.attempts.reported(sent)
	if res.Msg.GetRegisterAgain() {
		return false, errRegisterAgain
	}
	return more || moreResponses, nil
}

// compareReports reports whether two reports of an attempt differ, and whether a difference must be
// sent at once. It compares field by field instead of with proto.Equal, because an attempt makes a
// report before each of its steps.
func compareReports(last, next *droverv1.SeenAttempt) (changed, atOnce bool) {
	if differInState(last, next) {
		return true, true
	}
	return differInUsage(last, next), false
}

// differInState reports whether two reports differ in a field that must be sent at once.
func differInState(l, n *droverv1.SeenAttempt) bool {
	return l.GetPhase() != n.GetPhase() || l.GetLevel() != n.GetLevel() || l.GetCause() != n.GetCause() || l.GetExitCode() != n.GetExitCode() ||
		n.GetPhase() >= droverv1.Phase_PHASE_SUCCEEDED && l.GetMessage() != n.GetMessage() ||
		l.GetStderrTail() != n.GetStderrTail() || l.GetStartedMs() != n.GetStartedMs() || l.GetEndedMs() != n.GetEndedMs() ||
		l.GetOutputLength() != n.GetOutputLength() || l.GetOutputChecksum() != n.GetOutputChecksum() ||
		l.GetLevelNote() != n.GetLevelNote() || l.GetTargetRefused() != n.GetTargetRefused() || l.GetLevelSinceMs() != n.GetLevelSinceMs() ||
		l.GetImageOccupied() != n.GetImageOccupied() || l.GetStartPauseMs() != n.GetStartPauseMs() ||
		!slices.EqualFunc(l.GetLostOutputs(), n.GetLostOutputs(), sameMessage) || !slices.Equal(l.GetLevelsRefused(), n.GetLevelsRefused()) ||
		!slices.EqualFunc(l.GetLevelSteps(), n.GetLevelSteps(), sameMessage) ||
		!sameMessage(l.GetKey(), n.GetKey()) || !sameMessage(l.GetLimits(), n.GetLimits()) || !sameMessage(l.GetUnknown(), n.GetUnknown())
}

// differInUsage reports whether two reports differ in a field that changes constantly, which waits
// for the next periodic report. The step is such a field too, because users look at it only while
// they wait for long. So is the message before the end, which lists refused counters.
func differInUsage(l, n *droverv1.SeenAttempt) bool {
	return l.GetMessage() != n.GetMessage() || l.GetStep() != n.GetStep() || l.GetStatus() != n.GetStatus() || l.GetProgress() != n.GetProgress() ||
		l.GetSwapOccupied() != n.GetSwapOccupied() || l.GetDiskOccupied() != n.GetDiskOccupied() ||
		l.GetRunningMs() != n.GetRunningMs() || l.GetFetchingMs() != n.GetFetchingMs() || l.GetCommittingMs() != n.GetCommittingMs() ||
		l.GetInputBytes() != n.GetInputBytes() || !maps.Equal(l.GetCounters(), n.GetCounters()) ||
		!sameMessage(l.GetUsage(), n.GetUsage()) || !sameMessage(l.GetOccupied(), n.GetOccupied())
}

// sameMessage reports whether two messages are identical or equal; nil equals only nil.
func sameMessage[M interface {
	comparable
	proto.Message
}](a, b M) bool {
	return a == b || proto.Equal(a, b)
}

// boundReport returns s if it keeps the limits. Otherwise it returns a copy that does and says so:
// the report of one attempt must not prevent those of others. nil stays nil.
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
	c.LostOutputs = c.LostOutputs[:min(len(c.LostOutputs), maxReportLostOutputs)]
	c.LevelSteps = c.LevelSteps[:min(len(c.LevelSteps), maxLevelSteps)]
	for _, step := range c.LevelSteps {
		step.Step, step.Error = clipText(step.GetStep()), clipText(step.GetError())
	}
	if proto.Size(c) > maxAttemptBytes { // cannot happen within the limits above
		c.Counters, c.LevelSteps, c.LostOutputs = nil, nil, nil
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
	if len(s.GetCounters()) > maxReportCounters || len(s.GetStderrTail()) > 2*stderrTailBytes || len(s.GetLostOutputs()) > maxReportLostOutputs || len(s.GetLevelSteps()) > maxLevelSteps {
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

// boundCounters returns at most limit of the counters, the first by name, and how many it left out,
// because of limit or because of their names.
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

// refusedCounters returns a note about refused counters, "" for none.
func refusedCounters(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d reports of counters were refused: a task may have %d counters, with names of %d bytes", n, mapreduce.MaxCounters, mapreduce.MaxCounterName)
}
