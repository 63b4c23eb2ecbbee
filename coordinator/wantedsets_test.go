package coordinator

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/seed"
)

// wantedTasks returns the tasks of a stage of which the node shall have something, as it was told, in order.
func wantedTasks(n *coordtest.Node, stage int32) (tasks []int32) {
	for _, w := range n.Wanted() {
		if w.GetKey().GetStage() == stage {
			tasks = append(tasks, w.GetKey().GetTask())
		}
	}
	return tasks
}

// succeedBelow ends the tasks below a number.
func succeedBelow(limit int32) coordtest.Behaviour {
	return func(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
		if w.GetKey().GetTask() >= limit {
			return nil
		}
		return coordtest.Succeed(w)
	}
}

// Of a live job of many tasks a node has the newest that have ended, and what lives. It does not get back
// what it has given up from the next leader.
func TestEndedAttemptsOfALiveJobLeaveTheirNode(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.KeepLogs = -1 })
	n, _ := b.addNode(coordtest.Info("n1"), succeedBelow(2*keptEnded))
	b.waitForNodes()
	j := groupJob("long", 2*keptEnded+2)
	j.Stages[0].MaxParallel = 3
	b.submit(j)
	settled := func() bool {
		got := b.job("long")
		tasks := wantedTasks(n, 0)
		return got.GetJob().GetTasksDone() == 2*keptEnded && got.GetStages()[0].GetRunning() == 2 && len(tasks) == keptEnded+2
	}
	b.waitUntil("the node has the newest ended attempts and the live ones", settled)
	before := wantedTasks(n, 0)
	if !slices.Contains(before, 2*keptEnded) || !slices.Contains(before, 2*keptEnded+1) {
		t.Fatalf("wanted are %v: the live ones are missing", before)
	}
	sets := n.FullSets()
	b.kill()
	b.start()
	b.waitUntil("the next leader's set", func() bool { return n.FullSets() > sets && settled() })
	if after := wantedTasks(n, 0); !slices.Equal(before, after) {
		t.Errorf("the next leader wants %v, the one before %v", after, before)
	}
	n.SetBehaviour(coordtest.Succeed)
	b.waitForEnd("long", succeeded)
	b.waitUntil("nothing is wanted of the node", func() bool { return len(n.Wanted()) == 0 })
}

// The changes that are kept for a node are no more than a full set is worth. Who is near gets what changed, who is far a full set.
func TestChangesKeptForANodeAreAsItsAttempts(t *testing.T) {
	for attempts, most := range map[int]int{0: minWantedLog, 10: minWantedLog, 1000: 2000, maxWantedLog: maxWantedLog} {
		w := newWantedSets(time.Now, 0)
		s := w.resetLocked(&facts.Node{ID: 1, Epoch: 1, Up: true})
		for i := range attempts {
			s.put(facts.Key{Job: 1, Task: int32(i)}, 1)
		}
		longest := 0
		for range 2*most + 10 {
			s.add(wantedChange{key: facts.Key{Job: 1}})
			longest = max(longest, len(s.log))
		}
		if longest > most {
			t.Errorf("with %d attempts %d changes are kept, want at most %d", attempts, longest, most)
		}
		near, _ := w.changesSince(nodeEpoch{1, 1}, s.rev-uint64(most/2))
		far, _ := w.changesSince(nodeEpoch{1, 1}, s.rev-uint64(most)-1)
		if near.full || len(near.keys) != 1 || !far.full || len(far.keys) != attempts {
			t.Errorf("with %d attempts: near full %v, %d changes; far full %v, %d attempts", attempts, near.full, len(near.keys), far.full, len(far.keys))
		}
	}
}

// To forget the jobs of a node takes no longer where it has many attempts of another.
func BenchmarkForgetJobsBesideALargeOne(b *testing.B) {
	const attempts, jobs = 5000, 500
	for b.Loop() {
		b.StopTimer()
		w := newWantedSets(time.Now, 0)
		s := w.resetLocked(&facts.Node{ID: 1, Epoch: 1, Up: true})
		for i := range attempts + jobs {
			s.put(facts.Key{Job: uint64(max(0, i-attempts)), Task: int32(i)}, 1)
		}
		b.StartTimer()
		for job := range uint64(jobs) {
			w.forgetJob(1, job+1)
		}
	}
}

// What somebody needs stays, however many attempts end after it: failed attempts that are retained for
// inspection, and outputs of maps until the last reduce task has ended.
func TestNeededAttemptsStayOnTheirNode(t *testing.T) {
	b := newTestCluster(t, nil)
	const maps = 2 * keptEnded
	b.fs.Input("hdfs:///in", maps, "n1")
	failed := false
	n, _ := b.addNode(coordtest.Info("n1"), func(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
		switch {
		case w.GetSpec().GetKind() == "map" && !failed:
			failed = true
			return coordtest.Fail(droverv1.Cause_CAUSE_EXIT, "no")(w)
		case w.GetSpec().GetKind() == "reduce":
			return nil
		default:
			return coordtest.Succeed(w)
		}
	})
	b.waitForNodes()
	j := mapReduceJob("wc", 1)
	j.KeepFailed = 1
	b.submit(j)
	goals := func() (keep, stop int) {
		for _, w := range n.Wanted() {
			switch w.GetGoal() {
			case droverv1.Goal_GOAL_KEEP:
				keep++
			case droverv1.Goal_GOAL_STOP:
				stop++
			}
		}
		return keep, stop
	}
	b.waitUntil("all outputs and the failed attempt are kept", func() bool {
		keep, _ := goals()
		return b.job("wc").GetStages()[0].GetDone() == maps && keep == maps+1
	})
	n.SetBehaviour(coordtest.Succeed)
	b.waitForEnd("wc", succeeded)
	b.waitUntil("only the failed attempt is kept, and the newest others stay", func() bool {
		keep, stop := goals()
		return keep == 1 && stop == keptEnded
	})
}

// dump returns the sets of the nodes that are up, with what each attempt there is needed for.
func (w *wantedSets) dump(f *facts.Facts) (lines []string) {
	for _, n := range f.Nodes() {
		if s := w.nodes[n.ID]; n.Up && s != nil {
			size := 0
			for _, runs := range s.items {
				for k, run := range runs {
					isEnded := slices.ContainsFunc(s.ended[k.Job], func(e endedAttempt) bool { return e.key == k })
					lines = append(lines, fmt.Sprintf("node %d epoch %d: %v run %d, only for its logs %v", n.ID, s.epoch, k, run, isEnded))
					size++
				}
			}
			if size != s.size {
				lines = append(lines, fmt.Sprintf("node %d has %d attempts and counts %d", n.ID, size, s.size))
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// However a leader came to its sets, by following the facts or from them at once, they are the same: so no
// node gets back what it has given up. And they are bounded: of the attempts that nobody needs there are at most
// maxEnded of a job on a node.
func TestWantedSetsFollowFromTheFacts(t *testing.T) {
	first, most := seed.New(t), 0
	for i := range uint64(20) {
		w := newRandomCluster(t, first+i)
		now := func() time.Time { return time.Unix(0, w.now) }
		sets := newWantedSets(now, time.Hour)
		sets.maxEnded = 2
		w.observe = func(changes []facts.Change) {
			for i := range changes {
				switch c := &changes[i]; c.Kind {
				case facts.ChangeNode:
					sets.registerNode(w.f.Node(c.Node))
				case facts.ChangePlaced, facts.ChangeLevel, facts.ChangeStopping, facts.ChangeEnded, facts.ChangeOutput:
					sets.follow(w.f, c)
				}
			}
		}
		for step := range 400 {
			w.step()
			if w.r.IntN(2) == 0 {
				continue
			}
			if err := w.follow(); err != nil {
				t.Fatalf("seed %d step %d: %v", first+i, step, err)
			}
			for _, id := range w.f.JobIDs() {
				sets.review(w.f, w.f.Job(id)) // as at the end of a job
			}
			rebuilt := newWantedSets(now, time.Hour)
			rebuilt.maxEnded = 2
			rebuilt.rebuild(w.f, 1)
			if d := cmp.Diff(rebuilt.dump(w.f), sets.dump(w.f)); d != "" {
				t.Fatalf("seed %d step %d: (- rebuilt, + followed)\n%s\nlast events:\n%s", first+i, step, d, lastEvents(w.f, 12))
			}
			for _, s := range sets.nodes {
				for job, list := range s.ended {
					most = max(most, len(list))
					if len(list) > 2 || len(list) == 0 {
						t.Fatalf("seed %d step %d: %d ended attempts of job %d", first+i, step, len(list), job)
					}
				}
			}
		}
	}
	if most < 2 {
		t.Error("no job had many ended attempts on a node: the test shows nothing")
	}
}
