package cgroups

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
)

// controllers are the controllers that limits need and that Prepare enables.
var controllers = []string{"cpu", "memory", "io", "pids"}

// Mount returns the host's cgroup2 mount point. On a host with cgroup v1, alone
// or beside v2 (hybrid), the error is fault.Unsupported and names the cure.
func Mount() (string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fault.New(fault.Unsupported, "cgroups: %w: mount /proc", err)
	}
	mount, err := findMount(string(b))
	if err != nil {
		return "", err
	}
	return mount, checkControllers(mount, func(p string) (string, error) {
		b, err := os.ReadFile(p)
		return string(b), err
	})
}

// findMount finds the cgroup2 mount in the text of mountinfo (proc(5)).
func findMount(mountinfo string) (string, error) {
	var v2, v1 []string
	for s := bufio.NewScanner(strings.NewReader(mountinfo)); s.Scan(); {
		before, after, ok := strings.Cut(s.Text(), " - ")
		f, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(kind) < 1 {
			continue
		}
		switch kind[0] {
		case "cgroup2":
			v2 = append(v2, unescapeMountinfo(f[4]))
		case "cgroup":
			v1 = append(v1, unescapeMountinfo(f[4]))
		}
	}
	const cure = "boot with systemd.unified_cgroup_hierarchy=1 (and without cgroup_no_v1) on the kernel command line"
	switch {
	case len(v2) == 0 && len(v1) == 0:
		return "", fault.New(fault.Unsupported, "cgroups: none mounted: mount -t cgroup2 none /sys/fs/cgroup")
	case len(v2) == 0:
		return "", fault.New(fault.Unsupported, "cgroups: this host runs cgroup v1 (%s): %s", v1[0], cure)
	case len(v1) > 0:
		return "", fault.New(fault.Unsupported, "cgroups: this host runs cgroup v1 beside v2 (%s): %s", v1[0], cure)
	}
	if slices.Contains(v2, "/sys/fs/cgroup") {
		return "/sys/fs/cgroup", nil
	}
	return v2[0], nil
}

// unescapeMountinfo undoes the octal escapes of mountinfo.
func unescapeMountinfo(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

func checkControllers(mount string, read func(string) (string, error)) error {
	text, err := read(filepath.Join(mount, "cgroup.controllers"))
	if err != nil {
		return fault.New(fault.Unsupported, "cgroups: %s is not a cgroup2 mount: %w", mount, err)
	}
	have := strings.Fields(text)
	for _, c := range controllers {
		if !slices.Contains(have, c) {
			return fault.New(fault.Unsupported, "cgroups: %s lacks the %s controller: enable it on the kernel command line (cgroup_enable=%s) or delegate it to this service", mount, c, c)
		}
	}
	return nil
}

// DiskOf returns the whole disk that holds path, since io.max takes no
// partitions. File systems without a block device of their own (tmpfs, overlay,
// NFS, 9p) are fault.Unsupported.
func DiskOf(path string) (Device, error) { return diskOf("/sys", path) }

func diskOf(sys, path string) (Device, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Device{}, fault.New(fault.NotFound, "disk of %s: %w", path, err)
	}
	dev := Device{unix.Major(st.Dev), unix.Minor(st.Dev)}
	whole, err := wholeDisk(sys, dev)
	if err != nil {
		return Device{}, fmt.Errorf("disk of %s: %w", path, err)
	}
	return whole, nil
}

// wholeDisk maps a partition to its disk in sysfs.
func wholeDisk(sys string, dev Device) (Device, error) {
	at, err := filepath.EvalSymlinks(filepath.Join(sys, "dev/block", dev.String()))
	if errors.Is(err, os.ErrNotExist) {
		return Device{}, fault.New(fault.Unsupported, "its file system (device %s) is on no block device, so I/O cannot be limited: use a folder on a local disk", dev)
	}
	if err != nil {
		return Device{}, err
	}
	if _, err := os.Stat(filepath.Join(at, "partition")); err == nil {
		at = filepath.Dir(at)
	}
	text, err := os.ReadFile(filepath.Join(at, "dev"))
	if err != nil {
		return Device{}, err
	}
	return parseDevice(strings.TrimSpace(string(text)))
}

// DiskName returns the kernel's name of a disk, such as "vdb", or "major:minor"
// if sysfs has none.
func DiskName(d Device) string {
	at, err := filepath.EvalSymlinks(filepath.Join("/sys/dev/block", d.String()))
	if err != nil {
		return d.String()
	}
	return filepath.Base(at)
}

// swapFree returns the machine's free and total swap in bytes.
func swapFree() (free, total int64, err error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0, err
	}
	return parseSwap(string(b))
}

func parseSwap(meminfo string) (free, total int64, err error) {
	found := 0
	for _, line := range strings.Split(meminfo, "\n") {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "SwapFree:" && f[0] != "SwapTotal:" {
			continue
		}
		kib, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil || kib < 0 || kib > Max>>10 {
			return 0, 0, fault.New(fault.Corrupt, "meminfo: %q", line)
		}
		found++
		if f[0] == "SwapFree:" {
			free = kib << 10
		} else {
			total = kib << 10
		}
	}
	if found != 2 {
		return 0, 0, fault.New(fault.Corrupt, "meminfo: no SwapFree and SwapTotal")
	}
	return free, total, nil
}
