package testbed_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/integration/testbed"
)

// These tests run inside a test bed with three machines and HDFS:
//
//	go run ./integration/cmd/testbed run -hdfs -- go test ./integration/testbed
//
// Elsewhere they skip. They restore the test bed to its original state.

const testTimeout = 3 * time.Minute

// insideTestbed returns the test bed. It skips the test if the test bed has fewer machines, or no
// HDFS although hdfs is true.
func insideTestbed(t *testing.T, machines int, hdfs bool) (context.Context, *testbed.Bed) {
	t.Helper()
	b, err := testbed.FromEnv()
	if err != nil {
		t.Skip("not proved here: that the machines of the test bed are as its users expect; ", err)
	}
	if len(b.Nodes) < machines {
		t.Skipf("not proved here: what this test checks between machines; the test bed has %d, the test needs %d (flag -nodes)", len(b.Nodes), machines)
	}
	if hdfs && b.HDFS == nil {
		t.Skip("not proved here: that the test bed's HDFS is as its users expect; this one runs none (flag -hdfs)")
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx, b
}

// sh runs a script on a machine; the test fails if the script does.
func sh(ctx context.Context, t *testing.T, n *testbed.Node, script string) string {
	t.Helper()
	out, err := n.Sh(ctx, script)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestMachinesMeetDroversNeeds(t *testing.T) {
	ctx, b := insideTestbed(t, 1, false)
	for _, n := range b.Nodes {
		if got := sh(ctx, t, n, "hostname"); got != n.Name {
			t.Errorf("%s calls itself %s", n.Name, got)
		}
		if got := sh(ctx, t, n, "stat -fc %T /sys/fs/cgroup"); got != "cgroup2fs" {
			t.Errorf("%s: /sys/fs/cgroup is %s", n.Name, got)
		}
		controllers := strings.Fields(sh(ctx, t, n, "cat /sys/fs/cgroup/cgroup.subtree_control"))
		for _, want := range []string{"cpu", "cpuset", "memory", "io", "pids"} {
			if !strings.Contains(" "+strings.Join(controllers, " ")+" ", " "+want+" ") {
				t.Errorf("%s: no controller %s in %v", n.Name, want, controllers)
			}
		}
		if got := sh(ctx, t, n, "ctr version | grep -c Version"); got != "2" {
			t.Errorf("%s: containerd does not answer", n.Name)
		}
		if n.IsHost {
			continue
		}
		if got := sh(ctx, t, n, "awk 'NR>1 {print $1, $3}' /proc/swaps"); got != "/dev/vdc 1048572" {
			t.Errorf("%s: swap is %q", n.Name, got)
		}
		if got := sh(ctx, t, n, "runc --version | head -1; criu --version | head -1"); !strings.Contains(got, "runc version") || !strings.Contains(got, "Version:") {
			t.Errorf("%s: %s", n.Name, got)
		}
	}
}

// TestHostAsMachine runs this test binary in a test bed whose only machine is the host, on a
// machine of this test bed, which has all that such a host needs.
func TestHostAsMachine(t *testing.T) {
	ctx, b := insideTestbed(t, 1, false)
	n := b.Nodes[0]
	if n.IsHost {
		t.Skip("not proved here: that the host works as a machine; TestHostAsMachine runs this test inside")
	}
	program := filepath.Join(t.TempDir(), "testbed")
	build := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", program, "../cmd/testbed")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	tests, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	sh(ctx, t, n, "mkdir -p /data/host")
	t.Cleanup(func() { sh(context.WithoutCancel(ctx), t, n, "rm -rf /data/host") })
	for from, to := range map[string]string{program: "testbed", tests: "testbed.test"} {
		if err := n.Put(ctx, from, "/data/host/"+to); err != nil {
			t.Fatal(err)
		}
	}
	out := sh(ctx, t, n, "cd /data/host && chmod +x testbed testbed.test && DROVER_CACHE=/data/host/cache ./testbed run -host -- ./testbed.test -test.v -test.run '^TestMachinesMeetDroversNeeds$' 2>&1")
	if !strings.Contains(out, "--- PASS: TestMachinesMeetDroversNeeds") {
		t.Errorf("a test bed on %s as its own host:\n%s", n.Name, out)
	}
}

func TestMachinesHaveRightTimeAndOwnEntropy(t *testing.T) {
	ctx, b := insideTestbed(t, 2, false)
	seen := map[string]string{}
	for _, n := range b.Nodes {
		before := time.Now()
		out := sh(ctx, t, n, "date +%s.%N; head -c 16 /dev/urandom | od -An -tx1; cat /sys/class/net/eth0/address")
		after := time.Now()
		lines := strings.Split(out, "\n")
		s, err := strconv.ParseFloat(lines[0], 64)
		if err != nil {
			t.Fatal(err)
		}
		const slack = time.Second // the clock was set over the network; drift since
		if at := time.Unix(0, int64(s*1e9)); at.Before(before.Add(-slack)) || at.After(after.Add(slack)) {
			t.Errorf("%s says %v between %v and %v", n.Name, at, before, after)
		}
		for _, own := range lines[1:] {
			if other := seen[own]; other != "" {
				t.Errorf("%s and %s share %s", n.Name, other, own)
			}
			seen[own] = n.Name
		}
	}
}

func TestMachinesReachEachOtherAndTheHostSide(t *testing.T) {
	ctx, b := insideTestbed(t, 2, true)
	from, to := b.Nodes[0], b.Nodes[1]
	for _, address := range []string{to.Agent, b.HDFS.NameNode, b.HDFS.DataNodes[0].IP + ":9866"} {
		if _, err := from.Sh(ctx, "exec 3<>/dev/tcp/"+strings.Replace(address, ":", "/", 1)); err != nil {
			t.Errorf("%s cannot reach %s: %v", from.Name, address, err)
		}
	}
}

// TestTheDataDiskObeysIOMax writes 8 MiB at 2 MiB/s: the limit is a lower bound of the time, however slow the host.
func TestTheDataDiskObeysIOMax(t *testing.T) {
	ctx, b := insideTestbed(t, 1, false)
	n := b.Nodes[0]
	if n.IsHost {
		t.Skip("not proved here: that the data disk obeys io.max; the host is the machine, and its disk cannot be limited")
	}
	out := sh(ctx, t, n, `
		set -e
		g=/sys/fs/cgroup/testbed-io; mkdir $g
		echo "$(cat /sys/class/block/vdb/dev) rbps=max wbps=2097152" >$g/io.max
		cat $g/io.max
		a=$(cut -d' ' -f1 /proc/uptime)
		(echo $BASHPID >$g/cgroup.procs; exec dd if=/dev/zero of=/data/testbed-io bs=256k count=32 oflag=direct status=none)
		echo $a $(cut -d' ' -f1 /proc/uptime)
		rmdir $g; rm /data/testbed-io`)
	lines := strings.Split(out, "\n")
	if !strings.Contains(lines[0], "wbps=2097152") {
		t.Errorf("io.max reads back as %q", lines[0])
	}
	var from, to float64
	if _, err := fmt.Sscan(lines[1], &from, &to); err != nil {
		t.Fatal(err)
	}
	if to-from < 3 {
		t.Errorf("8 MiB at 2 MiB/s took %.1f s", to-from)
	}
}

func TestTheDataDiskHasProjectQuotas(t *testing.T) {
	ctx, b := insideTestbed(t, 1, false)
	n := b.Nodes[0]
	if n.IsHost {
		t.Skip("not proved here: that the data disk has project quotas; the host is the machine, and its disk cannot be changed")
	}
	r, err := n.Exec(ctx, "bash", "-c", `
		mkdir -m 777 /data/testbed-quota && chattr +P -p 4711 /data/testbed-quota && setquota -P 4711 0 4096 0 0 /data || exit 1
		setpriv --reuid=65534 --clear-groups dd if=/dev/zero of=/data/testbed-quota/f bs=64k count=128 && exit 2
		stat -c %s /data/testbed-quota/f; rm -rf /data/testbed-quota; setquota -P 4711 0 0 0 0 /data`)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	got, err := strconv.Atoi(strings.TrimSpace(r.Stdout))
	const quota, folder = 4 << 20, 4 << 10 // the folder itself counts as well
	if err != nil || !strings.Contains(r.Stderr, "Disk quota exceeded") || got > quota || got < quota-2*folder {
		t.Errorf("a quota of 4 MiB admitted %s bytes: %s", r.Stdout, r.Stderr)
	}
}

func TestTheImagesRun(t *testing.T) {
	ctx, b := insideTestbed(t, 1, false)
	if b.File.Images == nil {
		t.Skip("not proved here: that the test images run; the test bed has none")
	}
	n := b.Nodes[0]
	if got := sh(ctx, t, n, "ctr image ls -q"); got != "" {
		t.Errorf("images exist before a test imports them: %s", got)
	}
	for name, command := range map[string]string{
		"busybox": "sh -c 'echo a b | wc -w'",
		"python":  `python3 -c 'import collections, re, sys; print(len(re.findall("[a-z]", "a b")))'`,
	} {
		image, err := n.ImportImage(ctx, b.File.Images[name], "testbed-test")
		if err != nil {
			t.Fatal(err)
		}
		if got := sh(ctx, t, n, "ctr -n testbed-test run --rm --read-only "+image+" "+name+" "+command); got != "2" {
			t.Errorf("%s printed %q", name, got)
		}
		sh(ctx, t, n, "ctr -n testbed-test image rm --sync "+image)
	}
	sh(ctx, t, n, "ctr namespace rm testbed-test")
}

func TestMachineFilesAndProcesses(t *testing.T) {
	ctx, b := insideTestbed(t, 1, false)
	n := b.Nodes[len(b.Nodes)-1]
	local := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(local, []byte("#!/bin/sh\necho here; exec sleep 600\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := n.Put(ctx, local, "/tmp/testbed-files/f"); err != nil {
		t.Fatal(err)
	}
	if err := n.Get(ctx, "/tmp/testbed-files/f", local+".back"); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(local + ".back"); err != nil || !strings.Contains(string(b), "here") {
		t.Errorf("%q, %v", b, err)
	}
	p, err := n.Start(ctx, "/tmp/testbed-files/log", "/tmp/testbed-files/f")
	if err != nil {
		t.Fatal(err)
	}
	err = testbed.WaitFor(ctx, time.Minute, "the process's output", func(ctx context.Context) error {
		out, err := p.Output(ctx)
		if err == nil && out != "here\n" {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if err := p.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if running, code, err := p.Running(ctx); running || code != 137 || err != nil {
		t.Errorf("running %v, code %d, %v", running, code, err)
	}
	sh(ctx, t, n, "rm -r /tmp/testbed-files")
}

func TestPauseAndPartitionMachine(t *testing.T) {
	ctx, b := insideTestbed(t, 2, false)
	n := b.Nodes[1]
	short := func() error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		_, err := n.Exec(ctx, "true")
		return err
	}
	if err := n.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	if s, err := n.State(ctx); err != nil || s != "paused" {
		t.Errorf("state %q, %v", s, err)
	}
	if short() == nil {
		t.Error("a paused machine answers")
	}
	if err := n.Continue(ctx); err != nil {
		t.Fatal(err)
	}
	sh(ctx, t, n, "true")
	if err := n.Partition(ctx); err != nil {
		t.Fatal(err)
	}
	if short() == nil {
		t.Error("a partitioned machine answers")
	}
	if err := n.Heal(ctx); err != nil {
		t.Fatal(err)
	}
	sh(ctx, t, n, "true")
}

// webGet sends a request to WebHDFS and decodes the answer.
func webGet(ctx context.Context, t *testing.T, h *testbed.HDFS, path, op string, answer any) {
	t.Helper()
	u := url.URL{Scheme: "http", Host: h.Web, Path: "/webhdfs/v1" + path, RawQuery: "op=" + op}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", u.String(), a.Status)
	}
	if err := json.NewDecoder(a.Body).Decode(answer); err != nil {
		t.Fatal(err)
	}
}

func TestLoadPlacesBlocksAndReportsRacks(t *testing.T) {
	ctx, b := insideTestbed(t, 0, true)
	h := b.HDFS
	last := len(h.DataNodes)
	local := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(local, make([]byte, 5<<20+7), 0o644); err != nil {
		t.Fatal(err)
	}
	remote := fmt.Sprintf("/testbed-load-%d", time.Now().UnixNano())
	if err := h.Load(ctx, local, remote, 1<<20, 1, 1, last); err != nil {
		t.Fatal(err)
	}
	var a struct {
		BlockLocations struct {
			BlockLocation []struct {
				Length        int
				TopologyPaths []string
			}
		}
	}
	webGet(ctx, t, h, remote, "GETFILEBLOCKLOCATIONS", &a)
	var got []string
	for _, l := range a.BlockLocations.BlockLocation {
		got = append(got, fmt.Sprintf("%d %s", l.Length, strings.Join(l.TopologyPaths, ",")))
	}
	at := func(k, length int) string {
		d := h.DataNodes[k-1]
		return fmt.Sprintf("%d %s/%s:9866", length, d.Rack, d.IP)
	}
	want := []string{at(1, 1<<20), at(1, 1<<20), at(last, 1<<20), at(1, 1<<20), at(1, 1<<20), at(last, 7)}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("blocks are at\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if err := h.Load(ctx, local, remote, 1<<20, 1); err == nil {
		t.Error("loading over an existing file was accepted")
	}
	if err := h.Load(ctx, local, remote+"x", 1<<20, last+1); err == nil {
		t.Error("a DataNode that does not exist was accepted")
	}
}

func TestHDFSDaemonsEndAndRestart(t *testing.T) {
	ctx, b := insideTestbed(t, 0, true)
	h := b.HDFS
	all := len(h.DataNodes)
	step := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	step("all live", h.AwaitLive(ctx, all, time.Minute))
	step("stop DataNode", h.StopDataNode(ctx, 1))
	step("counts as dead", h.AwaitLive(ctx, all-1, time.Minute))
	step("start DataNode", h.StartDataNode(ctx, 1))
	step("registered again", h.AwaitLive(ctx, all, time.Minute))
	step("stop NameNode", h.StopNameNode(ctx))
	if c, err := b.Dial(ctx, h.NameNode); err == nil {
		c.Close()
		t.Error("a stopped NameNode accepts connections")
	}
	step("start NameNode", h.StartNameNode(ctx))
	step("all live", h.AwaitLive(ctx, all, time.Minute))
	step("kill NameNode", h.KillNameNode(ctx))
	if n, _, err := h.LiveDataNodes(ctx); n != 0 || err != nil {
		t.Errorf("a killed NameNode has %d DataNodes, %v", n, err)
	}
	if err := h.KillNameNode(ctx); err == nil {
		t.Error("a killed NameNode was killed again")
	}
	step("kill DataNode", h.KillDataNode(ctx, 1))
	step("start NameNode", h.StartNameNode(ctx))
	step("start DataNode", h.StartDataNode(ctx, 1))
	step("all live", h.AwaitLive(ctx, all, time.Minute))
	step("pause", h.Pause(ctx))
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if _, _, err := h.LiveDataNodes(short); err == nil {
		t.Error("paused daemons answer")
	}
	step("continue", h.Continue(ctx))
	step("all live", h.AwaitLive(ctx, all, time.Minute))
}
