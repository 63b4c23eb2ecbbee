package simcluster

import (
	"testing"
	"testing/synctest"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// A task that maintenance of its only node has suspended goes on once the window ends, however the end falls on the looks
// that the coordinator takes at drained nodes. One that came in the same pass of its loop as the end parked the task for a
// drain that was over: nothing resumed it.
func TestATaskGoesOnAfterMaintenance(t *testing.T) {
	dir := memoryFolder(t)
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, dir)
		defer func() {
			if t.Failed() || testing.Verbose() {
				t.Log(c.trace.String())
			}
		}()
		c.addServers(1)
		c.addMachine("n1")
		j := smallJob("j")
		j.spec.Stages[0].Command = command(time.Minute, 0, false, 0)
		c.accept(j)
		const ahead, length = time.Second, 4 * time.Second // the looks come every two seconds
		for range 16 {
			from := time.Now().Add(ahead).Truncate(time.Millisecond)
			if _, err := call(c.client.MaintainNode, &droverv1.MaintainNodeRequest{Node: "n1", FromMs: from.UnixMilli(), DurationMs: length.Milliseconds()}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(ahead + length + time.Second)
		}
		c.awaitEnd()
		c.closeAndJudge()
	})
}
