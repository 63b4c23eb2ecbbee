package facts

import (
	"fmt"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// maxSkippedJobs bounds the job numbers that one entry leaves out.
const maxSkippedJobs = 1 << 40

// applyRestored notes that the log was restored or repaired. Job numbers that
// the lost log may have given are left out: a node may still run such a job's
// tasks, and must not take them for those of a new job. Tokens are revoked.
func (en clusterEntries) applyRestored(e *droverv1.Entry, r *droverv1.RestoredFact) {
	en.f.nextJob += min(r.GetSkipJobs(), maxSkippedJobs)
	en.f.Tokens().revokeAll()
	en.f.EventLog().add(e, "cluster.restored", &Event{Text: fmt.Sprintf("%s; the next job has number %d", clip(r.GetWhat(), 300), en.f.nextJob+1)})
}
