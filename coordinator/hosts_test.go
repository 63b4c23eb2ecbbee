package coordinator

import (
	"sync"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
)

// TestPlacesAreAskedAgainWhenAMapCannotRead has every map of a job fail once
// because no DataNode gives it its block: the locations are asked again, once
// for all of them.
func TestPlacesAreAskedAgainWhenAMapCannotRead(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	b.fs.Input("hdfs:///in", 6, "n1")
	var mu sync.Mutex
	failed := map[int32]bool{}
	b.node(coordtest.Info("n1"), func(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
		mu.Lock()
		defer mu.Unlock()
		if w.GetSpec().GetKind() == "map" && !failed[w.GetKey().GetTask()] {
			failed[w.GetKey().GetTask()] = true
			return coordtest.Fail(droverv1.Cause_CAUSE_INPUT, "no DataNode has the block")(w)
		}
		return coordtest.Succeed(w)
	})
	b.registered()
	b.submit(mapReduceJob("wc", 1))
	b.ends("wc", succeeded)
	b.until("the locations were asked again", func() bool { return b.fs.Orders("locate") > 1 })
	if n := b.fs.Orders("locate"); n != 2 {
		t.Errorf("the locations were asked %d times, want once at submission and once later", n)
	}
}
