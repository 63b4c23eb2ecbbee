package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/cgroups"
	"github.com/drover-run/drover/cgroups/diskbench"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/runtime/containerd"
)

// Limits of the checks that start something.
const (
	engineLimit = 10 * time.Second
	dumpLimit   = time.Minute
	dumpMemory  = 4 << 20 // bytes that the process holds which is dumped
)

// Bounds on free disk space, in bytes; below them a daemon works badly or not at all.
const (
	leastSpace = 512 << 20
	goodSpace  = 5 << 30
)

// checkContainerd asks containerd for its version.
func checkContainerd(ctx context.Context, socket string) checkResult {
	const name = "containerd"
	st, err := os.Stat(socket)
	if err != nil || st.Mode()&os.ModeSocket == 0 {
		cure := "apt-get install containerd, systemctl enable --now containerd, or name its socket with -containerd"
		if _, err := exec.LookPath("containerd"); err == nil { // a service that is stopped takes its socket with it
			cure = "systemctl enable --now containerd; journalctl -u containerd says why it stopped; or name its socket with -containerd"
		}
		return checkResult{name, statusMissing, "no socket at " + socket, cure}
	}
	const start = "systemctl restart containerd; journalctl -u containerd says why it stopped"
	d, err := containerd.New(containerd.Config{Address: socket})
	if err != nil {
		return checkResult{name, statusMissing, err.Error(), start}
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(ctx, engineLimit)
	defer cancel()
	v, err := d.Version(ctx)
	if err != nil {
		return checkResult{name, statusMissing, "it does not answer at " + socket + ": " + oneLine(err.Error()), start}
	}
	return checkResult{name, statusOK, v + " at " + socket, ""}
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// checkRunc wants runc to be there and able to filter system calls.
func checkRunc(ctx context.Context) checkResult {
	found := checkProgram("runc", statusMissing, "containerd starts tasks with it")
	if found.Status != statusOK {
		return found
	}
	ctx, cancel := context.WithTimeout(ctx, engineLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, "runc", "--version").Output()
	if err != nil {
		return checkResult{"runc", statusMissing, fmt.Sprintf("%s --version: %v", found.Detail, err), "apt-get install --reinstall runc"}
	}
	version, _, _ := strings.Cut(strings.TrimPrefix(string(out), "runc version "), "\n")
	if !strings.Contains(string(out), "libseccomp:") {
		return checkResult{"runc", statusMissing, version + " at " + found.Detail + " was built without seccomp: tasks could make any system call", "use a runc with seccomp: apt-get install runc, and remove the other one"}
	}
	return checkResult{"runc", statusOK, version + ", with seccomp", ""}
}

// checkCrun says what crun is for. Without it everything works.
func checkCrun(ctx context.Context) checkResult {
	path, err := exec.LookPath("crun")
	if err != nil {
		return checkResult{"crun", statusOK, "not installed: with it, containers that are never checkpointed start with two thirds of the CPU time", ""}
	}
	ctx, cancel := context.WithTimeout(ctx, engineLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil || !strings.Contains(string(out), "+SECCOMP") {
		return checkResult{"crun", statusOK, path + " cannot filter system calls: runc starts all containers", ""}
	}
	return checkResult{"crun", statusOK, path + ", for containers that are never checkpointed", ""}
}

// checkCriu dumps a process with criu and restores it.
func checkCriu(ctx context.Context, dir string, quick bool) checkResult {
	const name = "criu"
	found := checkProgram(name, statusDegraded, "without it tasks cannot be checkpointed, only frozen and swapped")
	switch {
	case found.Status != statusOK:
		return found
	case quick:
		return checkResult{name, statusUnchecked, found.Detail + " is there; no process was dumped, because of -quick", withoutQuick}
	case os.Geteuid() != 0:
		return checkResult{name, statusUnchecked, found.Detail + " is there; no process was dumped", asRoot}
	}
	ctx, cancel := context.WithTimeout(ctx, dumpLimit)
	defer cancel()
	took, err := tryCriu(ctx, dir)
	if err != nil {
		return checkResult{name, statusDegraded, found.Detail + ": a process could not be dumped and restored: " + oneLine(err.Error()), "criu check --all says what the kernel lacks; another kernel or criu"}
	}
	return checkResult{name, statusOK, fmt.Sprintf("%s: a process of %s was dumped and restored in %s", found.Detail, jobspec.FormatSize(dumpMemory), took.Round(time.Millisecond)), ""}
}

func tryCriu(ctx context.Context, dir string) (time.Duration, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	dir, err = os.MkdirTemp(dir, "drover-doctor-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	h, err := startMemoryHolder(self, dumpMemory)
	if err != nil {
		return 0, err
	}
	defer func() { _ = syscall.Kill(h.pid, syscall.SIGKILL) }() // gone already after a failed restore
	begun := time.Now()
	err = new(criuBaseline).measureRound(ctx, h, filepath.Join(dir, "image"))
	return time.Since(begun), err
}

// checkDelegation finds out whether the tasks' cgroup can have all controllers. A
// base that is no unit of systemd is made by the daemon.
func checkDelegation(mount, base string) checkResult {
	const name = "tasks' cgroup"
	if !strings.HasSuffix(base, ".service") && !strings.HasSuffix(base, ".scope") {
		return checkResult{name, statusOK, base + " is made by the node daemon", ""}
	}
	unit := path.Base(base)
	b, err := os.ReadFile(filepath.Join(mount, base, "cgroup.controllers"))
	if errors.Is(err, os.ErrNotExist) {
		return checkResult{name, statusUnchecked, unit + " does not run yet", "systemctl start drover-node starts it"}
	}
	if err != nil {
		return checkResult{name, statusMissing, err.Error(), asRoot}
	}
	if lack := lacking(string(b)); len(lack) > 0 {
		return checkResult{name, statusMissing, unit + " was not delegated " + strings.Join(lack, ", "), "Delegate=yes in " + unit + ", systemctl daemon-reload, and restart it once no task runs"}
	}
	return checkResult{name, statusOK, unit + " has cpu, memory, io, pids", ""}
}

// lacking lists the controllers that limits need and a list does not have.
func lacking(controllers string) []string {
	have := " " + strings.TrimSpace(controllers) + " "
	var lack []string
	for _, c := range []string{"cpu", "memory", "io", "pids"} {
		if !strings.Contains(have, " "+c+" ") {
			lack = append(lack, c)
		}
	}
	return lack
}

// existingFolder returns dir or its nearest existing parent.
func existingFolder(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || dir == "/" || dir == "." {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// checkSpace checks the free space of a folder's disk.
func checkSpace(dir string) checkResult {
	dir = existingFolder(dir)
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return checkResult{"disk space", statusMissing, err.Error(), readableFolder}
	}
	return spaceResult(dir, int64(fs.Bavail)*fs.Bsize, int64(fs.Blocks)*fs.Bsize, fs.Ffree, fs.Files)
}

func spaceResult(dir string, free, total int64, freeInodes, inodes uint64) checkResult {
	const name, cure = "disk space", "free some, or put the data folder on a larger disk"
	text := fmt.Sprintf("%s: %s of %s free", dir, jobspec.FormatSize(free), jobspec.FormatSize(total))
	switch {
	case free < leastSpace:
		return checkResult{name, statusMissing, text + ": the disk is full", cure}
	case inodes > 0 && freeInodes < inodes/100:
		return checkResult{name, statusMissing, fmt.Sprintf("%s: %d of %d inodes free", dir, freeInodes, inodes), "remove files, or make the file system anew with more inodes"}
	case free < goodSpace:
		return checkResult{name, statusDegraded, text, cure}
	default:
		return checkResult{name, statusOK, text, ""}
	}
}

// checkRates shows the measured rates of the whole disk behind a folder: those that
// the daemon measured, or measured now, which takes some seconds.
func checkRates(ctx context.Context, data string, quick bool) checkResult {
	const name = "disk rates"
	dir := existingFolder(data)
	dev, err := cgroups.DiskOf(dir)
	if err != nil {
		return checkResult{name, statusMissing, err.Error(), "put the data folder on a local disk"}
	}
	file := filepath.Join(data, "disk-rates.json")
	_, kept := os.Stat(file)
	if kept != nil && quick {
		return checkResult{name, statusUnchecked, "disk " + cgroups.DiskName(dev) + " was not measured yet, and is not now because of -quick", withoutQuick}
	}
	if kept != nil { // nothing is left behind where the daemon was not yet
		if dir, err = os.MkdirTemp(dir, "drover-doctor-"); err != nil {
			return checkResult{name, statusDegraded, "not measured: " + err.Error(), asRoot}
		}
		defer os.RemoveAll(dir)
		file = filepath.Join(dir, "disk-rates.json")
	}
	const keptFor = 100 * 365 * 24 * time.Hour // how old they are is the daemon's to judge
	r, fresh, err := diskbench.Cached(ctx, dir, file, keptFor, time.Now(), diskbench.Options{})
	if err != nil {
		return checkResult{name, statusDegraded, "not measured: " + oneLine(err.Error()), "free space on the disk, and run as root"}
	}
	when := "measured by the node daemon"
	if fresh {
		when = "measured now"
	}
	return checkResult{name, statusOK, fmt.Sprintf("disk %s: read %s/s, write %s/s, both at once %s/s; %s", cgroups.DiskName(dev),
		jobspec.FormatSize(r.ReadBPS), jobspec.FormatSize(r.WriteBPS), jobspec.FormatSize(r.MixedBPS), when), ""}
}
