package simcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/node/store"
)

// saveArchive saves the cluster's state to a file.
func (c *cluster) saveArchive() string {
	path, err := c.trySaveArchive()
	if err != nil {
		c.t.Fatal(err)
	}
	return path
}

// trySaveArchive saves the cluster's state to a file, if there is a leader.
func (c *cluster) trySaveArchive() (path string, err error) {
	path = filepath.Join(c.dir, fmt.Sprintf("archive-%d", time.Since(c.began)))
	f, err := os.Create(path)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	stream, err := c.operator.SaveSnapshot(ctx, connect.NewRequest(&droverv1.SaveSnapshotRequest{}))
	if err != nil {
		return "", err
	}
	defer func() { _ = stream.Close() }() // it was received, or has failed
	for stream.Receive() {
		if _, err := f.Write(stream.Msg().GetData()); err != nil {
			c.t.Fatal(err)
		}
	}
	if err := stream.Err(); err != nil {
		return "", err
	}
	c.log("an archive is saved")
	return path, nil
}

// restoreArchive replaces the only coordinator by one that is restored.
func (c *cluster) restoreArchive(path string) {
	s := c.servers[0]
	s.lose(false)
	for _, done := range s.runs {
		<-done
	}
	c.restores.restoreFrom(path, s)
}

// unknownRuns returns what waits for an operator, by the name of its job.
func (c *cluster) unknownRuns() map[string]*droverv1.UnknownRunInfo {
	res, err := call(c.operator.ListUnknownRuns, &droverv1.ListUnknownRunsRequest{})
	if err != nil {
		c.violated("list of unknown runs: %v", err)
		return nil
	}
	all := map[string]*droverv1.UnknownRunInfo{}
	for _, r := range res.Runs {
		all[r.JobName] = r
	}
	return all
}

func (c *cluster) decide(r *droverv1.UnknownRunInfo, adopt bool) {
	d := droverv1.UnknownRunDecision_UNKNOWN_RUN_DECISION_KILL
	if adopt {
		d = droverv1.UnknownRunDecision_UNKNOWN_RUN_DECISION_ADOPT
		c.world.adopt(string(store.IDOf(r.Key)), true)
	}
	_, err := call(c.operator.DecideUnknownRun, &droverv1.DecideUnknownRunRequest{Node: r.Node, Key: r.Key, Decision: d})
	c.log("operator: %s of %s: %v", d, store.IDOf(r.Key), err)
	if err != nil {
		c.violated("%s of %s: %v", d, store.IDOf(r.Key), err)
	}
}

// A coordinator that was restored from an archive had the nodes remove what was placed after the
// archive was saved. Now they freeze it until an operator adopts or kills it, over restarts of
// daemons and coordinator, whether the node was registered after the archive or before.
func TestARestoredCoordinatorFreezesRunsThatItDoesNotKnow(t *testing.T) {
	for name, before := range map[string]bool{"node of the archive": true, "later node": false} {
		t.Run(name, func(t *testing.T) {
			dir := memoryFolder(t)
			synctest.Test(t, func(t *testing.T) { freezeUnknown(t, dir, before) })
		})
	}
}

func freezeUnknown(t *testing.T, dir string, nodeBefore bool) {
	c := newCluster(t, 1, dir)
	defer func() {
		if t.Failed() || testing.Verbose() {
			t.Log(c.trace.String())
		}
	}()
	c.addServers(1)
	drain := func(off bool) {
		if _, err := call(c.client.DrainNode, &droverv1.DrainNodeRequest{Node: "n1", Off: off}); err != nil {
			t.Fatal(err)
		}
	}
	if nodeBefore {
		c.addMachine("n1")
		time.Sleep(time.Second)
		drain(false)
	}
	long := func(name string) plannedJob {
		j := smallJob(name)
		j.spec.Stages[0].Exclusive, j.spec.Stages[0].Command = true, command(time.Minute, 0, true, 0)
		return j
	}
	for _, name := range []string{"adopted", "killed"} { // they wait for a node
		c.accept(long(name))
	}
	archive := c.saveArchive()
	if nodeBefore {
		drain(true)
	} else {
		c.addMachine("n1")
	}
	c.accept(long("unknown"))
	time.Sleep(10 * time.Second)
	m := c.machine("n1")
	if n := len(c.world.exclusiveOn(m)); n != 3 {
		t.Fatalf("%d programs run, want 3", n)
	}
	c.restoreArchive(archive)
	time.Sleep(2 * lease)
	for round := range 3 {
		for _, id := range c.world.exclusiveOn(m) {
			if frozen, _ := m.kernel.Frozen(context.Background(), id); !frozen {
				t.Errorf("round %d: %s is not frozen", round, id)
			}
		}
		runs := c.unknownRuns()
		if len(runs) != 3 || !runs["adopted"].GetAdoptable() || !runs["killed"].GetAdoptable() || runs["unknown"].GetAdoptable() {
			t.Fatalf("round %d: unknown runs: %v", round, runs)
		}
		if n := len(c.world.exclusiveOn(m)); n != 3 {
			t.Errorf("round %d: %d programs, want the 3 frozen ones", round, n)
		}
		if round == 0 {
			m.crash(false)
			m.restart()
		} else {
			c.servers[0].crash(false)
			c.servers[0].restart()
		}
		time.Sleep(2 * lease)
	}
	if nodeBefore {
		drain(true)
	}
	runs := c.unknownRuns()
	c.decide(runs["adopted"], true)
	c.decide(runs["killed"], false)
	c.decide(runs["unknown"], false)
	if !c.awaitEnd() {
		return
	}
	if runs := c.unknownRuns(); len(runs) > 0 {
		t.Errorf("unknown runs in the end: %v", runs)
	}
	for id, want := range map[string]bool{"1.0.0.1.1": true, "2.0.0.1.1": false, "2.0.0.2.1001": true, "3.0.0.1.1": false} {
		if got := c.world.hasSucceeded(id); got != want {
			t.Errorf("program of %s succeeded: %v, want %v", id, got, want)
		}
	}
	c.close()
	for _, b := range c.bad {
		t.Error(b)
	}
}

// A node had a lease again as soon as it had registered with a restored coordinator, and let an attempt run on of which
// that coordinator did not know, until the first full set arrived: beside the attempt that was placed elsewhere.
func TestNoUnknownRunActsBesideTheAttemptOfARestoredCoordinator(t *testing.T) {
	dir := memoryFolder(t)
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, dir)
		defer func() {
			if t.Failed() {
				t.Log(c.trace.String())
			}
		}()
		c.addServers(1)
		j := smallJob("j")
		j.spec.Stages[0].Exclusive, j.spec.Stages[0].Command = true, command(10*lease, 0, true, 0)
		c.accept(j) // it waits for a node
		archive := c.saveArchive()
		c.addMachine("n1")
		time.Sleep(lease)
		if n := len(c.world.exclusiveOn(c.machine("n1"))); n != 1 {
			t.Fatalf("%d programs run, want 1", n)
		}
		c.net.isolate("n1", c.parties()...)
		c.restoreArchive(archive)
		c.addMachine("n2")
		time.Sleep(3 * lease)
		if n := len(c.world.exclusiveOn(c.machine("n2"))); n != 1 {
			t.Fatalf("%d programs run elsewhere, want 1", n)
		}
		c.net.mend("")
		c.net.slowLink(c.servers[0].id, "n1", lease/10) // what is wanted comes long after the registration
		time.Sleep(3 * lease)
		runs := c.unknownRuns()
		if len(runs) != 1 {
			t.Fatalf("unknown runs: %v", runs)
		}
		c.decide(runs["j"], false)
		c.awaitEnd()
		c.closeAndJudge()
	})
}

// An attempt of an exclusive task that the archive knows went on as soon as its node had registered with the restored
// coordinator, while the attempt that had replaced it since the archive was saved still ran by a lease of the lost one.
func TestNoAttemptOfAnArchiveGoesOnBesideTheOneThatReplacedIt(t *testing.T) {
	dir := memoryFolder(t)
	synctest.Test(t, func(t *testing.T) {
		c := newExclusive(t, dir, 20*lease)
		time.Sleep(time.Second)
		first, second := c.machine("n1"), c.machine("n2")
		if len(c.world.exclusiveOn(first)) == 0 {
			first, second = second, first
		}
		archive := c.saveArchive()
		c.net.isolate(first.name, c.parties()...)
		time.Sleep(3 * lease)
		if n := len(c.world.exclusiveOn(second)); n != 1 {
			t.Fatalf("%d programs run elsewhere, want 1", n)
		}
		c.net.isolate(second.name, c.parties()...)
		c.restoreArchive(archive)
		c.net.mend(first.name)
		c.net.isolate(second.name, c.parties()...)
		time.Sleep(3 * lease)
		for _, id := range c.world.exclusiveOn(first) {
			if frozen, _ := first.kernel.Frozen(context.Background(), id); frozen {
				t.Errorf("%s does not go on", id)
			}
		}
		c.net.mend("")
		time.Sleep(3 * lease)
		runs := c.unknownRuns()
		if len(runs) != 1 {
			t.Fatalf("unknown runs: %v", runs)
		}
		c.decide(runs["j"], false)
		c.awaitEnd()
		c.closeAndJudge()
	})
}
