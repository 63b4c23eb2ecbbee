package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/fake"
)

// sharing returns a task of a stage that allows containers to be used again.
func sharing(task int32, command ...string) *droverv1.WantedAttempt {
	return with(groupTask(task, command...), func(w *droverv1.WantedAttempt) { w.Spec.ContainersUsedAgain = proto.Bool(true) })
}

// alone returns a task of a stage that wants a container for each task.
func alone(task int32, command ...string) *droverv1.WantedAttempt {
	return with(groupTask(task, command...), func(w *droverv1.WantedAttempt) { w.Spec.ContainersUsedAgain = proto.Bool(false) })
}

func TestTasksOfOneJobShareContainers(t *testing.T) {
	type W = droverv1.WantedAttempt
	for name, c := range map[string]struct {
		tasks []*W // one after another
		want  int  // containers made for more than one task
	}{
		"tasks of a stage": {[]*W{sharing(0, "true"), sharing(1, "true"), sharing(2, "true")}, 1},
		"the first tasks of a stage that says nothing": {[]*W{groupTask(0, "true"), groupTask(1, "true"), groupTask(2, "true")}, 0},
		"those after three short ones":                 {[]*W{groupTask(0, "true"), groupTask(1, "true"), groupTask(2, "true"), groupTask(3, "true"), groupTask(4, "true")}, 1},
		"failures are not short":                       {[]*W{groupTask(0, "true"), groupTask(1, "true"), groupTask(2, "fail"), groupTask(3, "true")}, 0},
		"a stage that does not want it":                {[]*W{alone(0, "true"), alone(1, "true"), alone(2, "true"), alone(3, "true")}, 0},
		"the next stage":                               {[]*W{sharing(0, "true"), with(sharing(0, "true"), func(w *W) { w.Key.Stage = 1 })}, 1},
		"with other limits":                            {[]*W{sharing(0, "true"), with(sharing(0, "true"), func(w *W) { w.Key.Stage = 1; w.Spec.Demand.Cpu = 200 })}, 1},
		"the next stage, which does not want it":       {[]*W{sharing(0, "true"), with(alone(0, "true"), func(w *W) { w.Key.Stage = 1 })}, 1},
		"another job":                                  {[]*W{sharing(0, "true"), with(sharing(0, "true"), func(w *W) { w.Key.Job = 2 })}, 2},
		"a second attempt":                             {[]*W{with(sharing(0, "true"), func(w *W) { w.Key.Attempt = 2 })}, 0},
		"a second run":                                 {[]*W{with(sharing(0, "true"), func(w *W) { w.Key.Run = 2 })}, 0},
		"after a failure":                              {[]*W{sharing(0, "fail"), sharing(1, "true")}, 2},
		"after a time limit":                           {[]*W{with(sharing(0, "hang"), func(w *W) { w.Spec.TimeLimitMs = 30 }), sharing(1, "true")}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, programs())
			b.start()
			for _, w := range c.tasks {
				b.put(w)
				want := succeeded
				if slices.Contains([]string{"fail", "hang"}, w.Spec.Command[0]) {
					want = failed
				}
				b.await(t, w, want)
			}
			if opened, _ := b.engine.Shared(); opened != c.want {
				t.Errorf("%d shared containers were made, want %d", opened, c.want)
			}
			b.remove(c.tasks...)
			for _, w := range c.tasks {
				b.await(t, w, gone)
			}
			b.checkNothingLeft()
		})
	}
}

func TestTasksWithSecretsOrLeaseShareNothing(t *testing.T) {
	b := newTestNode(t, programs())
	d, err := newDaemon(b.config)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	w := sharing(0, "true")
	a := newAttempt(d, store.IDOf(w.GetKey()))
	if !a.mayShareContainers(w.Spec) {
		t.Error("a task without secrets has a container of its own")
	}
	w.Spec.Exclusive = true
	if a.mayShareContainers(w.Spec) {
		t.Error("an exclusive task shares containers")
	}
	w.Spec.Exclusive = false
	w.Spec.Secrets = []*droverv1.SecretRef{{Env: "A", Ref: "file:a"}}
	if a.mayShareContainers(w.Spec) {
		t.Error("a task with secrets shares containers")
	}
}

// TestTasksThatCannotShareRunAlone has the start in a shared container fail: the task runs in one of its own, and so does
// the next; where the shared one cannot be deleted, it is tried again.
func TestTasksThatCannotShareRunAlone(t *testing.T) {
	for name, c := range map[string]struct {
		faults []fake.Fault
		task   func(task int32, command ...string) *droverv1.WantedAttempt
		want   int // containers made for more than one task
	}{
		"a stage that says nothing":         {[]fake.Fault{{Verb: fake.Start, Nth: 1, Err: errors.New("no init")}}, groupTask, 0},
		"the image is not for sharing":      {[]fake.Fault{{Verb: fake.Start, Nth: 1, Err: fault.New(fault.Invalid, "its image has a link at /task")}}, groupTask, 0},
		"a stage that wants it":             {[]fake.Fault{{Verb: fake.Start, Nth: 1, Err: errors.New("no init")}}, sharing, 1},
		"and its own is not made at once":   {[]fake.Fault{{Verb: fake.Start, Nth: 1, Err: errors.New("no init")}, {Verb: fake.Create, Nth: 2, Err: errors.New("busy")}}, groupTask, 0},
		"and the engine does not delete it": {[]fake.Fault{{Verb: fake.Start, Nth: 1, Err: errors.New("no init")}, {Verb: fake.Delete, Nth: 1, Err: errors.New("busy")}}, groupTask, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, programs())
			b.config.reuseIdle = time.Hour
			b.start()
			var all []*droverv1.WantedAttempt
			run := func(task int32) {
				w := c.task(task, "true")
				b.put(w)
				if s := b.await(t, w, succeeded); s.GetMessage() != "" {
					t.Error(s.GetMessage())
				}
				all = append(all, w)
			}
			for i := range int32(3) {
				run(i)
			}
			poll(t, "no container", func() bool { return b.engine.Calls(fake.Delete) >= 3 }) // or a fault meets one of these
			for _, f := range c.faults {
				b.engine.Inject(f)
			}
			run(3)
			run(4)
			if opened, _ := b.engine.Shared(); opened != c.want {
				t.Errorf("%d shared containers were made, want %d", opened, c.want)
			}
			b.remove(all...)
			for _, w := range all {
				b.await(t, w, gone)
			}
			b.checkNothingLeft()
		})
	}
}

// A stage that asks for shared containers with an image that cannot have them has its mistake told, once.
func TestImageThatCannotBeSharedIsToldTheStageThatWantsIt(t *testing.T) {
	b := newTestNode(t, programs())
	b.engine.Inject(fake.Fault{Verb: fake.Start, Err: fault.New(fault.Invalid, "its image has a link at /task")})
	b.start()
	w := sharing(0, "true")
	b.put(w)
	if s := b.await(t, w, failed); s.GetCause() != droverv1.Cause_CAUSE_SPEC || !strings.Contains(s.GetMessage(), "a link at /task") {
		t.Errorf("it failed with %v: %s", s.GetCause(), s.GetMessage())
	}
}

func TestRecentTasks(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	a, b := stage{job: 1}, stage{job: 1, index: 1}
	for name, c := range map[string]struct {
		ran  []time.Duration
		want bool
	}{
		"none":                   {nil, false},
		"two":                    {[]time.Duration{ms, ms}, false},
		"three":                  {[]time.Duration{ms, 5 * s, ms}, true},
		"a long one":             {[]time.Duration{ms, ms, ms, 5*s + ms}, false},
		"two after a long one":   {[]time.Duration{ms, ms, ms, 6 * s, ms, ms}, false},
		"three after a long one": {[]time.Duration{6 * s, ms, ms, ms}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var r recentTasks
			for _, d := range c.ran {
				r.add(a, d)
			}
			if got := r.areShort(a); got != c.want || r.areShort(b) {
				t.Errorf("short: %v, want %v; of another stage %v", got, c.want, r.areShort(b))
			}
		})
	}
}

func TestRecentTasksAreBounded(t *testing.T) {
	var r recentTasks
	for job := range uint64(3 * recentStages) {
		for range shortTasks {
			r.add(stage{job: job}, 0)
		}
	}
	if len(r.short) != recentStages || len(r.order) != recentStages {
		t.Errorf("%d stages, %d in order, want %d", len(r.short), len(r.order), recentStages)
	}
	if !r.areShort(stage{job: 3*recentStages - 1}) || r.areShort(stage{job: 0}) {
		t.Error("not the newest stages are remembered")
	}
}

// TestAdoptedAttemptsShareNothing restarts the daemon between the creation of a shared container and its start: the next one does
// not know that it was to be shared, and starts the task all the same.
func TestAdoptedAttemptsShareNothing(t *testing.T) {
	b := newTestNode(t, programs())
	b.start()
	tasks := []*droverv1.WantedAttempt{groupTask(0, "true"), groupTask(1, "true"), groupTask(2, "true")}
	for _, w := range tasks {
		b.put(w)
		b.await(t, w, succeeded)
	}
	b.engine.Inject(fake.Fault{Verb: fake.Start, Err: fault.New(fault.Unavailable, "the engine does not answer")})
	last := groupTask(3, "true")
	b.put(last)
	poll(t, "a try to start", func() bool { return b.engine.Calls(fake.Start) > len(tasks) })
	b.stopDaemon()
	b.engine.Heal()
	b.config.Driver = b.engine.Driver()
	b.start()
	b.await(t, last, succeeded)
}

func TestIdleContainersAreClosed(t *testing.T) {
	b := newTestNode(t, programs())
	b.config.reuseIdle = 1 // at once
	b.start()
	w := sharing(0, "true")
	b.put(w)
	b.await(t, w, succeeded)
	poll(t, "no shared container", func() bool { opened, left := b.engine.Shared(); return opened == 1 && left == 0 })
}

// TestSharedTaskOutlivesTheDaemon restarts the daemon while a task runs, and while it ends.
func TestSharedTaskOutlivesTheDaemon(t *testing.T) {
	release := make(chan struct{})
	all := programs()
	all["wait"] = func(ctx context.Context, _ *fake.Process) int {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return 0
	}
	b := newTestNode(t, all)
	b.start()
	w := sharing(0, "wait")
	b.put(w)
	b.await(t, w, running)
	b.stopDaemon()
	close(release)
	b.config.Driver = b.engine.Driver()
	b.start()
	b.await(t, w, succeeded)
}

// TestLostEndCountsAgainstATaskThatShares has tasks end without an exit code, as after the death of process 1, before and
// after the daemon was restarted: where that was shared, a process of the task can have ended it.
func TestLostEndCountsAgainstATaskThatShares(t *testing.T) {
	for name, c := range map[string]struct {
		task      func(task int32, command ...string) *droverv1.WantedAttempt
		restarted bool
		want      droverv1.Cause
	}{
		"shared":                       {sharing, false, droverv1.Cause_CAUSE_EXIT},
		"shared, under another daemon": {sharing, true, droverv1.Cause_CAUSE_EXIT},
		"its own":                      {groupTask, false, droverv1.Cause_CAUSE_INFRA},
		"its own, under another":       {groupTask, true, droverv1.Cause_CAUSE_INFRA},
	} {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			all := programs()
			all["lost"] = func(ctx context.Context, _ *fake.Process) int {
				select {
				case <-release:
				case <-ctx.Done():
				}
				return runtime.ExitLost
			}
			b := newTestNode(t, all)
			b.start()
			w := c.task(0, "lost")
			b.put(w)
			b.await(t, w, running)
			if c.restarted {
				b.stopDaemon()
				b.config.Driver = b.engine.Driver()
				b.start()
			}
			close(release)
			if s := b.await(t, w, failed); s.GetCause() != c.want {
				t.Errorf("it failed with %v: %s, want %v", s.GetCause(), s.GetMessage(), c.want)
			}
		})
	}
}

// TestSharedTaskIsNotDumped asks for a level that such a task cannot reach: it is swapped out instead,
// and the coordinator learns that this does not change.
func TestSharedTaskIsNotDumped(t *testing.T) {
	b, _ := newLevelTestNode(t)
	b.start()
	w := with(groupTask(0, "count"), func(w *droverv1.WantedAttempt) { w.Spec.ContainersUsedAgain = proto.Bool(true) })
	b.put(w)
	b.await(t, w, running)
	b.requestLevel(w, levelCheckpointed)
	s := b.awaitRefusal(w, levelCheckpointed)
	if s.GetLevel() != levelSwapped || !slices.Equal(s.GetLevelsRefused(), []droverv1.Level{levelCheckpointed}) {
		t.Errorf("at %s, can never be %v", s.GetLevel(), s.GetLevelsRefused())
	}
	b.awaitNotCounting(w)
	b.requestLevel(w, levelRunning)
	b.awaitLevel(w, levelRunning)
	b.awaitCounting(w)
}
