package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/runtime"
)

// reuseEvery is the pause between two searches for containers that no task uses.
const reuseEvery = 5 * time.Second

// A stage's tasks count as short once the last shortTasks of them that succeeded on this node ran
// for at most shortTask each. Little is lost if such a task cannot be checkpointed, so they share
// containers, unless the job file says otherwise.
const (
	shortTask    = 5 * time.Second
	shortTasks   = 3
	recentStages = 1024 // that are remembered
)

// stage names a stage of a job.
type stage struct {
	job   uint64
	index int32
}

func stageOf(id store.ID) stage { return stage{id.Key().GetJob(), id.Key().GetStage()} }

// recentTasks remembers for which stages the last tasks on this node were short. It is safe for
// concurrent use.
type recentTasks struct {
	mu    sync.Mutex
	short map[stage]int // the number of short tasks in a row, at most shortTasks
	order []stage       // the keys of short, the oldest first
}

// add records the run time of a task that succeeded.
func (r *recentTasks) add(s stage, ran time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.short == nil {
		r.short = map[stage]int{}
	}
	if _, ok := r.short[s]; !ok {
		r.order = append(r.order, s)
		if len(r.order) > recentStages {
			delete(r.short, r.order[0])
			r.order = r.order[1:]
		}
	}
	if ran > shortTask {
		r.short[s] = 0
	} else {
		r.short[s] = min(r.short[s]+1, shortTasks)
	}
}

// areShort reports whether the last tasks of the stage were short.
func (r *recentTasks) areShort(s stage) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.short[s] >= shortTasks
}

// forget resets a stage.
func (r *recentTasks) forget(s stage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.short[s]; ok {
		r.short[s] = 0
	}
}

// containerSharing is the decision whether an attempt shares its container. It changes only
// together with the container, because the driver compares a repeated Create with the existing
// container.
type containerSharing struct {
	decided bool
	key     string // Reuse of runtime.Spec
}

// reuseKey returns the key by which tasks share containers (runtime.Spec), "" for an attempt with a
// container of its own. The first call decides. The whole job has one key: reduces start in
// containers that maps have left, if both stages share containers.
func (a *attempt) reuseKey(spec *droverv1.TaskSpec) string {
	if !a.sharing.decided {
		a.sharing.decided = true
		if a.mayShareContainers(spec) {
			a.sharing.key = fmt.Sprintf("%s %d %s", spec.GetTenant(), a.id.Key().GetJob(), spec.GetJobName())
		}
	}
	return a.sharing.key
}

// mayShareContainers reports whether the attempt may use a shared container. The second and later
// attempts of a task may not, so that an attempt after a failure, or one that is to be dumped, does
// not meet the same conditions again. Nor may tasks with secrets, because secrets stay in their
// container.
func (a *attempt) mayShareContainers(spec *droverv1.TaskSpec) bool {
	_, ok := a.d.cfg.Driver.(runtime.Reuser)
	k := a.id.Key()
	switch {
	case !ok || k.GetAttempt() > 1 || k.GetRun() > 1 || len(spec.GetSecrets()) > 0 || spec.GetExclusive():
		return false
	case spec.ContainersUsedAgain != nil:
		return spec.GetContainersUsedAgain()
	default: // adopted: the earlier daemon's decision is unknown
		return !a.adopted && a.d.recentTasks.areShort(stageOf(a.id))
	}
}

// stopSharing gives an attempt that failed to start in a shared container a container of its own,
// unless more is at fault: a problem of the shared container must not hold up the task. cause is
// the error of the start. If the attempt now has a container of its own, stopSharing returns cause
// without its class, since the task may still start. After an error of its own, the attempt is as
// before or without a container.
func (a *attempt) stopSharing(ctx context.Context, spec *droverv1.TaskSpec, cause error) error {
	if a.sharing.key == "" || spec.ContainersUsedAgain != nil || errors.Is(ctx.Err(), context.Canceled) {
		return cause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepLimit) // the start may have used up its time
	defer cancel()
	if err := a.rec.change(func(r *store.Record) { r.Started = false }); err != nil { // otherwise a restart would treat the attempt as one that lost its container
		return errors.Join(cause, err)
	}
	if err := a.container.remove(ctx); err != nil {
		return errors.Join(cause, err)
	}
	a.sharing.key = ""
	a.d.recentTasks.forget(stageOf(a.id))
	cs, err := a.layout().containerSpec(spec, "")
	if err != nil {
		return errors.Join(cause, err)
	}
	if err := a.container.create(ctx, cs); err != nil {
		return errors.Join(cause, err)
	}
	return errors.New("in a container of others, and now in one of its own: " + cause.Error())
}

// closeIdleLoop deletes shared containers that no task will use again.
func (d *daemon) closeIdleLoop(ctx context.Context) error {
	r, ok := d.cfg.Driver.(runtime.Reuser)
	if !ok {
		return nil
	}
	t := time.NewTicker(min(reuseEvery, max(d.cfg.reuseIdle, 10*time.Millisecond)))
	defer t.Stop()
	for {
		within, cancel := context.WithTimeout(ctx, sweepLimit)
		err := r.CloseIdle(within, d.cfg.reuseIdle)
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
