package simcluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// mutation is a bug put into the product on purpose: in file, from the root of the
// repository, old becomes new.
type mutation struct {
	what      string
	file      string
	old, with string
}

// mutations are bugs that a simulation ought to find.
var mutations = slices.Concat([]mutation{
	// Leases.
	{"a node ignores the end of its lease", "node/lease.go",
		"hasLease = a.d.exclusive.lease.remaining() > 0", "hasLease = a.d.exclusive.lease.remaining() > -1<<62"},
	{"a node's lease goes by its wall clock", "node/lease.go",
		"g.lease.now = cfg.SinceBoot", "g.lease.now = func() time.Duration { return time.Duration(cfg.Now().UnixNano()) }"},
	{"a node's lease is three times too long", "node/lease.go",
		"leaseShare    = 66", "leaseShare    = 300"},
	{"a lease counts from the answer, not from the question", "node/lease.go",
		"l.end = max(l.end, sent+", "l.end = max(l.end, now+"},
	{"a new daemon believes that it has a lease", "node/lease.go",
		"lease: lease{now: watchdog.SinceBoot},", "lease: lease{now: watchdog.SinceBoot, end: 2 * time.Hour},"},
	{"nodes are lost after a third of their lease", "coordinator/loop.go",
		"l.c.sessions.endLeases(now, l.c.cfg.Lease)", "l.c.sessions.endLeases(now, l.c.cfg.Lease/3)"},
	{"a new leader gives no time to the nodes", "coordinator/sessions.go",
		"epoch: n.Epoch, lastReport: now, seen", "epoch: n.Epoch, lastReport: now.Add(-time.Hour), seen"},
	{"a lost node is never given up", "coordinator/loop.go",
		"l.c.sessions.endLeases(now, l.c.cfg.Lease)", "l.c.sessions.endLeases(now, 1000*l.c.cfg.Lease)"},
	// Fencing.
	{"attempts of an older epoch live on", "node/attempts.go",
		"} else if old.Epoch != id.Epoch || old.Node != id.Node {\n\t\torphans", "} else if old.Node != id.Node {\n\t\torphans"},
	{"a node that came back keeps its epoch", "coordinator/facts/apply_cluster.go",
		"c.Epoch = max(old.Epoch, min(nf.GetEpoch(), math.MaxUint64>>1)) + 1", "_ = math.MaxUint64 >> 1"},
	{"a node believes a replaced coordinator", "node/store/identity.go",
		"if got < have {", "if got+1000 < have {"},
	{"a decision of an earlier leader counts", "coordinator/replica/replica.go",
		"case e.GetTerm() != 0 && e.GetTerm() != l.Term:", "case e.GetTerm() > l.Term+1000:"},
	{"a new leader decides before it has applied what others decided", "coordinator/replica/replica.go",
		"if err := awaitFuture(ctx, r.raft.Barrier(barrierTimeout)); err != nil {", "if err := ctx.Err(); err != nil {"},
	// The check of placement for a task that is not pending is not here: a leader follows its own decisions before the next one,
	// so its scheduler places none such. TestStaleActionsAreDroppedWithAReason and TestAnOperatorDecidesAboutUnknownRuns have it.
	{"a task that is placed stays pending", "coordinator/facts/apply_decision.go",
		"c.State = TaskActive", "c.State = TaskPending"},
	// Commit.
	{"each success is committed", "coordinator/facts/apply_attempts.go",
		"ended.State == AttemptSucceeded && t.Winner == 0 &&", "ended.State == AttemptSucceeded &&"},
	{"a failed program has succeeded", "node/exit.go",
		"\tif f == nil {\n\t\tend.Phase,", "\tif f == nil || f.cause == droverv1.Cause_CAUSE_EXIT {\n\t\tend.Phase,"},
	{"a lost attempt leaves its task active", "coordinator/facts/apply_attempts.go",
		"} else if t.Winner == 0 && !hasActiveAttempt(t) && t.State == TaskActive {", "} else if ended.State != AttemptLost && t.Winner == 0 && !hasActiveAttempt(t) && t.State == TaskActive {"},
	{"a job has succeeded with its first stage", "coordinator/facts/apply_jobs.go",
		"j.State == droverv1.JobState_JOB_STATE_COMMITTING || !j.isComplete() {", "j.State == droverv1.JobState_JOB_STATE_COMMITTING || j.Stages[0].Done < j.Stages[0].Tasks {"},
	{"a job is published without its last part", "coordinator/output.go",
		"for t := range j.Stages[i].Tasks {", "for t := range j.Stages[i].Tasks - 1 {"},
	{"a job is published with the parts of first attempts", "coordinator/output.go",
		"k := facts.Key{Job: j.ID, Stage: int32(i), Task: t, Attempt: w.Attempt}", "k := facts.Key{Job: j.ID, Stage: int32(i), Task: t, Attempt: 1}"},
	{"a commit that is repeated fails", "node/requests/output.go",
		"\tcase toErr == nil:\n\t\treturn true, nil\n", "\tcase toErr == nil:\n\t\treturn false, fault.New(fault.Exists, \"%s exists\", target)\n"},
	{"a stop ends a job while its result is published", "coordinator/facts/apply_jobs.go",
		"j.State == droverv1.JobState_JOB_STATE_COMMITTING && s.GetAfterCommit() {", "j.State == droverv1.JobState_JOB_STATE_COMMITTING && s.GetJob() == 0 {"},
	{"what a job wrote that did not succeed stays", "coordinator/output.go",
		"DeletePathRequest{Path: j.Temporary}", "DeletePathRequest{Path: j.Temporary + \".old\"}"},
	// Suspension.
	{"a task that resumes is charged twice", "coordinator/facts/apply_levels.go",
		"nodesOf(en.f).charge(a.Node, a.Occupied, -1)\n\t\tc.Occupied = j.Demand", "c.Occupied = j.Demand"},
	{"a task that moves stays charged to its node", "coordinator/facts/apply_migrate.go",
		"nodesOf(en.f).charge(a.Node, a.Occupied, -1)\n\tdelete(en.f.onNode[a.Node], k)", "delete(en.f.onNode[a.Node], k)"},
	{"a task that ends suspended stays counted as that", "coordinator/facts/apply_attempts.go",
		"\tif a.Level != droverv1.Level_LEVEL_RUNNING {\n\t\ts.Suspended--", "\tif false {\n\t\ts.Suspended--"},
	{"the dump of a task that has moved stays", "coordinator/facts/apply_levels.go",
		"change.Nodes, change.Run = []int32{c.Suspension.ImageNode}, c.Suspension.ImageRun", "_ = change.Nodes"},
	// Map outputs.
	{"the output of a lost node counts", "coordinator/facts/apply_attempts.go",
		"t.State != TaskDone || t.Winner != k.Attempt || !j.OutputsNeeded(int(k.Stage)) {", "true {"},
	{"a lost output counts against the one that replaced it", "coordinator/facts/job.go",
		"if t.State != TaskDone || t.Winner != o.GetAttempt() {", "if t.State != TaskDone || o.GetAttempt() == 0 {"},
	{"a stage starts when the first task of the one before it is done", "scheduler/queue.go",
		"if before.Done < need || ", "if before.Done < min(1, need) || "},
	{"a reduce starts early while a map is suspended", "scheduler/queue.go",
		"&& before.Pending == 0 && before.Suspended == 0 {", "&& before.Pending == 0 {"},
	{"a reduce that waits hears of no more outputs", "coordinator/outputchanges.go",
		"if int(k.Stage) == j.ReduceStage() && a.State == facts.AttemptLive {", "if int(k.Stage) < 0 && a.State == facts.AttemptLive {"},
	// Replay.
	{"an idempotency key is forgotten at once", "coordinator/facts/apply_jobs.go",
		"\ten.f.keys[j.Key] = keyedJob{j.ID, j.Name}\n", ""},
	{"a snapshot has no idempotency keys", "coordinator/facts/snapshot.go",
		"for _, k := range f.keyRing {", "for _, k := range f.keyRing[:0] {"},
	{"a snapshot has no tasks that have ended", "coordinator/facts/snapshot_records.go",
		"l.Sealed = &sealedLine{ch.sealed.heads, ch.sealed.reports}", "l.Sealed = nil"},
	{"a snapshot has no files", "coordinator/facts/snapshot.go",
		"range slices.Sorted(maps.Keys(f.blobs)) {", "range slices.Sorted(maps.Keys(f.blobs))[:0] {"},
	{"a new leader does not go on with what the one before it began", "coordinator/follow.go",
		"\t\tl.followJob(ctx, f, j)\n\t\tl.deadlines.track(j)\n\t\tif j.Live > 0", "\t\tl.deadlines.track(j)\n\t\tif j.Live > 0"},
	{"a server forgets its vote and its term", "coordinator/raftstore/store.go",
		"return s.Set(key, binary.BigEndian.AppendUint64(nil, val))", "_ = binary.BigEndian.AppendUint64(nil, val)\n\treturn nil"},
	{"an entry is acknowledged before it is synced", "coordinator/raftstore/store.go",
		"return &Store{log: logDB,", "logDB.NoSync = true\n\treturn &Store{log: logDB,"},
	{"a vote and a term are not synced", "coordinator/raftstore/store.go",
		"return &Store{log: logDB,", "stable.NoSync = true\n\treturn &Store{log: logDB,"},
	{"the history forgets what was not yet written", "coordinator/pastrecorder.go",
		"if list[i].Index > applied && r.broken == nil {", "if list[i].Index > applied+20 && r.broken == nil {"},
	{"a write of the log that failed counts", "coordinator/replica/watched_store.go",
		"\t\terr = w.fault(true)\n\t}\n\treturn w.note(err)", "\t\terr = w.fault(true)\n\t}\n\treturn nil"},
	// That a node's store syncs nothing is not here: a machine that lost all of it is a new node, and so its tasks are lost.
	{"records of attempts are not synced", "node/store/store.go",
		"s.records.write = s.write", "s.records.write = func(f func(*bbolt.Tx) error) error { db.NoSync = true; defer func() { db.NoSync = false }(); return s.write(f) }"},
	{"a node never hears again of what it may have stored", "node/store/wanted.go",
		"s.refetch.Store(true)", "s.refetch.Store(false)"},
	{"a write that a loss of power cut short is damage", "internal/boltpages/pages.go",
		"if !p.replaced(damaged) {", "if p.replaced(damaged) {"},
	{"damage of a log is believed", "coordinator/raftstore/verify.go",
		"if got, want := recordSum(index, b[:n]), binary.BigEndian.Uint32(b[n:]); got != want {", "if got, want := recordSum(index, b[:n]), binary.BigEndian.Uint32(b[n:]); got != want && want == 0 {"},
	// Several servers.
	{"a file is stored when one server has it", "coordinator/files.go",
		"for ; asked > 0 && have < voters/2+1; asked-- {", "for have = voters; asked > 0 && have < voters/2+1; asked-- {"},
	{"a server that lost its disk begins a cluster", "coordinator/peers.go",
		"return nil, p.join(ctx, s.GetLeaderAddress(), true)", "return cfg.Servers, nil"},
	{"a server that lost its disk never votes again", "coordinator/replica/members.go",
		"return classifyRaftError(r.raft.AddVoter(raft.ServerID(p.ID), raft.ServerAddress(p.Address), 0, memberLimit).Error())", "return nil"},
	{"a server never fetches the files that it lacks", "coordinator/files.go",
		"for i, f := range k.missing() {", "for i, f := range k.missing()[:0] {"},
	// Protocol.
	{"a new session begins with changes alone", "node/session.go",
		"full := true", "full := false"},
	// That a node reports what it does not have is not here: it is to remove only attempts that have ended for the coordinator, which
	// takes no notice of the report. One that has not ended is in the node's set, with a stop as its goal. TestGoneIsReportedUntilAnswered has it.
	{"what a full set does not list stays", "node/wanted.go",
		"for _, a := range d.attempts.unlisted(put) {", "for _, a := range d.attempts.unlisted(put)[:0] {"},
	{"a watch skips a change", "coordinator/wantedsets.go",
		"slices.BinarySearchFunc(s.log, rev+1,", "slices.BinarySearchFunc(s.log, rev+2,"},
	{"a new daemon knows no containers", "node/adopt.go",
		"a.container.set(containers[id.String()])", "_ = containers"},
	{"a cgroup is left", "node/cgroup.go",
		"if e := g.cfg.Enforcer; e != nil {\n\t\tif err := e.Remove(", "if e := g.cfg.Enforcer; e != nil && len(g.rec.End) == 0 {\n\t\tif err := e.Remove("},
}, restoreMutations)

// restoreMutations are bugs that only plans with a restore can find, which few plans are: those that have missed one are
// followed by such plans alone.
var restoreMutations = []mutation{
	{"a node does not freeze what a restored coordinator does not know", "node/store/wanted.go",
		"max(w.GetLevel(), droverv1.Level_LEVEL_FROZEN)", "w.GetLevel()"},
	{"a restored coordinator skips no runs", "coordinator/facts/apply_restored.go",
		"return 1 + s.f.restores.SkippedRuns", "return 1"},
	{"a restored coordinator has the epoch of the lost one", "coordinator/facts/apply_restored.go",
		"ClusterEpoch: max(en.f.restores.ClusterEpoch+1, r.GetClusterEpoch()),", "ClusterEpoch: en.f.restores.ClusterEpoch,"},
	{"a restored coordinator grants leases at once", "coordinator/sessions.go",
		"if now.Before(s.leasesFrom) {", "if now.Before(time.Time{}) {"},
}

// root is the repository's.
const root = "../.."

// mutate returns the mutated text of its file.
func (m mutation) mutate(text []byte) ([]byte, error) {
	if n := bytes.Count(text, []byte(m.old)); n != 1 {
		return nil, fmt.Errorf("mutation %q: its text is %d times in %s, want 1: bring the mutation in line with the code", m.what, n, m.file)
	}
	return bytes.Replace(text, []byte(m.old), []byte(m.with), 1), nil
}

// TestMutationsApply keeps the list in line with the code.
func TestMutationsApply(t *testing.T) {
	for _, m := range mutations {
		text, err := os.ReadFile(filepath.Join(root, m.file))
		if err == nil {
			_, err = m.mutate(text)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// mutationsVar is 1 for all mutations, or a regular expression for the names of those to try.
const mutationsVar = "DROVER_MUTATIONS"

// mutationCPU is the processor time that simulations of one size have to find a mutation.
const mutationCPU = 12 * time.Second

// rareCPU is the processor time that mixed plans have more for a mutation that no size has found.
const rareCPU = 8 * mutationCPU

// mutationSizes are the sizes of plans that are compared.
var mutationSizes = []planSize{mixedPlans, largePlan}

// mutationRuns is how many simulations a process runs that finds nothing.
const mutationRuns = 25

// TestMutations says how often simulations find each of the mutations, and what that costs. It compiles the product once
// for each.
func TestMutations(t *testing.T) {
	only := os.Getenv(mutationsVar)
	if only == "" {
		t.Skipf("not proved here: that the simulations find bugs put in on purpose; it compiles the product for each, set %s=1", mutationsVar)
	}
	names, err := regexp.Compile(only)
	if err != nil {
		t.Fatalf("%s: %v", mutationsVar, err)
	}
	var tried []mutation
	for _, m := range mutations {
		if only == "1" || names.MatchString(m.what) {
			tried = append(tried, m)
		}
	}
	results := make([][]found, len(tried))
	g := errgroup.Group{}
	g.SetLimit(runtime.NumCPU())
	for i, m := range tried {
		g.Go(func() (err error) {
			if results[i], err = m.find(t.TempDir()); err != nil {
				return fmt.Errorf("%s: %w", m.what, err)
			}
			for k, size := range mutationSizes {
				t.Logf("%s: %s: %s", size, m.what, results[i][k].first)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("simulations that found a bug / all, and seconds of a processor for each time that it was found, with plans of each size in %s; %s more for a bug that no size has found\n\n", mutationCPU, rareCPU)
	for _, size := range mutationSizes {
		fmt.Printf("%-14s", size.String())
	}
	fmt.Println("bug")
	for i, m := range tried {
		for _, f := range results[i] {
			fmt.Printf("%4d/%-4d %4s ", f.times, f.simulations, f.cost())
		}
		fmt.Println(m.what)
	}
	fmt.Println()
	for k, size := range mutationSizes {
		fmt.Println(summary(size, k, results))
	}
	for _, what := range missed(tried, results) {
		t.Errorf("plans of no size find that %s: find it, or replace the bug if nobody can see it", what)
	}
}

// missed returns the mutations that simulations of no size have found. That one size misses some is no failure: it has
// few large plans, or small ones alone.
func missed(tried []mutation, results [][]found) (names []string) {
	for i, m := range tried {
		if !slices.ContainsFunc(results[i], func(f found) bool { return f.times > 0 }) {
			names = append(names, m.what)
		}
	}
	return names
}

// A mutation is missed if no size finds it, whatever the others do.
func TestMissedMutations(t *testing.T) {
	tried := []mutation{{what: "a"}, {what: "b"}, {what: "c"}, {what: "d"}}
	none, some := found{simulations: 9}, found{simulations: 9, times: 1}
	if got := missed(tried, [][]found{{some, some}, {none, none}, {none, some}, {some, none}}); !slices.Equal(got, []string{"b"}) {
		t.Errorf("missed %v, want b alone", got)
	}
}

// summary returns how many bugs the plans of a size, the k-th, find.
func summary(size planSize, k int, results [][]found) string {
	n, all, cpu := 0, 0, time.Duration(0)
	for _, r := range results {
		if r[k].times > 0 {
			n++
		}
		all, cpu = all+r[k].simulations, cpu+r[k].cpu
	}
	each := cpu.Seconds() / float64(max(1, all))
	return fmt.Sprintf("%s: %d of %d bugs found; %.3f s of a processor a simulation, so %.0f an hour on each", size, n, len(results), each, 3600/each)
}

// found is how often simulations found a mutation.
type found struct {
	simulations, times int
	cpu                time.Duration
	first              string // the seed that found it, and what was violated
}

func (f found) cost() string {
	if f.times == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", f.cpu.Seconds()/float64(f.times))
}

// find runs simulations of the mutated product, of each size, and more of them if none has found it.
func (m mutation) find(dir string) (all []found, err error) {
	program, err := compileExact(dir, m)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.Remove(program)) }() // many of them are large
	for _, size := range mutationSizes {
		f := found{first: "MISSED"}
		for f.cpu < mutationCPU {
			if err := f.run(program, size); err != nil {
				return nil, err
			}
		}
		all = append(all, f)
	}
	rare := slices.Index(mutationSizes, mixedPlans)
	for f := &all[rare]; f.cpu < mutationCPU+rareCPU && len(missed([]mutation{m}, [][]found{all})) > 0; {
		size := mixedPlans
		if slices.Contains(restoreMutations, m) {
			size = restorePlan
		}
		if err := f.run(program, size); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// run runs some more simulations, up to the first that finds the mutation. Their seeds count from 1.
func (f *found) run(program string, size planSize) error {
	seed := 1 + f.simulations
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-test.run", "^TestSimulatedCluster$", "-test.v", "-test.timeout", "3m")
	cmd.Env = append(os.Environ(), fmt.Sprint("RAPID_SEED=", seed), fmt.Sprint(simulationsVar, "=", mutationRuns), fmt.Sprint(sizeVar, "=", string(size)))
	out, err := cmd.CombinedOutput()
	f.cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	began := bytes.Count(out, []byte("=== RUN   TestSimulatedCluster/seed="))
	f.simulations += began
	if err == nil {
		return nil
	}
	if began == 0 {
		return fmt.Errorf("no simulation began: %w\n%s", err, out)
	}
	if ctx.Err() != nil || bytes.Contains(out, []byte("panic: test timed out")) {
		return fmt.Errorf("seed %d did not end in time, which says nothing about the bug: repeat it on an idle machine", seed+began-1)
	}
	f.times++
	if f.times > 1 {
		return nil
	}
	f.first = fmt.Sprintf("seed %d: it failed", seed+began-1)
	for line := range strings.Lines(string(out)) {
		_, violated, ok := strings.Cut(line, "VIOLATED ")
		if ok || strings.HasPrefix(line, "panic: ") {
			f.first = fmt.Sprintf("seed %d: %s", seed+began-1, strings.TrimSpace(cmp.Or(violated, line)))
			break
		}
	}
	return nil
}
