package simcluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// mutation is a bug put into the product on purpose: in file, from the root of the
// repository, old becomes new.
type mutation struct {
	what      string
	file      string
	old, with string
}

// mutations are bugs that a simulation ought to find.
var mutations = []mutation{
	// Leases.
	{"a node ignores the end of its lease", "node/lease.go",
		"a.d.exclusive.lease.remaining() > 0;", "a.d.exclusive.lease.remaining() > -1<<62;"},
	{"a node's lease is three times too long", "node/lease.go",
		"leaseShare    = 66", "leaseShare    = 300"},
	{"a lease counts from the answer, not from the question", "node/lease.go",
		"l.end = max(l.end, sent+", "l.end = max(l.end, now+"},
	{"a new daemon believes that it has a lease", "node/lease.go",
		"lease: lease{now: watchdog.SinceBoot},", "lease: lease{now: watchdog.SinceBoot, end: 2 * time.Hour},"},
	{"nodes are lost after a third of their lease", "coordinator/loop.go",
		"l.c.sessions.checkLeases(now, l.c.cfg.Lease)", "l.c.sessions.checkLeases(now, l.c.cfg.Lease/3)"},
	{"a new leader gives no time to the nodes", "coordinator/sessions.go",
		"epoch: n.Epoch, lastReport: now, seen", "epoch: n.Epoch, lastReport: now.Add(-time.Hour), seen"},
	{"a lost node is never given up", "coordinator/loop.go",
		"l.c.sessions.checkLeases(now, l.c.cfg.Lease)", "l.c.sessions.checkLeases(now, 1000*l.c.cfg.Lease)"},
	// Fencing.
	{"attempts of an older epoch live on", "node/attempts.go",
		"} else if old.Epoch != id.Epoch || old.Node != id.Node {\n\t\tfor", "} else if old.Node != id.Node {\n\t\tfor"},
	{"a node that came back keeps its epoch", "coordinator/facts/apply_cluster.go",
		"c.Epoch = max(old.Epoch, min(nf.GetEpoch(), math.MaxUint64>>1)) + 1", "_ = math.MaxUint64 >> 1"},
	{"a node believes a replaced coordinator", "node/store/store.go",
		"if got < have {", "if got+1000 < have {"},
	{"a decision of an earlier leader counts", "coordinator/replica/replica.go",
		"case e.GetTerm() != 0 && e.GetTerm() != l.Term:", "case e.GetTerm() > l.Term+1000:"},
	{"a task is placed although it is not pending", "coordinator/facts/apply_decision.go",
		"case !act.GetSpeculative() && t.State != TaskPending:", "case !act.GetSpeculative() && t.State == TaskDone && j.HasEnded():"},
	// Commit.
	{"each success is committed", "coordinator/facts/apply_attempts.go",
		"state == AttemptSucceeded && t.Winner == 0 &&", "state == AttemptSucceeded &&"},
	{"a failed program has succeeded", "node/exit.go",
		"\tif f == nil {\n\t\tend.Phase,", "\tif f == nil || f.cause == droverv1.Cause_CAUSE_EXIT {\n\t\tend.Phase,"},
	{"a lost attempt leaves its task active", "coordinator/facts/apply_attempts.go",
		"} else if t.Winner == 0 && !hasActiveAttempt(t) && t.State == TaskActive {", "} else if state != AttemptLost && t.Winner == 0 && !hasActiveAttempt(t) && t.State == TaskActive {"},
	{"a job has succeeded with its first stage", "coordinator/facts/apply_jobs.go",
		"j.State == droverv1.JobState_JOB_STATE_COMMITTING || !j.isComplete() {", "j.State == droverv1.JobState_JOB_STATE_COMMITTING || j.Stages[0].Done < j.Stages[0].Tasks {"},
	// Replay.
	{"an idempotency key is forgotten at once", "coordinator/facts/apply_jobs.go",
		"\te.f.keys[j.Key] = keyedJob{j.ID, j.Name}\n", ""},
	{"a snapshot has no idempotency keys", "coordinator/facts/snapshot.go",
		"for _, k := range f.keyRing {", "for _, k := range f.keyRing[:0] {"},
	{"a snapshot has no tasks that have ended", "coordinator/facts/snapshot.go",
		"l.Sealed = &sealedLine{ch.sealed.heads, ch.sealed.reports}", "l.Sealed = nil"},
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
	// Protocol.
	{"a new session begins with changes alone", "node/session.go",
		"full := true", "full := false"},
	{"what a node does not have is not reported", "node/attempts.go",
		"\tif a == nil {\n\t\tt.gone[id] = true\n\t}\n", ""},
	{"a watch skips a change", "coordinator/wantedsets.go",
		"slices.BinarySearchFunc(s.log, rev+1,", "slices.BinarySearchFunc(s.log, rev+2,"},
	{"a new daemon knows no containers", "node/daemon.go",
		"a.container.set(containers[id.String()])", "_ = containers"},
	{"a cgroup is left", "node/cgroup.go",
		"if e := g.cfg.Enforcer; e != nil {\n\t\tif err := e.Remove(", "if e := g.cfg.Enforcer; e != nil && len(g.rec.End) == 0 {\n\t\tif err := e.Remove("},
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

// TestMutations says which of the mutations a number of simulations finds. It
// compiles the product once for each.
func TestMutations(t *testing.T) {
	if os.Getenv("DROVER_MUTATIONS") == "" {
		t.Skip("not proved here: that the simulations find bugs put in on purpose; it compiles the product for each, set DROVER_MUTATIONS=1")
	}
	var missed []string
	tried := 0
	for _, m := range mutations {
		if only := os.Getenv("DROVER_MUTATIONS"); only != "1" && !strings.Contains(m.what, only) {
			continue
		}
		tried++
		began := time.Now()
		how, err := m.find(t)
		if err != nil {
			t.Fatalf("%s: %v", m.what, err)
		}
		if how == "" {
			missed = append(missed, m.what)
			how = "MISSED"
		}
		t.Logf("%-55s %4.0fs %s", m.what, time.Since(began).Seconds(), how)
	}
	t.Logf("missed: %d of %d %q", len(missed), tried, missed)
	if tried == len(mutations) && 2*len(missed) > tried { // which ones is chance in part
		t.Errorf("the simulations find less than half of the bugs put in on purpose")
	}
}

// find runs simulations of the mutated product and returns by what the first that
// fails has failed, "" if none does.
func (m mutation) find(t *testing.T) (string, error) {
	program, err := compileExact(t.TempDir(), m)
	if err != nil {
		return "", err
	}
	count := os.Getenv(simulationsVar)
	if count == "" {
		count = "40"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-test.run", "^TestSimulatedCluster$", "-test.timeout", "3m")
	cmd.Env = append(os.Environ(), "RAPID_SEED=1", simulationsVar+"="+count)
	out, err := cmd.CombinedOutput()
	if err == nil {
		return "", nil
	}
	seed, why := "", ""
	for line := range strings.Lines(string(out)) {
		_, violated, ok := strings.Cut(line, "VIOLATED ")
		switch {
		case ok && why == "":
			why = strings.TrimSpace(violated)
		case strings.HasPrefix(line, "panic: ") && why == "":
			why = strings.TrimSpace(line)
		case strings.Contains(line, "--- FAIL: TestSimulatedCluster/seed="):
			_, seed, _ = strings.Cut(strings.TrimSpace(line), "/")
		}
	}
	return seed + ": " + why, nil
}
