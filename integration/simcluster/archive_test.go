package simcluster

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/backup"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/store"
)

// In a plan with a restore an archive is saved, later all coordinators are lost, and one is restored from the archive; others
// join it with empty disks. Users submit their jobs again, and an operator decides about the runs that the restored
// coordinator does not know. It has a source of its own, as the faults of rare_test.go have.

// plannedRestore is a restore of a plan.
type plannedRestore struct {
	savedAt  time.Duration // from the beginning
	at       time.Duration // when all coordinators are lost
	down     time.Duration // until one is restored
	join     time.Duration // until the others start after that
	silent   bool          // their machines are lost, not their processes alone
	server   int           // that is restored
	waiting  bool          // what was accepted before the archive is placed after it: all nodes are drained until then
	patience time.Duration // the longest that the operator takes to decide about a run
}

// restorePlans is how many plans there are for each with a restore.
const restorePlans = 32

// addRestore adds a restore to one of so many plans, or to each. None has it with a disk of a coordinator that is lost,
// old or damaged: the others must have what it had, and the restored one is alone at first.
func (p *plan) addRestore(always bool) {
	r := rand.New(rand.NewPCG(p.seed, 10))
	if r.IntN(restorePlans) > 0 && !always || slices.ContainsFunc(p.jobs, func(j plannedJob) bool { return j.losesDisk }) ||
		slices.ContainsFunc(p.faults, func(f plannedFault) bool {
			return slices.Contains([]faultKind{staleDisk, loseDisk, loseVoter, damageDisk}, f.kind)
		}) {
		return
	}
	x := &plannedRestore{at: p.whileAJobRuns(r), down: between(r, 50*time.Millisecond, 2*lease), silent: r.IntN(2) == 0, server: r.IntN(p.servers), patience: between(r, lease/20, 4*lease)}
	if r.IntN(2) == 0 {
		x.at += between(r, 50*time.Millisecond, 2*lease)
	}
	x.join = between(r, time.Millisecond, lease)
	x.savedAt = x.at - between(r, 50*time.Millisecond, 3*lease)
	if r.IntN(2) == 0 { // when a job has been accepted, and perhaps not yet placed
		x.savedAt = p.jobs[r.IntN(len(p.jobs))].at + between(r, time.Millisecond, lease/5)
	}
	if x.waiting = r.IntN(2) == 0; x.waiting {
		first := slices.MinFunc(p.jobs, func(a, b plannedJob) int { return cmp.Compare(a.at, b.at) }).at
		x.savedAt = max(x.savedAt, first+between(r, lease/50, lease/5))
		x.at = max(x.at, x.savedAt+between(r, 50*time.Millisecond, lease))
	}
	x.savedAt = max(0, min(x.savedAt, x.at-50*time.Millisecond))
	p.restore = x
	// A clock of leases that is set back is none of reality: see stepClock.
	if !x.waiting && r.IntN(3) == 0 && !slices.ContainsFunc(p.faults, func(f plannedFault) bool { return f.kind == stepClock }) {
		p.addReplaced(r)
	}
}

// addReplaced has what the archive has of a node be replaced on another one before the coordinators are lost, and the other
// one not hear of the restore for a while.
func (p *plan) addReplaced(r *rand.Rand) {
	x, first := p.restore, r.IntN(p.machines)
	x.at, x.down = x.savedAt+lease+between(r, lease/5, 2*lease), between(r, 50*time.Millisecond, lease/4)
	gone := plannedFault{kind: isolateNode, a: machineName(first), at: x.savedAt + between(r, lease/50, lease/5)}
	gone.length = x.at + x.down - gone.at
	other := plannedFault{kind: isolateNode, a: machineName((first + 1 + r.IntN(p.machines-1)) % p.machines), at: x.at - 10*time.Millisecond, length: lease + between(r, lease/5, lease)}
	p.faults = append(p.faults, gone, other)
}

// restoration is what a cluster does by a plannedRestore, and what the restored state knows.
type restoration struct {
	c       *cluster
	planned *plannedRestore // nil for none
	rng     *rand.Rand      // of the operator
	over    chan struct{}   // closed when a coordinator is restored, or none will be
	wg      sync.WaitGroup
	stop    chan struct{} // closed to end the operator

	mu        sync.Mutex
	archive   string                   // of a saved one; "" for none
	restored  bool                     // from here on all is as the restore left it
	lastJob   uint64                   // of the archive
	jobs      map[uint64]bool          // jobs of the archive, and whether they had ended
	published map[string][]os.FileInfo // by the job's name: what was at its output path at the restore
	cleaned   map[string]bool          // jobs, by name, that had not ended in the archive, and whose unfinished output was gone at the restore
	decisions map[string]*decision     // by the run
}

func newRestoration(c *cluster) *restoration {
	return &restoration{c: c, over: make(chan struct{}), stop: make(chan struct{}), jobs: map[uint64]bool{}, published: map[string][]os.FileInfo{}, cleaned: map[string]bool{}, decisions: map[string]*decision{}}
}

// begin takes the plan.
func (r *restoration) begin(p *plan) {
	r.planned, r.rng = p.restore, rand.New(rand.NewPCG(p.seed, 11))
	for _, m := range r.c.machines {
		r.c.drained[m.name] = p.restore != nil && p.restore.waiting
	}
}

// steps returns the steps of the restore.
func (r *restoration) steps() []step {
	x := r.planned
	if x == nil {
		return nil
	}
	begin := x.savedAt
	if x.waiting {
		begin -= min(begin, lease)
	}
	return []step{
		{begin, func() { r.c.wg.Go(r.save) }},
		{x.at, r.loseAll},
		{x.at + x.down, r.restore},
		{x.at + x.down + x.join, r.joinAll},
	}
}

// drainAll drains all nodes, as soon as there are any, or ends that.
func (r *restoration) drainAll(off bool) {
	for _, m := range r.c.machines {
		for range 20 {
			if r.c.drain(m.name, off, 0) == nil {
				break
			}
			time.Sleep(lease / 100)
		}
	}
}

// save saves the archive.
func (r *restoration) save() {
	if r.planned.waiting {
		r.drainAll(false)
		time.Sleep(time.Until(r.c.began.Add(r.planned.savedAt)))
		defer r.drainAll(true)
	}
	path, err := r.c.trySaveArchive()
	if err != nil {
		r.c.log("no archive is saved: %v", err)
		return
	}
	r.mu.Lock()
	r.archive = path
	r.mu.Unlock()
}

// loseAll loses all coordinators, if there is an archive.
func (r *restoration) loseAll() {
	r.mu.Lock()
	saved := r.archive != ""
	r.mu.Unlock()
	if !saved {
		r.c.log("there is no archive, so the coordinators live on")
		close(r.over)
		return
	}
	r.c.log("all coordinators are lost")
	for _, s := range r.c.servers {
		s.lose(r.planned.silent)
	}
}

// lose ends a server for good: nothing starts it until it is found.
func (s *server) lose(silent bool) {
	s.step.mu.Lock()
	s.lost = true
	s.step.mu.Unlock()
	s.crash(silent)
	s.restart() // nothing waits for a proposal any more
	if _, _, err := s.torn.take(0); err != nil {
		s.c.t.Fatal(err)
	}
}

// find has a lost server start in a folder, with a new disk.
func (s *server) find(dir string) {
	s.step.mu.Lock()
	s.lost, s.dir, s.disk = false, dir, nil
	s.step.mu.Unlock()
	s.restart()
}

// isLost reports whether the server is lost.
func (s *server) isLost() bool {
	s.step.mu.Lock()
	defer s.step.mu.Unlock()
	return s.lost
}

// restore restores one coordinator, and begins with the operator's decisions.
func (r *restoration) restore() {
	s := r.c.servers[r.planned.server]
	if !s.isLost() {
		return
	}
	r.mu.Lock()
	archive := r.archive
	r.mu.Unlock()
	r.restoreFrom(archive, s)
	close(r.over)
	r.wg.Go(r.operate)
}

// restoreFrom restores a server that is lost.
func (r *restoration) restoreFrom(archive string, s *server) {
	c := r.c
	dir := filepath.Join(c.dir, "restored-"+s.id)
	if _, err := backup.Restore(archive, backup.Target{Dir: dir, ID: s.id}); err != nil {
		c.t.Fatal(err)
	}
	known, active := r.learn(readFacts(c.t, dir))
	c.awaitQuiet()
	c.world.restoreFrom(r.lastOldJob(), known, active)
	r.mu.Lock()
	r.restored = true
	r.mu.Unlock()
	c.log("%s is restored", s.id)
	s.find(dir)
}

// joinAll starts the other coordinators with empty disks.
func (r *restoration) joinAll() {
	for _, s := range r.c.servers {
		if s.isLost() {
			s.emptyDisk()
			s.find(s.folder())
		}
	}
}

// readFacts returns the facts of a restored folder, without its first entry.
func readFacts(t testing.TB, dir string) *facts.Facts {
	snapshots, err := raft.NewFileSnapshotStore(filepath.Join(dir, "raft"), 100, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	list, err := snapshots.List()
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	_, file, err := snapshots.Open(list[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }() // it was only read
	f, err := facts.Restore(file)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// learn takes what the restored state knows, and returns the attempts that it knows, and those of them that have not ended.
func (r *restoration) learn(f *facts.Facts) (known, active map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, active = map[string]bool{}, map[string]bool{}
	r.lastJob = f.LastJob()
	for _, id := range f.JobIDs() {
		j := f.Job(id)
		r.jobs[id] = j.HasEnded()
		if j.Output != "" && !j.HasEnded() {
			_, missing := os.Stat(strings.TrimPrefix(j.Temporary, "file://"))
			r.cleaned[j.Name] = missing != nil
		}
		f.EachAttempt(j, func(k facts.Key, _ *facts.Task, a *facts.Attempt) {
			run := string(store.IDOf(k.Proto(a.Run)))
			if known[run] = true; a.State.IsActive() {
				active[run] = true
				r.c.log("the archive has %s on node %d", run, a.Node)
			}
		})
	}
	for name := range r.c.world.counts {
		r.published[name] = filesOf(r.c.t, r.c.outputOf(name))
	}
	return known, active
}

// filesOf returns what is in a folder, nil if there is none.
func filesOf(t testing.TB, dir string) (all []os.FileInfo) {
	list, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range list {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, info)
	}
	return all
}

// happened reports whether a coordinator was restored.
func (r *restoration) happened() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.restored
}

// hasLost reports whether a job was accepted, and the restored state does not have it.
func (r *restoration) hasLost(job uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, has := r.jobs[job]
	return r.restored && !has && job <= r.lastJob+replica.JobGap
}

// lastOldJob returns the last number of a job that the lost coordinators can have accepted.
func (r *restoration) lastOldJob() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lastJob + replica.JobGap
}

// hadEnded reports whether a job had ended in the archive, which has neither the history nor the files of such.
func (r *restoration) hadEnded(job uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.restored && r.jobs[job]
}

// hadPublished reports whether all of a job's result was in place at the restore.
func (r *restoration) hadPublished(j plannedJob) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.published[j.spec.Name], func(f os.FileInfo) bool { return f.Name() == "_SUCCESS" })
}

// endsBecausePublished reports whether a job has ended as one does of which a part of the result, or all of it, was in place
// when the coordinator was restored, or which had ended without a result: nothing is overwritten.
func (r *restoration) endsBecausePublished(j plannedJob, s *droverv1.JobSummary) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.State == droverv1.JobState_JOB_STATE_FAILED && strings.Contains(s.Message, "the folder of the job's unfinished output, is gone") {
		return r.cleaned[j.spec.Name]
	}
	return len(r.published[j.spec.Name]) > 0 && (s.State == droverv1.JobState_JOB_STATE_FAILED && strings.Contains(s.Message, "exists already") ||
		s.State != droverv1.JobState_JOB_STATE_SUCCEEDED && strings.Contains(s.Message, "restored from an archive"))
}

// stateOfOutput returns the state that a job's output is to be of: what was in place at the restore is there in the end, the same.
func (r *restoration) stateOfOutput(j plannedJob, state droverv1.JobState) droverv1.JobState {
	if !r.happened() {
		return state
	}
	now := filesOf(r.c.t, r.c.outputOf(j.spec.Name))
	r.mu.Lock()
	before := r.published[j.spec.Name]
	r.mu.Unlock()
	for _, f := range before {
		if !slices.ContainsFunc(now, func(n os.FileInfo) bool {
			return os.SameFile(n, f) && n.Size() == f.Size() && n.ModTime().Equal(f.ModTime())
		}) {
			r.c.violated("%s of the output of %s was there when the coordinator was restored, and is another file now, or gone", f.Name(), j.spec.Name)
		}
	}
	if r.hadPublished(j) {
		return droverv1.JobState_JOB_STATE_SUCCEEDED
	}
	return state
}

// submitAfterRestore submits a job again when a coordinator is restored, as each user does who does not know whether it is
// still there.
func (c *cluster) submitAfterRestore(p plannedJob, id uint64) {
	<-c.restores.over
	if !c.restores.happened() {
		return
	}
	c.prepare(p)
	if c.upload(p) {
		c.acceptAgain(p, id)
	}
}

// afterwards is what a user does after a submission that was refused.
type afterwards int

const (
	judge  afterwards = iota + 1 // as in a cluster that was never restored
	goOn                         // submits again
	giveUp                       // leaves it
)

// afterRefusal decides what a user does whose submission is refused when the coordinator was restored: a tenant and a file are
// sent again, a part of an output is removed, and a whole one is used.
func (r *restoration) afterRefusal(p plannedJob, err error, uploaded *bool) afterwards {
	switch {
	case !r.happened():
		return judge
	case !*uploaded && (isRefused(err) || errors.Is(err, fault.NotFound)) && !isBusy(err):
		*uploaded = true
		r.c.prepare(p)
		if !r.c.upload(p) {
			return giveUp
		}
		return goOn
	case !errors.Is(err, fault.Exists) || p.wordCount == nil:
		return judge
	case r.hadPublished(p):
		r.c.log("user: %s was done before the restore", p.spec.Name)
		return giveUp
	}
	r.c.log("user: removes a part of the output of %s", p.spec.Name)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := os.RemoveAll(r.c.outputOf(p.spec.Name)); err != nil {
		r.c.t.Fatal(err)
	}
	delete(r.published, p.spec.Name)
	return goOn
}

// decision is what the operator will do about a run.
type decision struct {
	adopt bool
	due   time.Time
}

// operate has the operator decide about unknown runs until the end.
func (r *restoration) operate() {
	for {
		select {
		case <-time.After(time.Second):
		case <-r.stop:
			return
		}
		res, err := call(r.c.operator.ListUnknownRuns, &droverv1.ListUnknownRunsRequest{})
		if err != nil {
			continue
		}
		for _, run := range res.Runs {
			r.consider(run)
		}
	}
}

// consider decides about a run when it is due. About one that cannot be adopted the operator tries that now and then.
func (r *restoration) consider(run *droverv1.UnknownRunInfo) {
	id := string(store.IDOf(run.Key))
	d := r.decisions[id]
	if d == nil {
		d = &decision{adopt: r.rng.IntN(8) == 0, due: time.Now().Add(between(r.rng, time.Millisecond, r.planned.patience))}
		d.adopt = d.adopt || run.Adoptable && r.rng.IntN(2) == 0
		r.decisions[id] = d
		r.c.log("operator: %s on %s is unknown, adoptable %v: %s", id, run.Node, run.Adoptable, run.WhyNot)
	}
	if time.Now().Before(d.due) {
		return
	}
	req := &droverv1.DecideUnknownRunRequest{Node: run.Node, Key: run.Key, Decision: droverv1.UnknownRunDecision_UNKNOWN_RUN_DECISION_KILL}
	if d.adopt {
		req.Decision = droverv1.UnknownRunDecision_UNKNOWN_RUN_DECISION_ADOPT
		r.c.world.adopt(id, true)
	}
	_, err := call(r.c.operator.DecideUnknownRun, req)
	refused := errors.Is(wire.FromError(err), fault.Conflict) || errors.Is(wire.FromError(err), fault.NotFound)
	switch {
	case err == nil && d.adopt:
		r.c.log("operator: %s is adopted", id)
	case err == nil:
		r.c.log("operator: %s is killed", id)
	default:
		r.c.log("operator: %s, adopt %v: %v", id, d.adopt, err)
	}
	if d.adopt && refused {
		r.c.world.adopt(id, false)
		d.adopt = r.rng.IntN(2) == 0 && run.Adoptable
	}
	d.due = time.Now().Add(between(r.rng, time.Millisecond, r.planned.patience))
}

// awaitDecisions waits until no run is unknown.
func (r *restoration) awaitDecisions() bool {
	if !r.happened() {
		return true
	}
	return r.c.await("no run is unknown", func() (left []string) {
		res, err := call(r.c.operator.ListUnknownRuns, &droverv1.ListUnknownRunsRequest{})
		if err != nil {
			return []string{err.Error()}
		}
		for _, run := range res.Runs {
			left = append(left, fmt.Sprintf("%s on %s is unknown", store.IDOf(run.Key), run.Node))
		}
		return left
	})
}

// end ends the operator, and checks that nobody else has ended what was of a job that is lost. Some of it ends for other
// reasons: what the lost coordinators had stopped, and what was on a node whose power was cut or that was given up.
func (r *restoration) end(p *plan) {
	close(r.stop)
	r.wg.Wait()
	r.c.world.mu.Lock()
	killed := r.c.world.after.killed
	r.c.world.mu.Unlock()
	for _, run := range killed {
		i := slices.IndexFunc(p.jobs, func(j plannedJob) bool { return j.spec.Name == run.proc.Spec.Labels["drover.job"] })
		if i < 0 || !r.hasLost(jobOf(run.id)) || r.decisions[run.id] != nil || r.c.world.machineOf(run).wasFenced() || p.speculate || p.jobs[i].mayBeStopped() {
			continue
		}
		r.c.violated("%s was killed, which the restored coordinator does not know, and no operator has decided so", run.id)
	}
}

// mayBeStopped reports whether attempts of a job may be stopped.
func (j plannedJob) mayBeStopped() bool {
	return j.fails || j.stopAt > 0 || j.stopsAt != "" || j.stopsAtOnce || j.wordCount != nil || j.spec.RuntimeBound > 0
}

// jobOf returns the number of an attempt's job.
func jobOf(id string) uint64 {
	n, err := strconv.ParseUint(strings.Split(id, ".")[0], 10, 64)
	if err != nil {
		panic("attempt " + id)
	}
	return n
}
