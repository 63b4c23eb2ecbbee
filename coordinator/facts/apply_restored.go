package facts

import (
	"fmt"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// maxSkippedJobs bounds the job numbers that one entry leaves out.
const maxSkippedJobs = 1 << 40

// maxSkippedEvents bounds the numbers of events that one entry leaves out.
const maxSkippedEvents = 1 << 40

// Bounds of the runs that are left out: by one entry, and by all.
const (
	maxSkippedRuns = 1 << 20
	maxFirstRun    = 1 << 30
)

// Restores is what the facts know of restores from an archive.
type Restores struct{ f *Facts }

// RestoresOf returns what the facts know of restores.
func RestoresOf(f *Facts) Restores { return Restores{f} }

// restores is the state of Restores.
type restores struct {
	ClusterEpoch uint64 `json:"cluster_epoch,omitempty"` // raised by each restore; 0: never restored
	LastJob      uint64 `json:"last_job,omitempty"`      // the archive's last job: later ones have no run from before
	SkippedRuns  int32  `json:"skipped_runs,omitempty"`  // that attempts begin above
	AwaitsNodes  bool   `json:"awaits_nodes,omitempty"`  // nothing was placed since
}

// ClusterEpoch returns the number that each restore raises; 0: the cluster was never restored.
func (s Restores) ClusterEpoch() uint64 { return s.f.restores.ClusterEpoch }

// AwaitsNodes reports whether nothing was placed since the last restore. Until then nodes may have
// runs of tasks that are pending in the restored state.
func (s Restores) AwaitsNodes() bool { return s.f.restores.AwaitsNodes }

// IsOlder reports whether a job was accepted before the last restore. The lost log may have had
// more of it, even its end.
func (s Restores) IsOlder(job uint64) bool {
	return s.f.restores.ClusterEpoch > 0 && job <= s.f.restores.LastJob
}

// FirstRun returns the first run of an attempt that is placed now: 1 if the cluster was never
// restored. The lost log may have placed the same attempt, with a lower run, on a node that is
// away.
func (s Restores) FirstRun() int32 { return 1 + s.f.restores.SkippedRuns }

// end notes that something is placed.
func (s Restores) end() { s.f.restores.AwaitsNodes = false }

// applyRestored records that the log was restored or repaired. It skips job numbers that the lost
// log may have used: a node may still run tasks of such a job, and must not take them for those of
// a new job. It revokes tokens. It raises the cluster's epoch, by which nodes know that an attempt
// that is no longer wanted may merely be unknown. It skips event numbers too, so that a client that
// continues after an event of the lost log misses no new ones.
func (en clusterEntries) applyRestored(e *droverv1.Entry, r *droverv1.RestoredFact) {
	en.f.restores = restores{ClusterEpoch: max(en.f.restores.ClusterEpoch+1, r.GetClusterEpoch()), LastJob: en.f.nextJob, AwaitsNodes: true,
		SkippedRuns: min(maxFirstRun, en.f.restores.SkippedRuns+max(0, min(r.GetSkipRuns(), maxSkippedRuns)))}
	en.f.nextJob += min(r.GetSkipJobs(), maxSkippedJobs)
	en.f.eventSeq += min(r.GetSkipEvents(), maxSkippedEvents)
	en.f.Tokens().revokeAll()
	en.f.EventLog().add(e, "cluster.restored", &Event{Text: fmt.Sprintf("%s; the next job has number %d", clip(r.GetWhat(), 300), en.f.nextJob+1)})
}
