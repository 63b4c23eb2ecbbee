package coordinator

import (
	"errors"
	"strings"
	"sync"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// keyedJob is a job whose map tasks need to know its keys.
func keyedJob(name string) *jobspec.Job {
	j := mapReduceJob(name, 3)
	j.Stages[0].Builtin = []string{"identity"}
	j.Stages[1].KeyFields, j.Stages[1].PartitionKeys = 2, []string{"g", "p"}
	return j
}

// oldNode is a node of before the feature: it refuses a kind that it does not know, as node/layout.go does.
func oldNode(name string) (*droverv1.NodeInfo, coordtest.Behaviour) {
	info := coordtest.Info(name)
	info.Features = nil
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
	var mu sync.Mutex
	var keys []*droverv1.MapKeys // of map tasks
	b.addNode(coordtest.Info("n1"), func(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
		if w.GetSpec().GetKind() == string(jobspec.KindMap) {
			mu.Lock()
			keys = append(keys, w.GetSpec().GetKeys())
			mu.Unlock()
		} else if w.GetSpec().GetKeys() != nil {
			t.Errorf("a reduce task gets %v", w.GetSpec().GetKeys())
		}
		return coordtest.Succeed(w)
	})
	b.waitUntil("the node is up", func() bool { id, _ := b.nodes[0].Registered(); return id > 0 })
	b.submit(keyedJob("keyed"))
	b.waitForEnd("keyed", succeeded)
	mu.Lock()
	defer mu.Unlock()
	if len(keys) == 0 {
		t.Fatal("no map task ran")
	}
	for _, k := range keys {
		if k.GetFields() != 2 || k.GetPartitionFields() != 0 || strings.Join(k.GetSplits(), " ") != "g p" {
			t.Errorf("a map task gets %v", k)
		}
	}
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

func TestUnreadPartitionFileIsRefused(t *testing.T) {
	j := mapReduceJob("j", 3)
	j.Stages[1].PartitionFile = "keys.txt"
	_, err := newTestCluster(t, nil).trySubmit(j, "")
	if !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), `partition_file: "keys.txt" is a file of its author`) {
		t.Errorf("%v", err)
	}
}
