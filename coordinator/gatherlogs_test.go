package coordinator

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

func gatheringJob(name string) *jobspec.Job {
	j := groupJob(name, 2)
	j.GatherLogs = "hdfs:///logs/"
	return j
}

func TestLogsAreGatheredWhereAttemptsRan(t *testing.T) {
	b := newTestCluster(t, nil)
	b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitForNodes()
	id := b.submit(gatheringJob("a"))
	b.waitForEnd("a", succeeded)
	b.waitUntil("the logs are gathered", func() bool { return b.job("a").LogsGathered })
	folder := fmt.Sprintf("hdfs:///logs/a-%d", id)
	if got := b.job("a").Logs; got != folder {
		t.Errorf("the logs are in %q, want %q", got, folder)
	}
	if files := b.fs.Files(); !slices.Equal(files, []string{folder + "/n1.log"}) {
		t.Errorf("files: %v", files)
	}
	if texts := b.events("job.logs_gathered"); !slices.Equal(texts, []string{folder}) {
		t.Errorf("events: %q", texts)
	}
	b.submit(groupJob("b", 1))
	if got := b.waitForEnd("b", succeeded); got.Logs != "" || b.fs.RequestCount("gather") != 1 {
		t.Errorf("a job that did not ask for it: %q, %d requests", got.Logs, b.fs.RequestCount("gather"))
	}
}

// What a file system refuses is said; what is away is tried again, also by the next leader.
func TestLogsThatCannotBeGathered(t *testing.T) {
	b := newTestCluster(t, nil)
	b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitForNodes()
	answer := func(class error) {
		b.fs.FailWith(func(r *droverv1.NodeRequest) (error, string) {
			if r.GetGatherLogs() == nil {
				return nil, ""
			}
			return class, "the NameNode says no"
		})
	}
	answer(fault.Denied)
	b.submit(gatheringJob("denied"))
	b.waitForEnd("denied", succeeded)
	b.waitUntil("the refusal is known", func() bool { return strings.Contains(b.job("denied").LogsMissing, "says no") })
	if got := b.job("denied").LogsMissing; !strings.HasPrefix(got, "those of n1: ") {
		t.Errorf("missing: %q, want the node's name", got)
	}

	answer(fault.Unavailable)
	b.submit(gatheringJob("away"))
	b.waitForEnd("away", succeeded)
	if got := b.job("away"); got.LogsGathered || got.LogsMissing != "" {
		t.Errorf("while it is tried: gathered %v, missing %q", got.LogsGathered, got.LogsMissing)
	}
	b.kill()
	answer(nil)
	b.start()
	b.waitUntil("the next coordinator gathered them", func() bool { return b.job("away").LogsGathered })
}

// Nodes keep the logs of a job until they are gathered, however long that takes. What was removed before would be missing
// in silence.
func TestLogsAreKeptUntilGathered(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.KeepLogs = -1 })
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitForNodes()
	b.fs.FailWith(func(r *droverv1.NodeRequest) (error, string) {
		if r.GetGatherLogs() == nil {
			return nil, ""
		}
		return fault.Unavailable, "the NameNode is away"
	})
	id := b.submit(gatheringJob("a"))
	b.waitForEnd("a", succeeded)
	wanted := func() (ofJob, ofOthers int) {
		for _, w := range n.Wanted() {
			if w.GetKey().GetJob() == id {
				ofJob++
			} else {
				ofOthers++
			}
		}
		return ofJob, ofOthers
	}
	for _, other := range []string{"b", "c"} { // the second one is seen by another leader
		b.submit(groupJob(other, 1))
		b.waitForEnd(other, succeeded)
		b.waitUntil("the logs of a job that ended later have expired", func() bool {
			_, ofOthers := wanted()
			return ofOthers == 0
		})
		if kept, _ := wanted(); kept != 2 || b.job("a").LogsGathered {
			t.Fatalf("%d attempts are kept for logs that are not gathered, want 2", kept)
		}
		sets := n.FullSets()
		b.kill()
		b.start()
		b.waitUntil("the next leader's set", func() bool { return n.FullSets() > sets })
	}
	b.fs.FailWith(nil)
	b.waitUntil("the logs are gathered", func() bool { return b.job("a").GetLogsGathered() })
	b.waitUntil("the logs have expired", func() bool { return len(n.Wanted()) == 0 })
}

func TestGatherLogsNeedsANodeThatReachesTheFolder(t *testing.T) {
	b := newTestCluster(t, nil)
	info := coordtest.Info("n1")
	info.Schemes = []string{"hdfs"}
	b.addNode(info, coordtest.Succeed)
	b.waitForNodes()
	j := gatheringJob("far")
	j.GatherLogs = "file:///var/log/jobs"
	if _, err := b.trySubmit(j, ""); err == nil || !strings.Contains(err.Error(), "gather_logs file:///var/log/jobs: no node of this cluster reaches file://") {
		t.Errorf("submission: %v", err)
	}
}
