package coordinator

import (
	"maps"
	"slices"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/history"
	"github.com/drover-run/drover/internal/apitext"
	"github.com/drover-run/drover/jobspec"
)

// endedJobs are the jobs that wait to be written to the history in JSON lines.
type endedJobs struct {
	history   *history.Writer
	locations *locationCache
	metrics   *metrics
	limit     int // of unwritten

	mu        sync.Mutex
	unwritten []history.Job
	later     map[uint64]bool // jobs that did not fit into unwritten: see addLater
}

// record queues an ended job for the history. It is called under the
// facts' lock.
func (e *endedJobs) record(f *facts.Facts, j *facts.Job) {
	if e.history.Has(j.ID) {
		return
	}
	e.metrics.observeJobEnd(j)
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.unwritten) < e.limit {
		e.unwritten = append(e.unwritten, e.historyRecord(f, j))
	} else {
		e.later[j.ID] = true
	}
}

// addLater queues jobs that did not fit when they ended, by number, as many as fit now. They are
// still in the facts, because the leader forgets no job that is missing in the history. It is
// called under the facts' lock, mostly when there is nothing to queue.
func (e *endedJobs) addLater(f *facts.Facts) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(e.later)) {
		if len(e.unwritten) >= e.limit {
			return
		}
		delete(e.later, id)
		if j := f.Job(id); j != nil && !e.history.Has(id) { // else a leader after this one has forgotten it, or it was queued again
			e.unwritten = append(e.unwritten, e.historyRecord(f, j))
		}
	}
}

// hasUnwritten reports whether jobs wait to be written.
func (e *endedJobs) hasUnwritten() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.unwritten) > 0
}

// flush writes the queued jobs. If that fails they stay queued.
func (e *endedJobs) flush() error {
	e.mu.Lock()
	done := e.unwritten
	e.unwritten = nil
	e.mu.Unlock()
	if len(done) == 0 {
		return nil
	}
	if err := e.history.Append(done); err != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.unwritten = append(done, e.unwritten...)
		return err
	}
	return nil
}

// historyRecord returns a job's history record.
func (e *endedJobs) historyRecord(f *facts.Facts, j *facts.Job) history.Job {
	h := history.Job{Cluster: f.Cluster(), Job: j.ID, Name: j.Name, Tenant: j.Spec.Tenant, Priority: string(j.Spec.Priority), State: apitext.JobState(j.State),
		Message: j.Message, SubmitMS: j.Submitted / 1e6, StartMS: j.Started / 1e6, FinishMS: j.Ended / 1e6, Counters: j.Counters}
	h.DeadlineMS, h.BoundMS, h.OnMiss, h.Project = j.DeadlineNS()/1e6, time.Duration(j.Spec.RuntimeBound).Milliseconds(), string(j.Spec.OnMiss), j.Spec.Project
	h.GuaranteedMS, h.GuaranteeViolated = f.Deadlines().LatestDeparture(j)/1e6, j.GuaranteeViolated
	if j.Quote != nil {
		p := j.Quote.GetProbability()
		h.Quote = &p
	}
	if j.Miss != nil {
		h.MissMS, h.Missed = j.Miss.At/1e6, j.Miss.Passed
	}
	var hosts [][]string
	var onHosts [][]int64
	if j.MapStage() >= 0 {
		hosts, onHosts = e.locations.storedOn(f, j.ID)
	}
	for i := range j.Stages {
		s := &j.Spec.Stages[i]
		hs := history.Stage{Name: s.Name, Kind: string(s.Kind), After: j.Spec.StagesBefore(i), CPU: s.Resources.CPU, Memory: s.Resources.Memory, IO: s.Resources.IO, Disk: s.Disk}
		for t := range j.Stages[i].Tasks {
			ht := history.Task{}
			if s.Kind == jobspec.KindMap {
				ht.InputBytes = splitBytes(j.Stages[i].Splits[t])
				if int(t) < len(hosts) {
					ht.Hosts, ht.HostBytes = hosts[t], onHosts[t]
				}
			}
			for _, a := range j.Stages[i].Task(t).Attempts {
				ht.Attempts = append(ht.Attempts, historyAttempt(f, a, a.Seen()))
			}
			hs.Tasks = append(hs.Tasks, ht)
		}
		h.Stages = append(h.Stages, hs)
	}
	return h
}

func splitBytes(s *droverv1.FactSplit) (n int64) {
	for _, p := range s.GetPieces() {
		n += p.GetLength()
	}
	return n
}

func historyAttempt(f *facts.Facts, a *facts.Attempt, seen *droverv1.SeenAttempt) history.Attempt {
	u := seen.GetUsage()
	h := history.Attempt{State: a.State.String(), Locality: a.Locality, PlaceMS: a.Placed / 1e6, EndMS: a.Ended / 1e6, RunMS: seen.GetRunningMs(),
		CPUMS: u.GetCpuMs(), PeakMemory: u.GetMemoryPeak(), ReadBytes: u.GetReadBytes(), WriteBytes: u.GetWriteBytes(), InputBytes: seen.GetInputBytes()}
	if n := f.Node(a.Node); n != nil {
		h.Node = n.Info.GetName()
	}
	if a.State == facts.AttemptFailed {
		h.Cause = apitext.Cause(a.Cause())
	}
	// Placement is timed by the coordinator's clock and start by the node's.
	// Clamping keeps a wrong clock from making the parts longer than the whole.
	if began := seen.GetStartedMs(); began > 0 {
		h.StartingMS = max(0, min(began-h.PlaceMS, h.EndMS-h.PlaceMS-h.RunMS))
	}
	return h
}
