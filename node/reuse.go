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

// reuseEvery is how often containers that no task uses are looked for.
const reuseEvery = 5 * time.Second

// A stage's tasks count as short once the last shortTasks of them that succeeded on this node ran for at
// most shortTask each: then little is lost if one cannot be checkpointed. They share containers, unless the
// job file says otherwise.
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

// recentTasks remembers of which stages the last tasks on this node were short. It is safe for
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

// forget makes the next tasks of a stage the first.
func (r *recentTasks) forget(s stage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.short[s]; ok {
		r.short[s] = 0
	}
}

// containerSharing is what was decided about an attempt's container. It changes only together with the
// container: the driver compares what it is asked for with what it has.
type containerSharing struct {
	decided bool
	key     string // Reuse of runtime.Spec
}

// reuseKey returns the key by which tasks share containers (runtime.Spec), "" for an attempt
// that has a container of its own. The first call decides. It is one key for the whole job: reduces begin in
// containers that maps have left, where both stages use containers again.
func (a *attempt) reuseKey(spec *droverv1.TaskSpec) string {
	if !a.sharing.decided {
		a.sharing.decided = true
		if a.mayShareContainers(spec) {
			a.sharing.key = fmt.Sprintf("%s %d %s", spec.GetTenant(), a.id.Key().GetJob(), spec.GetJobName())
		}
	}
	return a.sharing.key
}

// mayShareContainers reports whether the attempt may run in a container in which others ran. Attempts
// after the first of a task may not, so that one that failed, or that is to be dumped, does not meet the same
// conditions again; and secrets stay in the container that was made for them.
func (a *attempt) mayShareContainers(spec *droverv1.TaskSpec) bool {
	_, ok := a.d.cfg.Driver.(runtime.Reuser)
	k := a.id.Key()
	switch {
	case !ok || k.GetAttempt() > 1 || k.GetRun() > 1 || len(spec.GetSecrets()) > 0 || spec.GetExclusive():
		return false
	case spec.ContainersUsedAgain != nil:
		return spec.GetContainersUsedAgain()
	default: // of an adopted attempt it is not known what the earlier daemon decided
		return !a.adopted && a.d.recentTasks.areShort(stageOf(a.id))
	}
}

// stopSharing gives an attempt that did not start in a container of others one of its own, if nobody asked for
// more than that: what holds up such a container need not hold up a task. It returns the error of the start, cause, and where
// the attempt has a container of its own now, without the class of that: whether the task can start is to be seen. An error
// of its own leaves the attempt as it was, or without a container.
func (a *attempt) stopSharing(ctx context.Context, spec *droverv1.TaskSpec, cause error) error {
	if a.sharing.key == "" || spec.ContainersUsedAgain != nil || errors.Is(ctx.Err(), context.Canceled) {
		return cause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepLimit) // the start may have used up its time
	defer cancel()
	if err := a.rec.change(func(r *store.Record) { r.Started = false }); err != nil { // or it would have lost the container with which it started
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

// closeIdleLoop deletes the containers that no task uses again.
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
