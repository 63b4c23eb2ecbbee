package simcluster

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
)

// Raft's transfer of the leadership to a server that is cut off fails after the time
// of an election. A second one at once, and the loss of the leadership during it, once
// left the server in a transfer for ever: when it led again it refused every
// entry, so the cluster stood still until the server was restarted.
func TestServerLeadsAgainAfterTransfersThatFailed(t *testing.T) {
	dir := memoryFolder(t)
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, dir)
		defer func() {
			if t.Failed() || testing.Verbose() {
				t.Log(c.trace.String())
			}
		}()
		c.addServers(3)
		for round := range 8 { // each one leaves it there with a chance of a half
			leader := c.awaitLeader(time.Minute, c.serverNames()...)
			others := slices.DeleteFunc(c.serverNames(), func(id string) bool { return id == leader })
			cut, next := others[0], others[1]
			c.net.isolate(leader, cut)
			if _, ok := c.accept(smallJob(fmt.Sprint("j", round))); !ok { // an entry that the server does not get
				break
			}
			for range 3 {
				c.transferTo(cut)
				time.Sleep(50 * time.Millisecond) // the one before has ended
			}
			c.net.isolate(leader, next)
			c.awaitLeader(time.Minute, cut, next)
			c.net.mend("")
			time.Sleep(time.Minute)
			c.transferTo(leader)
			if c.awaitLeader(time.Minute, c.serverNames()...) == "" {
				break
			}
		}
		c.close()
		for _, b := range c.bad {
			t.Error(b)
		}
	})
}

func smallJob(name string) plannedJob {
	return plannedJob{spec: &jobspec.Job{Name: name, Stages: []jobspec.Stage{{Name: "s0", Kind: jobspec.KindGroup, Tasks: 1, Command: command(time.Second, 0, false, 0),
		Resources: jobspec.Resources{CPU: 500, Memory: 64 << 20, IO: 1 << 20}}}}}
}

// leader returns the server that leads and answers, "" for none.
func (c *cluster) leader() string {
	list, err := call(c.operator.ListServers, &droverv1.ListServersRequest{})
	if err != nil {
		return ""
	}
	for _, s := range list.Servers {
		if s.Leader {
			return s.Id
		}
	}
	return ""
}

// awaitLeader waits until one of the servers leads, and returns it; "" after the limit,
// which violates what must hold.
func (c *cluster) awaitLeader(limit time.Duration, ids ...string) string {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(time.Second) {
		leads := c.leader()
		for _, id := range ids {
			if id == leads {
				return id
			}
		}
	}
	c.violated("none of %q leads and answers within %s", ids, limit)
	return ""
}
