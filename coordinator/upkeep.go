package coordinator

import (
	"context"
	"strings"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/history"
	"github.com/drover-run/drover/jobspec"
)

// Limits of upkeep.
const (
	upkeepEvery     = 30 * time.Second
	forgetAtOnce    = 500
	collectAtOnce   = 200
	maxUnwritten    = 4096 // ended jobs waiting to be written
	maxTouchedBlobs = 100_000
)

// recordEnded queues an ended job for the history. It is called under the
// facts' lock.
func (c *core) recordEnded(f *facts.Facts, j *facts.Job) {
	if c.history.Has(j.ID) {
		return
	}
	c.metrics.observeJobEnd(j)
	line := c.historyRecord(f, j)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.unwritten) < maxUnwritten { // leader.rebuild finds the others in the facts
		c.unwritten = append(c.unwritten, line)
	}
}

// upkeep writes ended jobs to the history, forgets old ones and collects unused
// blobs, until ctx ends.
func (c *core) upkeep(ctx context.Context) error {
	t := time.NewTicker(upkeepEvery)
	defer t.Stop()
	for {
		if err := c.flushHistory(); err != nil {
			c.log.Error("the history cannot be written; jobs stay in memory until it can", "err", err)
		} else if c.leads() {
			c.forgetJobs(ctx)
			c.collectBlobs(ctx)
		}
		changes := c.changes()
		if c.hasUnwritten() {
			continue
		}
		select {
		case <-changes:
			// A burst of ends is one write.
			if !sleep(ctx, 20*time.Millisecond) {
				return c.flushHistory()
			}
		case <-t.C:
		case <-ctx.Done():
			return c.flushHistory()
		}
	}
}

func (c *core) hasUnwritten() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.unwritten) > 0
}

// sleep waits for d and reports whether ctx is still live.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *core) flushHistory() error {
	c.mu.Lock()
	done := c.unwritten
	c.unwritten = nil
	c.mu.Unlock()
	if len(done) == 0 {
		return nil
	}
	if err := c.history.Append(done); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.unwritten = append(done, c.unwritten...)
		return err
	}
	return nil
}

// forgetJobs proposes to forget ended jobs that are in the history and its lines, if there
// are more than RetainJobs or they ended RetainFor ago.
func (c *core) forgetJobs(ctx context.Context) {
	old := c.now().Add(-c.cfg.RetainFor).UnixNano()
	var drop, ended []uint64
	c.view(func(f *facts.Facts) {
		for _, id := range f.JobIDs() {
			j := f.Job(id)
			if !j.IsSettled() {
				continue
			}
			if !c.history.Has(id) || !c.past.Has(id) {
				continue
			}
			ended = append(ended, id)
			if j.Ended < old {
				drop = append(drop, id)
			}
		}
	})
	if excess := len(ended) - c.cfg.RetainJobs; excess > len(drop) {
		drop = ended[:excess]
	}
	if len(drop) == 0 {
		return
	}
	drop = drop[:min(len(drop), forgetAtOnce)]
	if err := c.history.Sync(); err != nil {
		c.log.Error("the history cannot be made durable", "err", err)
		return
	}
	_, err := c.propose(ctx, actorSelf, &droverv1.Entry{Body: &droverv1.Entry_JobsForgotten{JobsForgotten: &droverv1.JobsForgottenFact{Jobs: drop}}})
	if err != nil && ctx.Err() == nil {
		c.log.Warn("cannot forget old jobs", "err", err)
	}
	if err == nil {
		c.history.Forget(drop)
	}
}

// collectBlobs proposes to remove blobs that no job references and no client
// asked for recently.
func (c *core) collectBlobs(ctx context.Context) {
	c.pruneTouched(c.now().Add(-c.cfg.BlobMinAge))
	old := c.now().Add(-c.cfg.BlobMinAge).UnixNano()
	var gone []string
	c.view(func(f *facts.Facts) {
		for _, d := range f.Blobs() {
			if b := f.Blob(d); b.Refs == 0 && b.Added < old && !c.blobTouched(d) && len(gone) < collectAtOnce {
				gone = append(gone, d)
			}
		}
	})
	for _, d := range gone {
		if _, err := c.propose(ctx, actorSelf, &droverv1.Entry{Body: &droverv1.Entry_Blob{Blob: &droverv1.BlobFact{Digest: d, Removed: true}}}); err != nil {
			return
		}
	}
}

// pruneTouched forgets which blobs were asked for before a time.
func (c *core) pruneTouched(before time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for d, at := range c.touchedBlobs {
		if at < before.UnixNano() {
			delete(c.touchedBlobs, d)
		}
	}
}

// touchBlob records that a client relies on a blob.
func (c *core) touchBlob(digest string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.touchedBlobs) < maxTouchedBlobs {
		c.touchedBlobs[digest] = c.now().UnixNano()
	}
}

func (c *core) blobTouched(digest string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.touchedBlobs[digest]
	return ok
}

// removeBlob removes the file of a blob that left the facts.
func (c *core) removeBlob(digest string) {
	if err := c.blobs.Remove(digest); err != nil {
		c.log.Error("cannot remove a blob", "digest", digest, "err", err)
	}
	if c.peers != nil {
		c.peers.files.gone(digest)
	}
}

// removeUnknownBlobs removes files that are no facts, left by a coordinator
// that crashed between an upload and its entry. It is called under the facts'
// lock before this server leads, when no upload is in progress.
func (c *core) removeUnknownBlobs(f *facts.Facts) {
	list, err := c.blobs.List()
	if err != nil {
		c.log.Error("cannot list the blob store", "err", err)
		return
	}
	for _, d := range list {
		if f.Blob(d) == nil {
			c.removeBlob(d)
		}
	}
}

// historyRecord returns a job's history record.
func (c *core) historyRecord(f *facts.Facts, j *facts.Job) history.Job {
	h := history.Job{Cluster: f.Cluster(), Job: j.ID, Name: j.Name, Tenant: j.Spec.Tenant, Priority: string(j.Spec.Priority), State: stateText(j.State),
		Message: j.Message, SubmitMS: j.Submitted / 1e6, StartMS: j.Started / 1e6, FinishMS: j.Ended / 1e6, Counters: j.Counters}
	h.DeadlineMS, h.BoundMS, h.OnMiss, h.Project = j.DeadlineNS()/1e6, time.Duration(j.Spec.RuntimeBound).Milliseconds(), string(j.Spec.OnMiss), j.Spec.Project
	h.GuaranteedMS = j.GuaranteedDeparture / 1e6
	if j.Quote != nil {
		p := j.Quote.GetProbability()
		h.Quote = &p
	}
	if j.Miss != nil {
		h.MissMS, h.Missed = j.Miss.At/1e6, j.Miss.Passed
	}
	var hosts [][]string
	if j.MapStage() >= 0 {
		hosts = c.locations.nodeNames(f, j.ID)
	}
	for i := range j.Stages {
		s := &j.Spec.Stages[i]
		hs := history.Stage{Name: s.Name, Kind: string(s.Kind), After: j.StageAfter(i), CPU: s.Resources.CPU, Memory: s.Resources.Memory, IO: s.Resources.IO, Disk: s.Disk}
		for t := range j.Stages[i].Tasks {
			ht := history.Task{}
			if s.Kind == jobspec.KindMap {
				ht.InputBytes = splitBytes(j.Stages[i].Splits[t])
				if int(t) < len(hosts) {
					ht.Hosts = hosts[t]
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
		h.Cause = causeText(a.Cause())
	}
	// Placement is timed by the coordinator's clock and start by the node's.
	// Clamping keeps a wrong clock from making the parts longer than the whole.
	if began := seen.GetStartedMs(); began > 0 {
		h.StartingMS = max(0, min(began-h.PlaceMS, h.EndMS-h.PlaceMS-h.RunMS))
	}
	return h
}

func stateText(s droverv1.JobState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "JOB_STATE_"))
}

func causeText(s droverv1.Cause) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "CAUSE_"))
}
