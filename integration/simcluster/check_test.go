package simcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/raft"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/raftstore"
	"github.com/drover-run/drover/node/store"
)

// endLimit is the virtual time in which everything must have ended after the
// faults.
const endLimit = 20 * time.Minute

// isBusy reports whether another submission of the same job is in progress.
func isBusy(err error) bool { return strings.Contains(err.Error(), "being submitted") }

func call[Q, A any](fn func(context.Context, *connect.Request[Q]) (*connect.Response[A], error), req *Q) (*A, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	res, err := fn(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

func hasEnded(s droverv1.JobState) bool { return s >= droverv1.JobState_JOB_STATE_SUCCEEDED }

// awaitEnd waits until every job has ended, then until nothing is left on the
// machines, to which a node that was gone has come back.
func (c *cluster) awaitEnd() bool {
	if !c.await("every job has ended", c.openJobs) {
		return false
	}
	c.net.mend("")
	return c.await("the machines are empty", func() (left []string) {
		for _, m := range c.machines {
			for _, l := range m.leftovers() {
				left = append(left, m.name+" has "+l)
			}
		}
		return left
	}) && c.await("no unfinished output is left", c.unfinishedOutputs) && c.restores.awaitDecisions() && (!c.lostDisk || c.await("every server votes", c.notVoting))
}

// lookEvery is the time between two looks at what is still open: each costs what a user's does.
const lookEvery = 2 * time.Second

// await waits until open returns nothing.
func (c *cluster) await(what string, open func() []string) bool {
	for began := time.Now(); time.Since(began) < endLimit; time.Sleep(lookEvery) {
		if len(open()) == 0 {
			c.log("%s", what)
			return true
		}
	}
	for _, o := range open() {
		c.violated("%s after the faults: %s", endLimit, o)
	}
	return false
}

// openJobs returns the jobs that have not ended, and lets go of what the plan has suspended of them.
func (c *cluster) openJobs() (open []string) {
	list, err := call(c.client.ListJobs, &droverv1.ListJobsRequest{All: true})
	if err != nil {
		return []string{err.Error()}
	}
	for _, j := range list.Jobs {
		if !hasEnded(j.State) {
			open = append(open, fmt.Sprintf("job %s is %s: %s", j.Name, j.State, j.Message))
		}
	}
	if len(open) > 0 {
		c.release(list.Jobs)
	}
	return open
}

// check checks what the cluster says in the end against what happened.
func (c *cluster) check(p *plan) {
	list, err := call(c.client.ListJobs, &droverv1.ListJobsRequest{All: true})
	if err != nil {
		c.violated("list of jobs: %v", err)
		return
	}
	ends := c.countEnds()
	byName := map[string]uint64{}
	for _, j := range list.Jobs {
		if other, twice := byName[j.Name]; twice {
			c.violated("job %s was accepted twice, as %d and %d", j.Name, other, j.Job)
		}
		byName[j.Name] = j.Job
		if n := ends[j.Name]; n != 1 && !(n == 0 && c.restores.hadEnded(j.Job)) {
			c.violated("job %s has ended %d times", j.Name, n)
		}
	}
	for _, j := range p.jobs {
		id, ok := byName[j.spec.Name]
		switch {
		case !ok && c.accepted[j.spec.Name] == 0 && j.spec.Deadline != nil: // which had passed: see accept
		case !ok && c.accepted[j.spec.Name] == 0 && c.restores.hadPublished(j):
			c.checkOutput(j, droverv1.JobState_JOB_STATE_SUCCEEDED)
		case !ok && c.accepted[j.spec.Name] == 0:
			c.violated("job %s was not accepted", j.spec.Name)
		case !ok:
			c.violated("job %s was accepted and is gone", j.spec.Name)
		case id != c.accepted[j.spec.Name]:
			c.violated("job %s was accepted as %d and is %d", j.spec.Name, c.accepted[j.spec.Name], id)
		}
	}
	c.checkHistory(byName)
	c.checkNodes()
	c.checkFiles(p)
	for _, s := range list.Jobs {
		for _, j := range p.jobs {
			if j.spec.Name == s.Name {
				c.checkJob(j, s)
			}
		}
	}
}

// After which time a coordinator forgets a job that has ended, and in which it does.
const (
	retained = 25 * time.Hour
	upkeep   = 31 * time.Second
)

// checkKeys checks that what was submitted is known by its idempotency key when its job is forgotten and the
// coordinators have started again, which they do from snapshots.
func (c *cluster) checkKeys(p *plan) {
	for _, s := range c.servers {
		s.clock.Store(int64(retained))
	}
	time.Sleep(upkeep) // lists have those that were forgotten too, from the history
	c.restartServers()
	for _, j := range p.jobs {
		id := c.accepted[j.spec.Name]
		if id == 0 || j.spec.Deadline != nil { // it may be in the past
			continue
		}
		if again, ok := c.accept(j); ok && again != id {
			c.violated("job %s was accepted as %d, and under the same key as %d after it was forgotten", j.spec.Name, id, again)
		}
	}
}

// restartServers starts all coordinators again, from their snapshots and logs, and waits until one answers the user: a
// connection to the only one may have broken, and its client says so.
func (c *cluster) restartServers() {
	for _, s := range c.servers {
		s.crash(false)
		s.restart()
	}
	c.await("the coordinators answer", func() []string {
		if _, err := call(c.client.ListJobs, &droverv1.ListJobsRequest{All: true}); err != nil {
			return []string{err.Error()}
		}
		return nil
	})
}

// countEnds returns how often each job has ended, by the events.
func (c *cluster) countEnds() map[string]int {
	ends := map[string]int{}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	events, err := c.client.Events(ctx, connect.NewRequest(&droverv1.EventsRequest{}))
	if err != nil {
		c.violated("events: %v", err)
		return nil
	}
	defer events.Close()
	order := fnv.New64a()
	defer func() { c.order = order.Sum64() }()
	for events.Receive() {
		e := events.Msg()
		fmt.Fprintln(order, e.Index, e.Kind, e.Job, e.Task, e.Node)
		c.acked = max(c.acked, e.Index)
		c.effects[e.Index] = true
		c.checkLost(c.accepted[e.Job], e)
		switch e.Kind {
		case "job.succeeded", "job.failed", "job.stopped":
			ends[e.Job]++
		}
	}
	if err := events.Err(); err != nil {
		c.violated("events: %v", err)
	}
	return ends
}

// checkJob checks the end of one job and of its tasks.
func (c *cluster) checkJob(j plannedJob, s *droverv1.JobSummary) {
	want := droverv1.JobState_JOB_STATE_SUCCEEDED
	if j.fails {
		want = droverv1.JobState_JOB_STATE_FAILED
	}
	if j.wordCount != nil {
		c.checkOutput(j, c.restores.stateOfOutput(j, s.State))
	}
	if s.State != want && !c.restores.endsBecausePublished(j, s) && (j.stopAt == 0 && j.stopsAt == "" && !j.stopsAtOnce || s.State != droverv1.JobState_JOB_STATE_STOPPED) {
		c.violated("job %s is %s, want %s: %s", s.Name, s.State, want, s.Message)
	}
	tasks, err := call(c.client.ListTasks, &droverv1.ListTasksRequest{Job: fmt.Sprint(s.Job)})
	if err != nil {
		c.violated("tasks of %s: %v", s.Name, err)
		return
	}
	c.checkCounts(s, j)
	if n := j.tasks(); len(tasks.Tasks) != n {
		c.violated("job %s has %d tasks, want %d", s.Name, len(tasks.Tasks), n)
	}
	for _, t := range tasks.Tasks {
		committed := 0
		for _, a := range t.Attempts {
			if !a.Committed {
				continue
			}
			committed++
			if id := string(store.IDOf(a.Key)); !c.world.hasSucceeded(id) {
				c.violated("job %s: attempt %s is committed, and its program did not succeed", s.Name, id)
			}
		}
		lostSince := j.wordCount != nil && t.Stage == "count" && committed == 0 // after all reduces had fetched it
		if s.State == droverv1.JobState_JOB_STATE_SUCCEEDED && committed != 1 && !lostSince || committed > 1 {
			c.violated("job %s, %s: task %s/%d has %d committed attempts", s.Name, s.State, t.Stage, t.Task, committed)
		}
	}
}

// checkNodes checks that nothing counts as occupied on any node.
func (c *cluster) checkNodes() {
	list, err := call(c.client.ListNodes, &droverv1.ListNodesRequest{})
	if err != nil {
		c.violated("nodes: %v", err)
		return
	}
	for _, n := range list.Nodes {
		if u := n.Used; n.Attempts != 0 || u.GetCpu() != 0 || u.GetMemory() != 0 || u.GetIo() != 0 || len(n.Suspended) > 0 {
			c.violated("%s has nothing left, and counts as having %d attempts, %d suspended, which use %v", n.Info.GetName(), n.Attempts, len(n.Suspended), u)
		}
	}
}

// checkCounts checks that no task of a job that has ended counts as running or suspended, and that all tasks of one that
// has succeeded are counted as done, but for those whose output was lost after all had fetched it.
func (c *cluster) checkCounts(s *droverv1.JobSummary, j plannedJob) {
	job, err := call(c.client.GetJob, &droverv1.GetJobRequest{Job: fmt.Sprint(s.Job)})
	if err != nil {
		c.violated("job %s: %v", s.Name, err)
		return
	}
	for _, g := range job.Stages {
		if g.Running != 0 || g.Suspended != 0 {
			c.violated("job %s has ended, and of %s %d tasks count as running and %d as suspended", s.Name, g.Name, g.Running, g.Suspended)
		}
		mayBeLost := s.State != droverv1.JobState_JOB_STATE_SUCCEEDED || j.wordCount != nil && g.Name == "count"
		if !mayBeLost && (g.Pending != 0 || g.Done != g.Tasks) {
			c.violated("job %s has succeeded, and of %d tasks of %s %d are pending and %d done", s.Name, g.Tasks, g.Name, g.Pending, g.Done)
		}
	}
}

// historyLimit is how long after its end a job may come into the history: when its last attempt has ended, which a node
// reports, and a moment later.
const historyLimit = 2 * lease

// checkHistory checks that the history has each job once.
func (c *cluster) checkHistory(jobs map[string]uint64) {
	times := map[string]int{}
	for began := time.Now(); ; {
		time.Sleep(time.Second)
		past, err := call(c.history.ListPastJobs, &droverv1.ListPastJobsRequest{})
		if err != nil {
			c.violated("history: %v", err)
			return
		}
		clear(times)
		for _, j := range past.Jobs {
			times[j.Name]++
		}
		if len(times) >= len(jobs) || time.Since(began) >= historyLimit {
			break
		}
	}
	for name := range jobs {
		if times[name] != 1 && !(times[name] == 0 && c.restores.hadEnded(jobs[name])) {
			c.violated("the history has job %s %d times", name, times[name])
		}
	}
}

// checkLogs checks the logs of the stopped servers: each committed entry is in most of them, the same, and no entry has the
// index and term of another one. A server that the others could not reach lately may have others instead, of older terms.
func (c *cluster) checkLogs() {
	var logs []storedLog
	for _, s := range c.servers {
		l, err := readLog(filepath.Join(s.folder(), "raft"), c.acked)
		if err != nil {
			c.violated("log of %s: %v", s.id, err)
			continue
		}
		logs = append(logs, l)
	}
	for i := uint64(1); i <= c.acked; i++ {
		holders := map[uint64]int{} // by term of the entry
		data, compacted, newest := map[uint64][]byte{}, 0, uint64(0)
		for _, l := range logs {
			e := l.entries[i]
			if e == nil {
				if i < l.first {
					compacted++ // it is in a snapshot, so it was committed
				}
				continue
			}
			c.checkDecider(e)
			if other, ok := data[e.Term]; ok && !bytes.Equal(other, e.Data) {
				c.violated("entry %d of term %d differs between the servers", i, e.Term)
			}
			data[e.Term], newest = e.Data, max(newest, e.Term)
			holders[e.Term]++
		}
		if n := holders[newest] + compacted; 2*n <= len(logs) {
			c.violated("entry %d is committed, and %d of %d servers have it", i, n, len(logs))
		}
	}
}

// storedLog is the log of a server that has stopped.
type storedLog struct {
	first   uint64 // entries before it are in a snapshot
	entries map[uint64]*raft.Log
}

// readLog reads a log up to an entry.
func readLog(dir string, upTo uint64) (l storedLog, err error) {
	store, err := raftstore.Open(dir, raftstore.Options{NoSync: true})
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	first, err1 := store.FirstIndex()
	last, err2 := store.LastIndex()
	if err := errors.Join(err1, err2); err != nil {
		return l, err
	}
	l = storedLog{first: first, entries: map[uint64]*raft.Log{}}
	if last == 0 { // all it has is a snapshot, if it has one
		newest, err := newestSnapshot(dir)
		if err != nil {
			return l, err
		}
		l.first = newest + 1
	}
	for i := max(first, 1); i <= min(last, upTo); i++ {
		e := &raft.Log{}
		if err := store.GetLog(i, e); err != nil {
			return l, fmt.Errorf("entry %d: %w", i, err)
		}
		l.entries[i] = e
	}
	return l, nil
}

// newestSnapshot returns the index of the last entry in the newest snapshot of a server, 0 without one.
func newestSnapshot(dir string) (newest uint64, err error) {
	store, err := raft.NewFileSnapshotStore(dir, 100, io.Discard)
	if err != nil {
		return 0, err
	}
	all, err := store.List()
	for _, s := range all {
		newest = max(newest, s.Index)
	}
	return newest, err
}

// TestAnEmptyLogHasNothing reads the log of a server without entries: it has what its newest snapshot has.
func TestAnEmptyLogHasNothing(t *testing.T) {
	dir := t.TempDir()
	want := func(first uint64) {
		t.Helper()
		if l, err := readLog(dir, 20); err != nil || l.first != first || len(l.entries) != 0 {
			t.Errorf("it begins at %d with %d entries, %v; want %d with none", l.first, len(l.entries), err, first)
		}
	}
	want(1)
	store, err := raft.NewFileSnapshotStore(dir, 100, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for _, index := range []uint64{7, 12} {
		s, err := store.Create(1, index, 1, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		want(index + 1)
	}
}
