package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// isStopped reports whether the process that a gated job's only task was last is stopped; false if it has ended.
func (c *processCluster) isStopped(name string) bool {
	c.t.Helper()
	starts := c.lines(name, "starts")
	if len(starts) == 0 {
		c.t.Fatalf("%s has not started", name)
	}
	pid, _, _ := strings.Cut(starts[len(starts)-1], " ")
	if _, err := strconv.Atoi(pid); err != nil {
		c.t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return false // it has ended
	}
	return strings.HasPrefix(string(b)[strings.LastIndex(string(b), ")")+1:], " T")
}

// unknownRuns waits until an operator is shown n unknown runs, and returns what can be done with each by the name of its job.
func (c *processCluster) unknownRuns(n int) (ids, adopt map[string]string) {
	c.t.Helper()
	last := ""
	waitFor(c.t, fmt.Sprint("unknown runs: ", n), func() bool {
		out, err := droverOutput(c.t, c.remote(threeServers, "operator", "runs", "list")...)
		last, ids, adopt = fmt.Sprint(out, err), map[string]string{}, map[string]string{}
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) > 9 && f[0] == "n1" && f[5] == "frozen" { // node, run, job, stage, tenant, level, date, time, ran, adopt
				ids[f[2]], adopt[f[2]] = f[1], strings.Join(f[9:], " ")
			}
		}
		return err == nil && len(ids) == n
	}, func() string { return last + "\n" + c.allLogs() })
	return ids, adopt
}

// TestAnArchiveIsRestoredOntoThreeCoordinators: all three coordinators are lost, and the how-to is followed: one is restored
// from an archive, and the others join it with empty folders. What the archive knows runs on. What was placed after it
// stands still, also when the leader is lost again, until an operator adopts or kills it.
func TestAnArchiveIsRestoredOntoThreeCoordinators(t *testing.T) {
	c := newProcessCluster(t)
	c.with = []string{"-lease", "5s"}
	c.begin(threeServers...)
	c.node("n1")
	quick := func(name, more string) {
		t.Helper()
		writeFile(t, c.at(name+".hcl"), fmt.Sprintf(`job %q { %s }`, name, more))
		c.operator("job", "run", "-detach", c.at(name+".hcl"))
	}
	quick("done", `stage "run" { command = ["true"] }`)
	c.showsOperator("(done) succeeded", "job", "status", "done")
	c.submitGated("known", 1)
	c.awaitStarts("known", 1)
	c.operator("node", "drain", "n1") // what follows is accepted before the archive is saved, and placed after that
	for _, name := range []string{"adopted", "killed", "repeated"} {
		c.submitGated(name, 1)
	}
	writeFile(t, c.at("in"), "a line\n")
	quick("published", fmt.Sprintf(`input { path = "file://%s" } output { path = "file://%s" } stage "map" { kind = "map" attempts = 1 builtin = ["identity"] }`, c.at("in"), c.at("out")))
	archive := c.at("saved.tar.gz")
	c.operator("operator", "snapshot", "save", archive)
	if out := c.drover("operator", "snapshot", "inspect", archive); !strings.Contains(out, "6, 5 of them live; the last has number 6") || !strings.Contains(out, "right, of ") {
		t.Errorf("inspect:\n%s", out)
	}
	c.operator("node", "drain", "-off", "n1")
	c.submitGated("unknown", 1)
	for _, name := range []string{"adopted", "killed", "repeated", "unknown"} {
		c.awaitStarts(name, 1)
	}
	c.endsAfter("repeated", 1, 1)
	c.showsOperator("(published) succeeded", "job", "status", "published")

	for _, id := range threeServers {
		c.stop(id, syscall.SIGKILL)
		if err := os.RemoveAll(c.at("data-" + id)); err != nil {
			t.Fatal(err)
		}
	}
	settings := c.at("coordinator.hcl")
	writeFile(t, settings, fmt.Sprintf("id = \"c1\"\ndata = %q\n", c.at("data-c1")))
	c.drover("operator", "snapshot", "restore", "-config", settings, archive)
	for _, id := range threeServers {
		c.start(id)
	}
	c.allOK("c1")

	frozen := []string{"adopted", "killed", "unknown"}
	check := func(when string) (ids map[string]string) {
		t.Helper()
		ids, adopt := c.unknownRuns(len(frozen))
		if adopt["adopted"] != "possible" || adopt["killed"] != "possible" || adopt["unknown"] != "no: its job is unknown" {
			t.Errorf("%s: what can be adopted: %q", when, adopt)
		}
		for _, name := range frozen {
			if !c.isStopped(name) || len(c.lines(name, "starts")) != 1 {
				t.Errorf("%s: %s does not stand still, starts %q", when, name, c.lines(name, "starts"))
			}
		}
		if c.isStopped("known") || len(c.lines("known", "starts")) != 1 {
			t.Errorf("%s: what the archive knows does not run on", when)
		}
		return ids
	}
	check("restored")
	c.showsOperator("3 frozen since the coordinator was restored", "node", "status", "n1")
	c.operator("node", "drain", "-off", "n1") // of the archive
	c.awaitStarts("repeated", 2)              // it ended after the archive was saved
	c.showsOperator("(repeated) succeeded", "job", "status", "repeated")
	// Its output is in place: it is stopped, or fails, since its one attempt may be faster. Both say why.
	c.showsOperator("restored from an archive", "job", "status", "published")
	c.showsOperator("(done) succeeded", "job", "status", "done")
	if out, err := droverOutput(t, c.remote(threeServers, "job", "status", "unknown")...); exitCode(err) != exitRefused {
		t.Errorf("a job from after the archive: %v\n%s", err, out)
	}

	lost := c.leader("c1")
	c.stop(lost, syscall.SIGKILL)
	ids := check("without " + lost)
	c.start(lost)
	c.allOK(lost)

	c.operator("operator", "runs", "adopt", "n1", ids["adopted"])
	waitFor(t, "what was adopted goes on", func() bool { return !c.isStopped("adopted") }, c.allLogs)
	c.endsAfter("adopted", 1, 1)
	c.operator("operator", "runs", "kill", "n1", ids["killed"], ids["unknown"])
	c.unknownRuns(0)
	c.awaitStarts("killed", 2)
	c.showsOperator("run/0.2.1001", "events", "-job", "killed") // no node takes it for one from before
	c.endsAfter("killed", 1, 2)
	c.endsAfter("known", 1, 1)

	c.openGate("unknown")
	if out := c.operator("job", "run", c.at("unknown.hcl")); !strings.Contains(out, "job 1000007 (unknown) succeeded") {
		t.Errorf("submitted again:\n%s", out)
	}
	if starts, ends := c.lines("unknown", "starts"), c.lines("unknown", "ends"); len(starts) != 2 || len(ends) != 1 {
		t.Errorf("it started %q and ended %q: the one that was killed went on", starts, ends)
	}
	events := c.operator("events", "-limit", "0")
	for want, n := range map[string]int{"cluster.restored": 1, "run.found": 2, "run.adopted": 1, "run.killed": 2} {
		if strings.Count(events, " "+want+" ") != n {
			t.Errorf("want %d %s in\n%s", n, want, events)
		}
	}
	var lists []string
	for _, id := range threeServers {
		c.operator("operator", "server", "transfer", id)
		lists = append(lists, c.operator("job", "list", "-all", "-json"))
	}
	if lists[0] != lists[1] || lists[1] != lists[2] {
		t.Errorf("c1, c2 and c3 do not list the same jobs:\n%s", strings.Join(lists, "\n"))
	}
}
