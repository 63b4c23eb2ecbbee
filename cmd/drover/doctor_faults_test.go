package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/pki"
)

// machineFault is something wrong with a machine, put in on purpose.
type machineFault struct {
	name string
	look func(t *testing.T) checkResult
	want string // in the finding
	cure string // in its cure
}

// Doctor names each of ten faults, and how to mend it.
func TestDoctorNamesTenFaults(t *testing.T) {
	for _, f := range []machineFault{
		{"no swap", func(t *testing.T) checkResult {
			return checkSwap(textFile(t, "Filename\tType\tSize\tUsed\tPriority\n"))
		}, "none: suspended tasks keep their memory", "swap partition"},
		{"cgroup v1", func(t *testing.T) checkResult { return checkCgroup(t.TempDir()) },
			"is not the unified hierarchy", "systemd.unified_cgroup_hierarchy=1"},
		{"containerd stopped", stoppedContainerd, "it does not answer", "systemctl restart containerd"},
		{"containerd stopped with its socket", func(t *testing.T) checkResult {
			onlyProgram(t, "containerd", "exit 0")
			return checkContainerd(t.Context(), filepath.Join(t.TempDir(), "s"))
		}, "no socket", "systemctl enable --now containerd"},
		{"containerd not installed", func(t *testing.T) checkResult {
			t.Setenv("PATH", t.TempDir())
			return checkContainerd(t.Context(), filepath.Join(t.TempDir(), "s"))
		}, "no socket", "apt-get install containerd"},
		{"runc without seccomp", func(t *testing.T) checkResult {
			onlyProgram(t, "runc", "printf 'runc version 1.1.15\\nspec: 1.0.2\\ngo: go1.22\\n'")
			return checkRunc(t.Context())
		}, "without seccomp", "a runc with seccomp"},
		{"full disk", fullDisk, "the disk is full", "larger disk"},
		{"wrong clock", wrongClock, "from the coordinator's: leases", "timedatectl"},
		{"closed port", closedPort, "nothing listens there", "open TCP port"},
		{"NameNode in safe mode", func(*testing.T) checkResult { return nameNodeResult("nn1:8020", true, nil) }, "in safe mode", "-safemode leave"},
		{"bad certificate", func(t *testing.T) checkResult {
			return checkCertificates(nodeCertificate(t), pki.KindNode, "n1", time.Now().Add(2*pki.CertLifetime))
		}, "expired", "drover tls cert -kind node"},
		{"missing criu", func(t *testing.T) checkResult {
			t.Setenv("PATH", t.TempDir())
			return checkCriu(t.Context(), t.TempDir(), false)
		}, "cannot be checkpointed", "apt-get install criu"},
	} {
		t.Run(f.name, func(t *testing.T) {
			got := f.look(t)
			if got.Status == statusOK || !strings.Contains(got.Detail, f.want) || !strings.Contains(got.Fix, f.cure) {
				t.Errorf("%+v, want %q and the cure %q", got, f.want, f.cure)
			}
		})
	}
}

// Where nothing is wrong, the same checks find nothing.
func TestDoctorFindsNothingWithoutAFault(t *testing.T) {
	onlyProgram(t, "runc", "printf 'runc version 1.1.15\\nlibseccomp: 2.5.4\\n'")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, got := range []checkResult{
		checkSwap(textFile(t, "Filename\tType\tSize\tUsed\tPriority\n/dev/vdb partition 1 0 -2\n")),
		checkRunc(t.Context()),
		checkCrun(t.Context()),
		spaceResult("/", 80<<30, 100<<30, 900, 1000),
		checkReachable(t.Context(), "coordinator", l.Addr().String(), ""),
		nameNodeResult("nn1:8020", false, nil),
		checkCertificates(nodeCertificate(t), pki.KindNode, "n1", time.Now()),
		checkListen("node", "127.0.0.1:0", nil),
		checkUpgrade([]daemonProcess{{pid: 7, role: "node"}}),
	} {
		if got.Status != statusOK {
			t.Errorf("%+v", got)
		}
	}
}

// What was not looked at is not called right.
func TestDoctorSaysWhatItDidNotCheck(t *testing.T) {
	onlyProgram(t, "criu", "exit 0")
	for name, got := range map[string]checkResult{
		"a dump that was not tried":   checkCriu(t.Context(), t.TempDir(), true),
		"leftovers without an engine": checkLeftovers(t.Context(), filepath.Join(t.TempDir(), "s")),
		"a unit that does not run":    checkDelegation(t.TempDir(), "/system.slice/drover-tasks.service"),
	} {
		if got.Status != statusUnchecked {
			t.Errorf("%s: %+v", name, got)
		}
	}
	h := &http.Client{Timeout: time.Second}
	if got := checkClock(t.Context(), h, "http://127.0.0.1:1", time.Now); !strings.Contains(got.Detail, "its clock was not compared") {
		t.Errorf("a coordinator that does not answer: %+v", got)
	}
}

// The cure of certificates that are missing is a command that can be typed, and where its files go.
func TestDoctorSaysWhereCertificatesGo(t *testing.T) {
	const cert = "make a new one with `drover tls cert -kind node -host HOST n1` where the authority is, and put it in place as "
	for want, f := range map[string]pki.Files{
		cert + "/etc/drover/tls/node.pem, with its key as /etc/drover/tls/node.key and the authority's certificate as /etc/drover/tls/ca.pem, " +
			"and name them in tls_cert, tls_key and tls_ca": {},
		cert + "gone/n1.pem, with its key as gone/n1.key and the authority's certificate as gone/ca.pem": {CA: "gone/ca.pem", Cert: "gone/n1.pem", Key: "gone/n1.key"},
	} {
		if got := checkCertificates(f, pki.KindNode, "n1", time.Now()); got.Fix != want {
			t.Errorf("%+v\nwant %s", got, want)
		}
	}
	if got := checkCertificates(pki.Files{}, pki.KindCoordinator, "", time.Now()); !strings.Contains(got.Fix, "drover tls cert -kind coordinator -host HOST NAME`") {
		t.Errorf("%+v", got)
	}
}

func TestDoctorNearlyWrong(t *testing.T) {
	soon := time.Now().Add(pki.CertLifetime - 24*time.Hour)
	if got := checkCertificates(nodeCertificate(t), pki.KindNode, "n1", soon); got.Status != statusDegraded || !strings.Contains(got.Fix, "systemctl reload drover-node") {
		t.Errorf("a certificate that ends tomorrow: %+v", got)
	}
	for _, got := range []checkResult{checkDisk("/dev/shm"), checkRates(t.Context(), "/dev/shm", true)} { // the daemon would not start
		if got.Status != statusMissing || !strings.Contains(got.Detail, "is on no block device") {
			t.Errorf("a data folder in memory: %+v", got)
		}
	}
	if got := nameNodeResult("nn1:8020", false, hdfs.ErrSafeMode); got.Status != statusMissing {
		t.Errorf("safe mode as an error: %+v", got)
	}
	if got := spaceResult("/", 80<<30, 100<<30, 5, 1000); got.Status != statusMissing || !strings.Contains(got.Detail, "inodes") {
		t.Errorf("no inodes: %+v", got)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := checkListen("node", l.Addr().String(), nil); got.Status != statusMissing || !strings.Contains(got.Detail, "another process has this port") {
		t.Errorf("a port in use: %+v", got)
	}
	if got := checkListen("node", "localhost:0", nil); got.Status != statusOK {
		t.Errorf("loopback by its own name: %+v", got)
	}
	if host, err := os.Hostname(); err == nil {
		if ips, err := net.LookupIP(host); err == nil && !slices.ContainsFunc(ips, func(ip net.IP) bool { return !ip.IsLoopback() }) {
			if got := checkListen("node", host+":0", nil); got.Status != statusMissing || !strings.Contains(got.Detail, "no other machine reaches") {
				t.Errorf("a name of loopback: %+v", got)
			}
		}
	}
	if got := checkListen("node", l.Addr().String(), []daemonProcess{{pid: 9, role: "node"}}); got.Status != statusOK {
		t.Errorf("a port in use by the node, as far as can be seen: %+v", got)
	}
	self := daemonProcess{pid: os.Getpid(), role: "node", ports: listeningPorts("/proc/self")}
	if got := checkListen("node", l.Addr().String(), []daemonProcess{self}); got.Status != statusOK {
		t.Errorf("a port in use by the node: %+v", got)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	if got := checkListen("node", free.Addr().String(), []daemonProcess{self}); got.Status != statusDegraded || !strings.Contains(got.Detail, "other settings") {
		t.Errorf("a port at which the node that runs does not listen: %+v", got)
	}
}

// A daemon whose program was replaced is an upgrade that is half finished.
func TestDoctorFindsHalfFinishedUpgrade(t *testing.T) {
	proc := t.TempDir()
	for pid, p := range map[string]struct{ args, exe string }{
		"7":  {"/usr/bin/drover\x00node\x00-config\x00/etc/drover/node.hcl\x00", "/usr/bin/drover (deleted)"},
		"8":  {"/usr/bin/drover\x00coordinator\x00", "/usr/bin/drover"},
		"9":  {"drover\x00node\x00list\x00", "/usr/bin/drover (deleted)"},
		"10": {"/usr/bin/drover\x00hold-tasks\x00", "/usr/bin/drover (deleted)"}, // it stays
	} {
		dir := filepath.Join(proc, pid)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, "cmdline"), p.args)
		if err := os.Symlink(p.exe, filepath.Join(dir, "exe")); err != nil {
			t.Fatal(err)
		}
	}
	daemons := findDaemons(proc)
	if len(daemons) != 2 {
		t.Fatalf("%+v", daemons)
	}
	got := checkUpgrade(daemons)
	if got.Status != statusDegraded || got.Fix != "systemctl restart drover-node" || !strings.Contains(got.Detail, "process 7") {
		t.Errorf("%+v", got)
	}
}

func TestDoctorDelegation(t *testing.T) {
	mount, base := t.TempDir(), "/system.slice/drover-tasks.service"
	if got := checkDelegation(mount, base); got.Status != statusUnchecked || !strings.Contains(got.Detail, "does not run yet") {
		t.Errorf("%+v", got)
	}
	if err := os.MkdirAll(filepath.Join(mount, base), 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(mount, base, "cgroup.controllers"), "cpuset cpu memory pids\n")
	if got := checkDelegation(mount, base); got.Status != statusMissing || !strings.Contains(got.Detail, "not delegated io") || !strings.Contains(got.Fix, "Delegate=yes") {
		t.Errorf("%+v", got)
	}
}

func textFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	writeFile(t, path, text)
	return path
}

// onlyProgram has PATH hold one program, of a shell's words, besides what the shell needs.
func onlyProgram(t *testing.T, name, words string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+words+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
}

// stoppedContainerd leaves a socket on which nobody listens.
func stoppedContainerd(t *testing.T) checkResult {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // else the client tries for longer
	defer cancel()
	return checkContainerd(ctx, path)
}

// fullDisk mounts a file system of one megabyte.
func fullDisk(t *testing.T) checkResult {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("not proved here: that doctor names a full disk; a small file system needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return checkSpace(dir)
}

// wrongClock has a coordinator answer with a clock an hour ahead.
func wrongClock(t *testing.T) checkResult {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
	}))
	defer s.Close()
	return checkClock(t.Context(), s.Client(), s.URL, time.Now)
}

// closedPort is a port that was open a moment ago.
func closedPort(t *testing.T) checkResult {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	return checkCoordinatorPort(t.Context(), "https://"+l.Addr().String())
}

func nodeCertificate(t *testing.T) pki.Files {
	t.Helper()
	dir := t.TempDir()
	if err := pki.CreateCA(dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := pki.IssueCert(dir, pki.CertRequest{Kind: pki.KindNode, Name: "n1", Hosts: []string{"127.0.0.1"}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	return pki.Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "n1.pem"), Key: filepath.Join(dir, "n1.key")}
}

// The reason of another cluster's certificate has a colon of its own, which does not begin the
// cure.
func TestDoctorNamesAnotherClustersCertificate(t *testing.T) {
	f := nodeCertificate(t)
	f.CA = nodeCertificate(t).CA
	got := checkCertificates(f, pki.KindNode, "n1", time.Now())
	if got.Status != statusMissing || !strings.HasSuffix(got.Detail, ")") || got.Fix != "the two are of different clusters; use files of one" {
		t.Errorf("%+v", got)
	}
}
