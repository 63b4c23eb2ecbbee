package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/cgroups"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/containerd"
)

// checkResult is the result of one check of doctor.
type checkResult struct {
	Name   string `json:"name"`
	Status string `json:"status"` // ok, degraded (works with restrictions), missing, unchecked
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"`
}

// Cures that several checks have.
const (
	asRoot         = "run doctor as root"
	withContainerd = "run doctor as root, with a running containerd"
	withoutQuick   = "run doctor without -quick"
	readableFolder = "run doctor as root; else `dmesg` and `mount` say what is wrong with the disk behind the folder"
)

// The statuses of a check.
const (
	statusOK        = "ok"
	statusDegraded  = "degraded"
	statusMissing   = "missing"
	statusUnchecked = "unchecked" // it was not looked at; Detail says why
)

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "what this machine lacks to be a coordinator or a node, each with its cure",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: configFlag, Usage: "configuration file of a daemon, repeatable; default: those in " + configFolder},
			&cli.StringFlag{Name: "data", Value: "/var/lib/drover", Usage: "folder that the node daemon would use, without a configuration"},
			&cli.StringFlag{Name: "containerd", Value: defaultContainerd, Usage: "containerd's socket, without a configuration"},
			&cli.BoolFlag{Name: "quick", Usage: "neither dump a process nor measure a disk"},
			jsonFlag,
		},
		Description: "Exit code 1 where something is missing; what is only weaker (degraded), or was not looked at (unchecked), is named and does not count. Without a\n" +
			"configuration the machine is looked at as a node. It changes nothing: what it measures and dumps it removes.",
		Action: runDoctor,
	}
}

func runDoctor(c *cli.Context) error {
	if _, err := positionalArgs(c, 0, 0, ""); err != nil {
		return err
	}
	found := examine(c)
	missing := 0
	for _, f := range found {
		if f.Status == statusMissing {
			missing++
		}
	}
	if c.Bool("json") {
		if err := printJSON(c.App.Writer, map[string]any{"missing": missing, "checks": found}); err != nil {
			return err
		}
	} else {
		for _, f := range found {
			fmt.Fprintf(c.App.Writer, "%-9s %-18s %s\n", f.Status, f.Name, f.Detail)
			if f.Fix != "" {
				fmt.Fprintf(c.App.Writer, "%-9s %-18s cure: %s\n", "", "", f.Fix)
			}
		}
	}
	if missing > 0 {
		what := "1 thing is missing, with its cure above"
		if missing > 1 {
			what = fmt.Sprintf("%d things are missing, with their cures above", missing)
		}
		return exitError{exitFailed, fmt.Errorf("%s; `drover dev` tries jobs out without a cluster", what)}
	}
	return nil
}

// examine runs the checks of each daemon that is configured, or those of a node.
func examine(c *cli.Context) []checkResult {
	files := c.StringSlice(configFlag)
	if len(files) == 0 {
		for _, role := range []string{"coordinator", "node"} {
			if file := filepath.Join(configFolder, role+".hcl"); fileExists(file) {
				files = append(files, file)
			}
		}
	}
	daemons := findDaemons("/proc")
	var found []checkResult
	for _, file := range files {
		role, settings, result := checkConfiguration(file)
		found = append(found, result)
		switch {
		case settings == nil: // nothing to examine
		case role == "coordinator":
			found = append(found, examineCoordinator(settings, daemons)...)
		default:
			found = append(found, examineNode(c, settings, daemons)...)
		}
	}
	if len(files) == 0 {
		found = append(found, checkResult{"configuration", statusDegraded, "none: looked at as a node with the defaults", "drover config init node, or coordinator"})
		found = append(found, examineMachine(c, c.String("data"), c.String("containerd"), "/drover")...)
		found = append(found, checkClock(c.Context, nil, "", time.Now))
	}
	return append(found, checkUpgrade(daemons))
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// checkConfiguration reads a file, and returns no settings where that is impossible.
func checkConfiguration(file string) (role string, settings *cli.Context, result checkResult) {
	const name = "configuration"
	role, settings, err := readSettingsOfAnyRole(file)
	switch {
	case settings == nil:
		text, cure, _ := strings.Cut(err.Error(), "; ")
		result = checkResult{name, statusMissing, text, cure}
	case err != nil:
		result = checkResult{name, statusMissing, file + ", of the " + role + ": " + err.Error(), "correct it; `drover config validate " + role + " " + file + "` checks it"}
	default:
		result = checkResult{name, statusOK, file + ", of the " + role, ""}
	}
	return role, settings, result
}

// readSettingsOfAnyRole reads a settings file for the daemon that its name says, otherwise for the
// daemon that would start with it, or of which it has settings. It returns the valid settings even
// if others are wrong. It does not report problems of certificates, which have checks of their own.
func readSettingsOfAnyRole(file string) (role string, settings *cli.Context, err error) {
	roles := []string{"node", "coordinator"}
	if strings.Contains(filepath.Base(file), "coordinator") {
		slices.Reverse(roles)
	}
	named := strings.Contains(filepath.Base(file), roles[0])
	for i, r := range roles {
		c, wrong := validateSettings(r, file)
		if c != nil && (wrong == nil || named && i == 0) {
			return r, c, wrong
		}
		if c != nil && settings == nil || err == nil {
			role, settings, err = r, c, wrong
		}
	}
	return role, settings, err
}

// examineCoordinator checks what a coordinator needs.
func examineCoordinator(c *cli.Context, daemons []daemonProcess) []checkResult {
	found := []checkResult{checkSpace(c.String("data")), checkListen("coordinator", c.String("listen"), daemons)}
	if c.String("listen") != "" {
		found = append(found, checkCertificates(tlsFiles(c), pki.KindCoordinator, "", time.Now()))
	}
	if c.String("oidc-issuer") != "" {
		found = append(found, checkProvider(c))
	}
	return append(found, checkClock(c.Context, nil, "", time.Now))
}

// examineNode checks what a node needs, of this machine and of others.
func examineNode(doctor, c *cli.Context, daemons []daemonProcess) []checkResult {
	base := c.String("cgroup")
	if !c.IsSet("cgroup") && fileExists("/run/systemd/system") {
		base = "/system.slice/" + cgroups.TasksUnit // as the package's unit has it
	}
	found := examineMachine(doctor, c.String("data"), c.String("containerd"), base)
	name, err := nodeName(c)
	if err != nil {
		found = append(found, checkResult{"name", statusMissing, err.Error(), "name = \"NAME\""})
	}
	found = append(found, checkCertificates(tlsFiles(c), pki.KindNode, name, time.Now()), checkListen("node", c.String("listen"), daemons))
	for _, at := range splitList(c.String("coordinator")) {
		found = append(found, checkCoordinatorPort(doctor.Context, at))
	}
	h, address, err := httpClient(c, c.String("coordinator"))
	if err != nil {
		h = nil // the certificates' check says why
	}
	found = append(found, checkClock(doctor.Context, h, address, time.Now))
	if files, err := nodeFilesConfig(c); err == nil {
		for _, list := range append([][]string{files.NameNodes}, slices.Collect(maps.Values(files.Services))...) {
			if len(list) > 0 {
				found = append(found, checkNameNode(doctor.Context, list))
			}
		}
	}
	return found
}

// defaultContainerd is where Debian's containerd listens.
const defaultContainerd = "/run/containerd/containerd.sock"

// examineMachine checks what tasks need of this machine.
func examineMachine(doctor *cli.Context, data, socket, cgroup string) []checkResult {
	ctx, quick := doctor.Context, doctor.Bool("quick")
	return []checkResult{
		checkRoot(), checkKernel(), checkCgroup("/sys/fs/cgroup"), checkDelegation("/sys/fs/cgroup", cgroup), checkContainerd(ctx, socket), checkRunc(ctx), checkCrun(ctx),
		checkCriu(ctx, existingFolder(data), quick), checkProgram("iptables-restore", statusDegraded, "criu needs it"),
		checkSwap("/proc/swaps"), checkDisk(data), checkSpace(data), checkRates(ctx, data, quick), checkLeftovers(ctx, socket),
	}
}

func checkRoot() checkResult {
	if os.Geteuid() == 0 {
		return checkResult{"root", statusOK, "running as root", ""}
	}
	return checkResult{"root", statusMissing, "not root: cgroups, containers and quotas need it", "run the node daemon as root (the systemd unit does)"}
}

func checkCgroup(root string) checkResult {
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		return checkResult{"cgroup v2", statusMissing, root + " is not the unified hierarchy", "boot with systemd.unified_cgroup_hierarchy=1 (the default since Debian 11)"}
	}
	b, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return checkResult{"cgroup v2", statusMissing, err.Error(), asRoot}
	}
	lack := lacking(string(b))
	if len(lack) > 0 {
		return checkResult{"cgroup v2", statusMissing, "controllers missing: " + strings.Join(lack, ", "), "enable them in the kernel's command line (cgroup_enable=memory) and in cgroup.subtree_control"}
	}
	return checkResult{"cgroup v2", statusOK, "unified, with cpu, memory, io, pids", ""}
}

func checkKernel() checkResult {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return checkResult{"kernel", statusMissing, err.Error(), "use a Linux kernel, 5.19 or later"}
	}
	release := unix.ByteSliceToString(u.Release[:])
	f := strings.SplitN(release, ".", 3)
	major, _ := strconv.Atoi(f[0])
	minor := 0
	if len(f) > 1 {
		minor, _ = strconv.Atoi(f[1])
	}
	if major < 5 || (major == 5 && minor < 19) {
		return checkResult{"kernel", statusDegraded, release + ": memory.reclaim came with 5.19, so tasks cannot be swapped", "use kernel 5.19 or later"}
	}
	return checkResult{"kernel", statusOK, release, ""}
}

// maxLeftovers bounds the leftovers that are named, and leftoversLimit the time of the check.
const (
	maxLeftovers   = 5
	leftoversLimit = 10 * time.Second
)

// checkLeftovers looks for leftovers of containers that containerd no longer lists. A node daemon
// removes them within a minute, so it cannot remove those that stay.
func checkLeftovers(ctx context.Context, socket string) checkResult {
	const name = "leftovers"
	d, err := containerd.New(containerd.Config{Address: socket})
	if err != nil {
		return checkResult{name, statusUnchecked, err.Error(), withContainerd}
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(ctx, leftoversLimit)
	defer cancel()
	all, err := d.Leftovers(ctx)
	if err != nil {
		return checkResult{name, statusUnchecked, err.Error(), withContainerd}
	}
	return leftoversResult(all)
}

func leftoversResult(all []runtime.Leftover) checkResult {
	const name = "leftovers"
	var found []string
	for _, l := range all {
		if !l.Listed { // otherwise the container may be starting
			found = append(found, l.ID+": "+strings.Join(l.Parts, ", "))
		}
	}
	if len(found) == 0 {
		return checkResult{name, statusOK, "none", ""}
	}
	more := ""
	if n := len(found) - maxLeftovers; n > 0 {
		found, more = found[:maxLeftovers], fmt.Sprintf("; and of %d more", n)
	}
	return checkResult{name, statusDegraded, strings.Join(found, "; ") + more, "the node daemon removes them within a minute; its log says why one stays"}
}

func checkProgram(name, status, why string) checkResult {
	path, err := exec.LookPath(name)
	if err != nil {
		pkg := strings.TrimSuffix(name, "-restore")
		return checkResult{name, status, "not in PATH: " + why, "apt-get install " + pkg}
	}
	return checkResult{name, statusOK, path, ""}
}

func checkSwap(table string) checkResult {
	b, err := os.ReadFile(table)
	if err != nil || strings.Count(strings.TrimSpace(string(b)), "\n") == 0 {
		return checkResult{"swap", statusDegraded, "none: suspended tasks keep their memory or are checkpointed", "add a swap partition or file for the tasks to be swapped"}
	}
	return checkResult{"swap", statusOK, "present", ""}
}

// checkDisk checks whether limits and quotas can be enforced on the disk of the folder
// or, if it does not exist yet, of its nearest parent.
func checkDisk(dir string) checkResult {
	dir = existingFolder(dir)
	if _, err := os.Stat(dir); err != nil {
		return checkResult{"disk", statusMissing, err.Error(), readableFolder}
	}
	if _, err := cgroups.DiskOf(dir); err != nil { // the daemon does not start
		return checkResult{"disk", statusMissing, err.Error(), "put the data folder on a disk with ext4 or xfs"}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return checkResult{"disk", statusMissing, err.Error(), readableFolder}
	}
	opts := mountOptions(dir)
	if (fs.Type == unix.EXT4_SUPER_MAGIC || fs.Type == unix.XFS_SUPER_MAGIC) && (strings.Contains(opts, "prjquota") || strings.Contains(opts, "pquota")) {
		return checkResult{"disk", statusOK, dir + ": limits and project quotas can be enforced", ""}
	}
	return checkResult{"disk", statusDegraded, dir + ": no project quotas: disk usage is polled instead", "tune2fs -O quota,project on the unmounted ext4, then mount with prjquota"}
}

// mountOptions returns the options of the mount that contains dir.
func mountOptions(dir string) string {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return ""
	}
	best, opts := "", ""
	for _, l := range strings.Split(string(b), "\n") {
		f := strings.Fields(l)
		if len(f) < 4 {
			continue
		}
		at := strings.TrimSuffix(f[1], "/") + "/"
		if strings.HasPrefix(dir+"/", at) && len(at) >= len(best) {
			best, opts = at, f[3]
		}
	}
	return opts
}
