package coordinator

import (
	"errors"
	"strings"
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

func TestUnreadPartitionFileIsRefused(t *testing.T) {
	j := mapReduceJob("j", 3)
	j.Stages[1].PartitionFile = "keys.txt"
	_, err := newTestCluster(t, nil).trySubmit(j, "")
	if !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), `partition_file: "keys.txt" is a file of its author`) {
		t.Errorf("%v", err)
	}
}
