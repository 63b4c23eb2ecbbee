package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

var threeServers = []string{"c1", "c2", "c3"}

// begin starts coordinators that begin a cluster together, as the how-to sets them up: each starts again with the same
// settings and addresses.
func (c *processCluster) begin(ids ...string) {
	c.t.Helper()
	c.with = append(c.with, "-bootstrap")
	for _, id := range ids {
		c.peers[id] = freeAddress(c.t)
		c.with = append(c.with, "-servers", id+"="+c.peers[id])
	}
	for _, id := range ids {
		c.launch(id, id, "-peer-listen", c.peers[id])
	}
	for _, id := range ids {
		c.ready(id)
	}
	c.allOK(ids[0])
}

// allOK waits until a coordinator lists three that vote, all of which are ok.
func (c *processCluster) allOK(id string) {
	c.t.Helper()
	c.shows(id, func(list string) bool {
		return strings.Count(list, " ok") == len(threeServers) && strings.Count(list, " leader ") == 1 && strings.Count(list, " follower ") == len(threeServers)-1
	})
}

// node runs a node daemon with the process driver, its own certificate and always the same port, which knows the
// addresses of three coordinators, until the returned function is called.
func (c *processCluster) node(name string) (stop func()) {
	c.t.Helper()
	if c.apis[name] == "" {
		c.apis[name] = freeAddress(c.t)
		c.drover("tls", "cert", "-dir", c.at("ca"), "-kind", "node", "-host", "127.0.0.1", name)
	}
	var urls []string
	for _, id := range threeServers {
		urls = append(urls, c.url(id))
	}
	return launchNode(c.t, "-name", name, "-data", c.at("data-"+name), "-listen", c.apis[name], "-coordinator", strings.Join(urls, ","),
		"-tls-ca", c.at("ca/ca.pem"), "-tls-cert", c.at("ca/"+name+".pem"), "-tls-key", c.at("ca/"+name+".key"))
}

// operator runs a command of an operator who has the addresses of three coordinators.
func (c *processCluster) operator(args ...string) string {
	c.t.Helper()
	return c.drover(c.remote(threeServers, args...)...)
}

// showsOperator waits until such a command prints a text.
func (c *processCluster) showsOperator(text string, args ...string) {
	c.t.Helper()
	last := ""
	waitFor(c.t, strings.Join(args, " ")+" shows "+text, func() bool {
		last, _ = droverOutput(c.t, c.remote(threeServers, args...)...) // an error only means another try
		return strings.Contains(last, text)
	}, func() string { return last + "\n" + c.allLogs() })
}

// submitGated submits a job whose tasks note that they start, wait for openGate, and note that they end.
func (c *processCluster) submitGated(name string, tasks int) {
	c.t.Helper()
	script := fmt.Sprintf("echo $$ $DROVER_TASK >> %[1]s.starts; until [ -e %[1]s.open ]; do sleep 0.05; done; echo end of $DROVER_TASK >> %[1]s.ends", c.at(name))
	writeFile(c.t, c.at(name+".hcl"), fmt.Sprintf(`job %q { stage "run" { tasks = %d  attempts = 1  command = ["sh", "-c", %q]  resources { cpu = "100m"  memory = "16MiB" } } }`, name, tasks, script))
	c.operator("job", "run", "-detach", c.at(name+".hcl"))
}

func (c *processCluster) openGate(name string) {
	c.t.Helper()
	writeFile(c.t, c.at(name+".open"), "")
}

// lines returns what the tasks of a gated job noted: of its starts or its ends.
func (c *processCluster) lines(name, of string) []string {
	b, err := os.ReadFile(c.at(name + "." + of))
	if err != nil && !os.IsNotExist(err) {
		c.t.Fatal(err)
	}
	return strings.FieldsFunc(string(b), func(r rune) bool { return r == '\n' })
}

// awaitStarts waits until the tasks of a gated job have started n times.
func (c *processCluster) awaitStarts(name string, n int) {
	c.t.Helper()
	waitFor(c.t, fmt.Sprintf("%d starts of %s", n, name), func() bool { return len(c.lines(name, "starts")) == n }, func() string {
		out, err := droverOutput(c.t, c.remote(threeServers, "job", "status", name)...)
		return fmt.Sprintln(c.lines(name, "starts"), out, err, c.allLogs())
	})
}

// endsAfter has a gated job end: its tasks must have started so many times until then.
func (c *processCluster) endsAfter(name string, tasks, starts int) {
	c.t.Helper()
	c.openGate(name)
	c.showsOperator(") succeeded", "job", "status", name)
	if s, e := c.lines(name, "starts"), c.lines(name, "ends"); len(s) != starts || len(e) != tasks {
		c.t.Errorf("%d tasks of %s started %d times, want %d, and ended %d times", tasks, name, len(s), starts, len(e))
	}
}

// wordcounts runs jobs, one after another, until done is closed, as a user who waits for each. It counts those that
// succeeded; every other one is an error.
func (c *processCluster) wordcounts(prefix string, at []string, done <-chan struct{}, succeeded *atomic.Int64) {
	for i := 0; ; i++ {
		select {
		case <-done:
			return
		default:
		}
		name := fmt.Sprint(prefix, i)
		text := fmt.Sprintf(`job %q {
  env = { GORACE = %q }
  input  { path = "file://%s" }
  output { path = "file://%s" }
  stage "map" { kind = "map"  attempts = 1  builtin = ["wordcount"]  resources { cpu = "100m"  memory = "32MiB" } }
  stage "reduce" { kind = "reduce"  attempts = 1  builtin = ["sum"]  resources { cpu = "100m"  memory = "32MiB" } }
}`, name, raceExitOption, c.at("in"), c.at("out-"+name))
		if err := os.WriteFile(c.at(name+".hcl"), []byte(text), 0o600); err != nil {
			c.t.Error(err)
			return
		}
		if out, err := processOutput(c.t, slices.Concat(at, []string{"job", "run", c.at(name + ".hcl")})...); err != nil {
			c.t.Errorf("job run %s: %v\n%s", name, err, out)
			return
		}
		succeeded.Add(1)
	}
}

// checkEvents allows no attempt and no node to have failed but with the end of a daemon on one node, whose processes end with it.
func (c *processCluster) checkEvents(node string) {
	c.t.Helper()
	for line := range strings.Lines(c.operator("events", "-json", "-limit", "0")) {
		var e struct{ Kind, Node, Text string }
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			c.t.Fatalf("%v: %s", err, line)
		}
		switch e.Kind {
		case "task.failed":
			if e.Node != node || !strings.Contains(e.Text, "it was a process of a daemon that has ended") {
				c.t.Errorf("a task failed: %s", line)
			}
		case "task.lost", "task.killed", "task.output_lost", "node.lost", "node.returned", "node.quarantined", "job.failed", "job.avoids_node":
			c.t.Errorf("it happened: %s", line)
		}
	}
}

// TestRollingRestartUnderLoad: three coordinators and two nodes are stopped and started again, one at a time, in the order
// and with the waits of the how-tos, while users run jobs. Each job succeeds with the right result, no command fails, and no
// task starts anew but those that are plain processes of a daemon that was not drained, without counting as failed.
func TestRollingRestartUnderLoad(t *testing.T) {
	c := newProcessCluster(t)
	c.begin(threeServers...)
	stops := map[string]func(){"n1": c.node("n1"), "n2": c.node("n2")}
	for _, name := range []string{"a", "b"} {
		if err := os.MkdirAll(c.at("in"), 0o700); err != nil {
			t.Fatal(err)
		}
		writeFile(t, c.at("in/"+name), "one two "+name+"\n")
	}
	var succeeded atomic.Int64
	var users sync.WaitGroup
	done := make(chan struct{})
	stopUsers := sync.OnceFunc(func() { close(done); users.Wait() })
	defer stopUsers()
	for _, prefix := range []string{"ann-", "bob-"} {
		at := c.remote(threeServers)
		users.Go(func() { c.wordcounts(prefix, at, done, &succeeded) })
	}
	goesOn := func() {
		t.Helper()
		want := succeeded.Load() + 3 // one of them at least was submitted from now on
		waitFor(t, "the users' jobs go on", func() bool { return succeeded.Load() >= want || t.Failed() }, c.allLogs)
		if t.Failed() {
			t.FailNow()
		}
	}
	goesOn()

	// The followers first, then the leader, which hands over before.
	c.submitGated("long", 4)
	c.awaitStarts("long", 4)
	leader := c.leader("c1")
	for _, id := range append(slices.DeleteFunc(slices.Clone(threeServers), func(id string) bool { return id == leader }), leader) {
		if c.leader(id) == id {
			c.operator("operator", "server", "transfer")
		}
		c.stop(id, syscall.SIGTERM)
		if state := c.runs[id].ProcessState; !state.Success() {
			t.Errorf("%s ended with %v:\n%s", id, state, c.logs[id])
		}
		c.start(id)
		c.allOK(id)
		goesOn()
	}
	c.endsAfter("long", 4, 4)

	// A node as before a reboot: nothing starts anew.
	c.operator("node", "drain", "n2")
	c.submitGated("drained", 2) // on n1
	c.awaitStarts("drained", 2)
	c.operator("node", "drain", "-off", "n2")
	drain, said := launch(t, "drover", c.remote(threeServers, "node", "drain", "-wait", "n1")...)
	waitFor(t, "tasks are left on n1", func() bool { return strings.Contains(said.String(), "left on n1") }, said.String)
	c.openGate("drained")
	if err := drain.Wait(); err != nil {
		t.Fatalf("drain: %v\n%s", err, said)
	}
	if list := c.operator("node", "list"); !strings.Contains(list, "drained") {
		t.Errorf("nodes\n%s", list)
	}
	stops["n1"]()
	c.submitGated("anew", 2) // on n2
	c.awaitStarts("anew", 2)
	stops["n1"] = c.node("n1")
	c.operator("node", "drain", "-off", "n1")
	c.endsAfter("drained", 2, 2)
	goesOn()

	// A daemon that is not drained, whose processes end with it.
	stops["n2"]()
	stops["n2"] = c.node("n2")
	c.awaitStarts("anew", 4)
	goesOn()
	c.endsAfter("anew", 2, 4)

	stopUsers()
	var list droverJobs
	if err := json.Unmarshal([]byte(c.operator("job", "list", "-all", "-json", "-limit", "0")), &list); err != nil {
		t.Fatal(err)
	}
	if n := int(succeeded.Load()) + 3; len(list.Jobs) != n {
		t.Errorf("%d jobs, and %d were accepted", len(list.Jobs), n)
	}
	for _, j := range list.Jobs {
		if j.State != droverv1.JobState_JOB_STATE_SUCCEEDED.String() {
			t.Errorf("job %s: %s", j.Name, j.State)
		}
		if !strings.HasPrefix(j.Name, "ann-") && !strings.HasPrefix(j.Name, "bob-") {
			continue
		}
		got, err := os.ReadFile(c.at("out-" + j.Name + "/part-00000"))
		if want := "a\t1\nb\t1\none\t2\ntwo\t2\n"; err != nil || string(got) != want {
			t.Errorf("the result of %s is %q, %v", j.Name, got, err)
		}
	}
	c.checkEvents("n2")
}

// droverJobs is what `drover job list -json` prints.
type droverJobs struct {
	Jobs []struct{ Name, State string }
}
