package coordinator

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/mapreduce"
)

// keyedJob is a job whose map tasks need to know its keys.
func keyedJob(name string) *jobspec.Job {
	j := mapReduceJob(name, 3)
	j.Stages[0].Builtin = []string{"identity"}
	j.Stages[1].KeyFields, j.Stages[1].PartitionKeys = 2, []string{"g", "p"}
	return j
}

// orderedJob is one whose reduce tasks need to know them, too.
func orderedJob(name string) *jobspec.Job {
	j := keyedJob(name)
	j.Stages[1].KeyOrder, j.Stages[1].PartitionKeys = []string{"text", "number desc"}, []string{"g", "g\t7"}
	return j
}

// oldNode is a node with older features: it refuses a kind that it does not know, as node/layout.go does.
func oldNode(name string, features ...string) (*droverv1.NodeInfo, coordtest.Behaviour) {
	info := coordtest.Info(name)
	info.Features = features
	return info, func(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
		if kind := jobspec.StageKind(w.GetSpec().GetKind()); kind != jobspec.KindMap && kind != jobspec.KindReduce {
			return coordtest.Fail(droverv1.Cause_CAUSE_SPEC, "task kind \""+string(kind)+"\" is not supported by this node: upgrade it")(w)
		}
		return coordtest.Succeed(w)
	}
}

func TestMapTasksGetTheKeys(t *testing.T) {
	b := newTestCluster(t, nil)
	b.fs.Input("hdfs:///in", 2, "n1")
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitUntil("the node is up", func() bool { id, _ := n.Registered(); return id > 0 })
	b.submit(keyedJob("keyed"))
	// specs returns those of attempts of a kind with a goal.
	specs := func(kind jobspec.StageKind, goal droverv1.Goal) (all []*droverv1.TaskSpec) {
		for _, w := range n.Wanted() {
			if w.GetSpec().GetKind() == string(kind) && w.GetGoal() == goal {
				all = append(all, w.GetSpec())
			}
		}
		return all
	}
	b.waitUntil("both map tasks run", func() bool { return len(specs(jobspec.KindMap, droverv1.Goal_GOAL_RUN)) == 2 })
	for _, s := range specs(jobspec.KindMap, droverv1.Goal_GOAL_RUN) {
		if k := s.GetKeys(); k.GetFields() != 2 || k.GetPartitionFields() != 0 || strings.Join(k.GetPartitionKeys(), " ") != "g p" {
			t.Errorf("a map task gets %v", k)
		}
	}
	n.SetBehaviour(func(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
		if w.GetSpec().GetKind() == string(jobspec.KindReduce) {
			return nil
		}
		return coordtest.Succeed(w)
	})
	n.Advance()
	b.waitUntil("the reduce tasks run and the map outputs stay", func() bool {
		return len(specs(jobspec.KindReduce, droverv1.Goal_GOAL_RUN)) == 3 && len(specs(jobspec.KindMap, droverv1.Goal_GOAL_KEEP)) == 2
	})
	for _, s := range append(specs(jobspec.KindReduce, droverv1.Goal_GOAL_RUN), specs(jobspec.KindMap, droverv1.Goal_GOAL_KEEP)...) {
		if s.GetKeys() != nil {
			t.Errorf("a task of kind %s that does not need them gets %v", s.GetKind(), s.GetKeys())
		}
	}
	n.SetBehaviour(coordtest.Succeed)
	n.Advance()
	b.waitForEnd("keyed", succeeded)
}

// A node that is older than the keys of a job would partition by the first field in silence. Where it comes after the
// job it refuses the task, and while it is there the job is refused.
func TestOldNodesRefuseKeys(t *testing.T) {
	b := newTestCluster(t, nil)
	b.fs.Input("hdfs:///in", 2, "n1")
	b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitUntil("the node is up", func() bool { id, _ := b.nodes[0].Registered(); return id > 0 })
	j := keyedJob("early")
	j.Stages[0].Resources.CPU = coordtest.Info("n1").Allocatable.Cpu // the second map task waits for another node
	b.submit(j)
	b.addNode(oldNode("n2"))
	if got := b.waitForEnd("early", droverv1.JobState_JOB_STATE_FAILED); !strings.Contains(got.Job.Message, "upgrade it") {
		t.Errorf("it failed with %q", got.Job.Message)
	}
	_, err := b.trySubmit(keyedJob("late"), "")
	if !errors.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), `stage "reduce": node n2 is older than key_fields`) {
		t.Errorf("%v", err)
	}
	b.submit(mapReduceJob("plain", 3))
}

// A node that knows keys and not their order would sort by bytes in silence: it gets neither map nor reduce tasks.
func TestOldNodesRefuseKeyOrder(t *testing.T) {
	b := newTestCluster(t, nil)
	b.fs.Input("hdfs:///in", 2, "n1")
	n, _ := b.addNode(oldNode("n1", mapreduce.FeatureKeys))
	b.waitUntil("the node is up", func() bool { id, _ := n.Registered(); return id > 0 })
	_, err := b.trySubmit(orderedJob("ordered"), "")
	if !errors.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), `stage "reduce": node n1 is older than key_order: upgrade it`) {
		t.Errorf("%v", err)
	}
	asBytes := keyedJob("bytes")
	asBytes.Stages[1].KeyOrder = []string{"text", "text"} // says what is so without it
	b.submit(asBytes)
	b.waitForEnd("bytes", succeeded)

	for _, kind := range []jobspec.StageKind{jobspec.KindMap, jobspec.KindReduce} {
		w := &droverv1.TaskSpec{Kind: string(kind), Keys: &droverv1.MapKeys{Order: []string{"number"}}}
		if got, want := kindWithKeys(w), string(kind)+" with key_order"; got != want {
			t.Errorf("an old node gets a task of kind %q, want %q", got, want)
		}
	}
}

// Map and reduce tasks get the order of the keys; where it is that of bytes, nobody gets it.
func TestTasksGetTheOrderOfKeys(t *testing.T) {
	b := newTestCluster(t, nil)
	b.fs.Input("hdfs:///in", 2, "n1")
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitUntil("the node is up", func() bool { id, _ := n.Registered(); return id > 0 })
	var mu sync.Mutex
	got := map[string][]string{} // by kind
	n.SetBehaviour(func(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
		mu.Lock()
		defer mu.Unlock()
		got[w.GetSpec().GetKind()] = w.GetSpec().GetKeys().GetOrder()
		return coordtest.Succeed(w)
	})
	b.submit(orderedJob("ordered"))
	b.waitForEnd("ordered", succeeded)
	mu.Lock()
	defer mu.Unlock()
	for _, kind := range []jobspec.StageKind{jobspec.KindMap, jobspec.KindReduce} {
		if want := []string{"text", "number desc"}; !slices.Equal(got[string(kind)], want) {
			t.Errorf("a %s task gets the order %q, want %q", kind, got[string(kind)], want)
		}
	}
}

func TestUnreadPartitionFileIsRefused(t *testing.T) {
	j := mapReduceJob("j", 3)
	j.Stages[1].PartitionFile = "keys.txt"
	_, err := newTestCluster(t, nil).trySubmit(j, "")
	if !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), `partition_file: "keys.txt" is a file of its author`) {
		t.Errorf("%v", err)
	}
}
