package node

import (
	"context"
	"fmt"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/runtime"
)

// reuseEvery is how often containers that no task uses are looked for.
const reuseEvery = 5 * time.Second

// reuseKey returns the key by which tasks share containers (runtime.Spec), "" for an attempt
// that has a container of its own: every one after the first of a task, so that one that failed, or that is
// to be dumped, does not meet the same conditions again. Secrets stay in the container that was
// made for them.
func (a *attempt) reuseKey(spec *droverv1.TaskSpec) string {
	_, ok := a.d.cfg.Driver.(runtime.Reuser)
	k := a.id.Key()
	if !ok || !spec.GetContainersUsedAgain() || k.GetAttempt() > 1 || k.GetRun() > 1 || len(spec.GetSecrets()) > 0 || spec.GetExclusive() {
		return ""
	}
	return fmt.Sprintf("%s %d.%d %s", spec.GetTenant(), k.GetJob(), k.GetStage(), spec.GetJobName())
}

// closeIdleLoop deletes the containers that no task uses again.
func (d *daemon) closeIdleLoop(ctx context.Context) error {
	r, ok := d.cfg.Driver.(runtime.Reuser)
	if !ok {
		return nil
	}
	t := time.NewTicker(min(reuseEvery, max(d.cfg.ReuseIdle, 10*time.Millisecond)))
	defer t.Stop()
	for {
		within, cancel := context.WithTimeout(ctx, sweepLimit)
		err := r.CloseIdle(within, d.cfg.ReuseIdle)
		cancel()
		if err != nil && ctx.Err() == nil {
			d.log.Warn("containers that no task uses are not deleted", "err", err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
}
