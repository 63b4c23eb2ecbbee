package coordinator

import (
	"sync"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
)

// TestReadFailureRelocatesInput lets every map of a job fail once because no
// DataNode serves its block: the input is located again, once for all maps.
func TestReadFailureRelocatesInput(t *testing.T) {
	t.Parallel()
	b := newTestCluster(t, nil)
	b.fs.Input("hdfs:///in", 6, "n1")
	var mu sync.Mutex
	failed := map[int32]bool{}
	b.addNode(coordtest.Info("n1"), func(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
		mu.Lock()
		defer mu.Unlock()
		if w.GetSpec().GetKind() == "map" && !failed[w.GetKey().GetTask()] {
			failed[w.GetKey().GetTask()] = true
			return coordtest.Fail(droverv1.Cause_CAUSE_INPUT, "no DataNode has the block")(w)
		}
		return coordtest.Succeed(w)
	})
	b.waitForNodes()
	b.submit(mapReduceJob("wc", 1))
	b.waitForEnd("wc", succeeded)
	b.waitUntil("the input is located again", func() bool { return b.fs.RequestCount("locate") > 1 })
	if n := b.fs.RequestCount("locate"); n != 2 {
		t.Errorf("the input was located %d times, want once at submission and once later", n)
	}
}
