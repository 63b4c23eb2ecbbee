package main

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// A server that answers is not ok for that alone.
func TestStatesOfServers(t *testing.T) {
	const last = 5000
	for want, s := range map[string]*droverv1.Server{
		"ok": {AppliedIndex: last - 3, LastContactMs: 900},
		"empty: it has no log yet, and counts for no majority": {LastContactMs: -1},
		"has heard from no leader":                             {AppliedIndex: last, LastContactMs: -1},
		"hears from no leader":                                 {AppliedIndex: last, LastContactMs: 11_000},
		"4000 entries behind":                                  {AppliedIndex: 1000, MissingFiles: 2},
		"2 files to fetch":                                     {AppliedIndex: last, MissingFiles: 2},
	} {
		row := serverRow(s, lastApplied([]*droverv1.Server{s, {Leader: true, AppliedIndex: last}}))
		if got := row[len(row)-1]; got != want {
			t.Errorf("%v is %q, want %q", s, got, want)
		}
	}
}

// processCluster is coordinators in processes of their own, which a user calls by their sockets or with a certificate.
type processCluster struct {
	t     *testing.T
	dir   string
	runs  map[string]*exec.Cmd
	logs  map[string]*lockedBuffer
	peers map[string]string // peer addresses by id
	apis  map[string]string // addresses for users and nodes by id; of nodes by name
	with  []string          // arguments of every coordinator
}

func newProcessCluster(t *testing.T) *processCluster {
	t.Helper()
	dir, err := os.MkdirTemp("", "drover") // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := &processCluster{t: t, dir: dir, runs: map[string]*exec.Cmd{}, logs: map[string]*lockedBuffer{}, peers: map[string]string{}, apis: map[string]string{}}
	c.drover("tls", "ca", "-dir", c.at("ca"))
	c.drover("tls", "cert", "-dir", c.at("ca"), "-kind", "user", "root")
	return c
}

func (c *processCluster) at(name string) string { return filepath.Join(c.dir, name) }

// drover runs a command, which must succeed.
func (c *processCluster) drover(args ...string) string {
	c.t.Helper()
	out, err := droverOutput(c.t, args...)
	if err != nil {
		c.t.Fatalf("drover %s: %v\n%s\n%s", strings.Join(args, " "), err, out, c.allLogs())
	}
	return out
}

// launch starts a coordinator on its folder with a certificate of a name, and does not wait until it has a leader.
func (c *processCluster) launch(id, name string, more ...string) {
	c.t.Helper()
	if _, err := os.Stat(c.at("ca/" + name + ".pem")); err != nil {
		c.drover("tls", "cert", "-dir", c.at("ca"), "-kind", "coordinator", "-host", "127.0.0.1", name)
	}
	c.runs[id], c.logs[id] = launch(c.t, "drover", slices.Concat([]string{"coordinator", "-id", id, "-data", c.at("data-" + id), "-socket", c.at(id), "-listen", cmp.Or(c.apis[id], "127.0.0.1:0"), "-operator", "user/root",
		"-tls-ca", c.at("ca/ca.pem"), "-tls-cert", c.at("ca/" + name + ".pem"), "-tls-key", c.at("ca/" + name + ".key")}, c.with, more)...)
}

// ready waits until a coordinator has a leader.
func (c *processCluster) ready(id string) {
	c.t.Helper()
	var found []string
	waitFor(c.t, id+" is ready", func() bool {
		found = regexp.MustCompile(`and https://([0-9.:]+), server ` + id + ` at ([0-9.:]+)`).FindStringSubmatch(c.logs[id].String())
		return found != nil
	}, c.logs[id].String)
	c.apis[id], c.peers[id] = found[1], found[2]
}

// freeAddress returns an address on which nobody listens now.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// start starts a coordinator with its own certificate and waits until it has a leader.
func (c *processCluster) start(id string, more ...string) {
	c.t.Helper()
	c.launch(id, id, append([]string{"-peer-listen", cmp.Or(c.peers[id], "127.0.0.1:0")}, more...)...)
	c.ready(id)
}

// stop ends a coordinator's process, at once or by a signal on which it ends by itself.
func (c *processCluster) stop(id string, by os.Signal) {
	c.t.Helper()
	if err := c.runs[id].Process.Signal(by); err != nil {
		c.t.Fatal(err)
	}
	c.awaitEnd(id)
}

func (c *processCluster) awaitEnd(id string) {
	c.t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.runs[id].Wait() // how it ended is in its log
	}()
	select {
	case <-ended:
	case <-time.After(stepLimit):
		c.t.Fatalf("%s does not end:\n%s", id, c.logs[id])
	}
}

func (c *processCluster) allLogs() (all string) {
	for _, id := range slices.Sorted(maps.Keys(c.logs)) {
		all += id + ":\n" + c.logs[id].String()
	}
	return all
}

// local returns the arguments of a command that calls a coordinator by its socket, without a certificate.
func (c *processCluster) local(id string, args ...string) []string {
	return append([]string{"-address", "unix://" + c.at(id)}, args...)
}

// remote returns the arguments of a command that calls coordinators with a user's certificate.
func (c *processCluster) remote(ids []string, args ...string) []string {
	c.t.Helper()
	var urls []string
	for _, id := range ids {
		urls = append(urls, c.url(id))
	}
	return append([]string{"-address", strings.Join(urls, ","), "-tls-ca", c.at("ca/ca.pem"), "-tls-cert", c.at("ca/root.pem"), "-tls-key", c.at("ca/root.key")}, args...)
}

// url returns the address of a coordinator for users, which has been ready.
func (c *processCluster) url(id string) string { return "https://" + c.apis[id] }

// shows waits until a coordinator, whether it leads or not, lists the servers as wanted.
func (c *processCluster) shows(id string, want func(list string) bool) {
	c.t.Helper()
	last := ""
	waitFor(c.t, "server list of "+id, func() bool {
		out, _ := droverOutput(c.t, c.local(id, "-stale", "operator", "server", "list")...) // an error only means another try
		last = strings.Join(strings.Fields(out), " ")
		return want(last)
	}, func() string { return last + "\n" + c.allLogs() })
}

// showsText waits until a coordinator lists a text.
func (c *processCluster) showsText(id, text string) {
	c.t.Helper()
	c.shows(id, func(list string) bool { return strings.Contains(list, text) })
}

// leader waits until a coordinator knows one, and returns its name.
func (c *processCluster) leader(id string) (leader string) {
	c.t.Helper()
	c.shows(id, func(list string) bool {
		found := regexp.MustCompile(`(c[0-9]) [0-9.:]+ leader`).FindStringSubmatch(list)
		if found != nil {
			leader = found[1]
		}
		return found != nil
	})
	return leader
}

// TestServersOfACluster: a second coordinator joins; list, add, transfer and remove say what they did,
// and a removed coordinator ends.
func TestServersOfACluster(t *testing.T) {
	c := newProcessCluster(t)
	c.start("c1")
	c.start("c2", "-join", c.peers["c1"])
	server := func(id string, more ...string) (string, error) {
		return droverOutput(t, c.local(id, append([]string{"operator", "server"}, more...)...)...)
	}
	c.showsText("c1", "c1 "+c.peers["c1"]+" leader")
	c.showsText("c1", "c2 "+c.peers["c2"]+" follower")
	if out, err := server("c1", "list", "-json"); err != nil || strings.Count(out, `"voter": true`) != 2 || strings.Count(out, `"leader": true`) != 1 {
		t.Errorf("%v\n%s", err, out)
	}

	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"add", "c3", "nowhere"}, "nowhere"},
		{[]string{"remove", "c9"}, "c9"},
		{[]string{"transfer", "c9"}, "c9"},
	} {
		if out, err := server("c1", c.args...); exitCode(err) != exitRefused || !strings.Contains(err.Error(), c.want) {
			t.Errorf("server %v: exit code %d, %v\n%s", c.args, exitCode(err), err, out)
		}
	}
	if out, err := server("c1", "transfer", "c2"); err != nil || out != "server c2 leads\n" {
		t.Fatalf("transfer: %v\n%s\n%s", err, out, c.allLogs())
	}
	c.showsText("c2", "c1 "+c.peers["c1"]+" follower")
	if out, err := droverOutput(t, c.local("c2", "status")...); err != nil || !strings.Contains(out, "c2") {
		t.Errorf("status: %v\n%s", err, out)
	}
	if out, err := server("c2", "remove", "c1"); err != nil || out != "server c1 is removed\n" {
		t.Fatalf("remove: %v\n%s\n%s", err, out, c.allLogs())
	}
	c.awaitEnd("c1")
	if out, err := server("c2", "list"); err != nil || strings.Contains(out, "c1 ") {
		t.Errorf("%v: c1 is still there:\n%s", err, out)
	}
}

// gathersDebug has a user gather the logs and profiles of all coordinators, one of which is dead.
func (c *processCluster) gathersDebug(ids []string, dead string) {
	c.t.Helper()
	name := c.at("debug.tar.gz")
	said := c.drover(c.remote(ids, "operator", "debug", "-seconds", "1", "-output", name)...)
	f, err := os.Open(name)
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		c.t.Fatal(err)
	}
	files, in := map[string]string{}, tar.NewReader(z)
	for {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		b, rerr := io.ReadAll(in)
		if err := errors.Join(err, rerr); err != nil {
			c.t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, "drover-debug/")] = string(b)
	}
	for _, id := range ids {
		for _, item := range []string{"log.jsonl", "metrics.txt", "goroutine.pprof"} {
			if at := "coordinators/" + id + "/" + item; (files[at] != "") == (id == dead) {
				c.t.Errorf("%s has %d bytes, and %s is dead:\n%s", at, len(files[at]), dead, said)
			}
		}
	}
	if !strings.Contains(files["manifest.json"], "coordinators/"+dead+": ") || strings.Count(said, "not in the archive") != 1 {
		c.t.Errorf("what could not be had:\n%s\n%s", said, files["manifest.json"])
	}
}

// TestServersAreReplaced: an operator adds a third coordinator, whose certificate has another name; it dies and another one
// takes its place; then two of three are lost, and the last one goes on alone, as the how-to says, until another one joins.
// Meanwhile a job is read from a follower, and the archive of logs and profiles has those of all that live.
func TestServersAreReplaced(t *testing.T) {
	c := newProcessCluster(t)
	c.start("c1")
	c.start("c2", "-join", c.peers["c1"])
	third := freeAddress(t)
	c.launch("c3", "other", "-peer-listen", third, "-join", c.peers["c1"])
	waitFor(t, "c3 is told that it may not join", func() bool { return strings.Contains(c.logs["c3"].String(), "may not join") }, c.allLogs)
	if out := c.drover(c.remote([]string{"c1", "c2"}, "operator", "server", "add", "c3", third)...); out != "server c3 is added and votes\n" {
		t.Errorf("add: %q", out)
	}
	c.ready("c3")
	three := []string{"c1", "c2", "c3"}
	job := c.at("j.hcl")
	writeFile(t, job, `job "here" { stage "s" { command = ["true"] } }`)
	c.drover(c.remote(three, "job", "run", "-detach", job)...)

	c.stop("c3", os.Kill)
	c.gathersDebug(three, "c3")
	if out := c.drover(c.remote(three, "operator", "server", "remove", "c3")...); out != "server c3 is removed\n" {
		t.Errorf("remove: %q", out)
	}
	c.start("c4", "-join", c.peers["c1"]+","+c.peers["c2"])
	c.shows("c4", func(list string) bool { return strings.Count(list, "follower") == 2 && !strings.Contains(list, "c3") })

	// A follower refuses to read, and names the leader, to which a command goes that can; with -stale it reads.
	last := ""
	waitFor(t, "a follower names the leader", func() bool {
		leader := c.leader("c4")
		if last = "c1"; leader == last {
			last = "c2"
		}
		_, err := droverOutput(t, c.local(last, "job", "list")...) // none where it leads by now
		return exitCode(err) == exitUnavailable && strings.Contains(err.Error(), fmt.Sprintf("%q does not lead, %q does", last, leader))
	}, c.allLogs)
	if out := c.drover(c.remote([]string{last}, "job", "list")...); !strings.Contains(out, "here") {
		t.Errorf("a read that is sent on to the leader:\n%s", out)
	}
	waitFor(t, "the follower has the job", func() bool {
		out, err := droverOutput(t, c.local(last, "-stale", "job", "list")...)
		return err == nil && strings.Contains(out, "here")
	}, c.allLogs)

	for _, id := range []string{"c1", "c2", "c4"} {
		if id != last {
			c.stop(id, os.Kill)
		}
	}
	if out := c.drover(c.local(last, "-stale", "job", "list")...); !strings.Contains(out, "here") {
		t.Errorf("a stale read from %s alone:\n%s", last, out)
	}
	repair := []string{"operator", "repair", "-alone", last}
	waitFor(t, "a command says how to go on", func() bool {
		_, err := droverOutput(t, c.local(last, "job", "list")...)
		return exitCode(err) == exitUnavailable && strings.Contains(err.Error(), "drover "+strings.Join(repair, " "))
	}, c.allLogs)
	c.stop(last, syscall.SIGTERM)
	repair = append(repair, "-data", c.at("data-"+last))
	if out, err := droverOutput(t, repair...); err == nil || !strings.Contains(out, "can be kept") || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("what would be kept: %v\n%s", err, out)
	}
	if out := c.drover(append(repair, "-accept-loss")...); !strings.Contains(out, "repaired in") {
		t.Errorf("repair:\n%s", out)
	}
	c.start(last)
	c.start("c5", "-join", c.peers[last])
	c.shows("c5", func(list string) bool {
		return strings.Contains(list, "c5 "+c.peers["c5"]+" follower") && strings.Contains(list, last+" "+c.peers[last]+" leader")
	})
	if out := c.drover(c.remote([]string{"c5"}, "job", "list")...); !strings.Contains(out, "here") {
		t.Errorf("the job is lost:\n%s", out)
	}
}
