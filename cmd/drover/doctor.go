package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

// finding is one thing that doctor looked at.
type finding struct {
	Name   string `json:"name"`
	Grade  string `json:"grade"` // ok, weaker (works, with less), missing
	Detail string `json:"detail"`
	Cure   string `json:"cure,omitempty"`
}

// The grades of a finding.
const (
	gradeOK      = "ok"
	gradeWeaker  = "weaker"
	gradeMissing = "missing"
)

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "what this machine lacks to be a node, each with its cure",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "data", Value: "/var/lib/drover", Usage: "folder that the node daemon would use"},
			&cli.StringFlag{Name: "containerd", Value: defaultContainerd, Usage: "containerd's socket"},
			jsonFlag,
		},
		Description: "Exit code 1 where something is missing; what is only weaker is named and does not count.",
		Action: func(c *cli.Context) error {
			if _, err := args(c, 0, 0, ""); err != nil {
				return err
			}
			found := examine(c.String("data"), c.String("containerd"))
			missing := 0
			for _, f := range found {
				if f.Grade == gradeMissing {
					missing++
				}
			}
			if c.Bool("json") {
				if err := printJSON(c.App.Writer, found); err != nil {
					return err
				}
			} else {
				for _, f := range found {
					fmt.Fprintf(c.App.Writer, "%-8s %-18s %s\n", f.Grade, f.Name, f.Detail)
					if f.Cure != "" {
						fmt.Fprintf(c.App.Writer, "%-8s %-18s cure: %s\n", "", "", f.Cure)
					}
				}
			}
			if missing > 0 {
				return coded{exitFailed, fmt.Errorf("%d things are missing; without them use `drover dev`, or the process driver without enforced limits", missing)}
			}
			return nil
		},
	}
}

// defaultContainerd is where Debian's containerd listens.
const defaultContainerd = "/run/containerd/containerd.sock"

// examine looks at this machine; it changes nothing.
func examine(data, socket string) []finding {
	return []finding{
		lookRoot(), lookCgroup("/sys/fs/cgroup"), lookKernel(), lookSocket(socket),
		lookProgram("runc", gradeMissing, "containerd starts tasks with it"),
		lookProgram("criu", gradeWeaker, "without it tasks cannot be checkpointed, only frozen and swapped"),
		lookProgram("iptables-restore", gradeWeaker, "criu needs it"),
		lookSwap("/proc/swaps"), lookDisk(data),
	}
}

func lookRoot() finding {
	if os.Geteuid() == 0 {
		return finding{"root", gradeOK, "running as root", ""}
	}
	return finding{"root", gradeMissing, "not root: cgroups, containers and quotas need it", "run the node daemon as root (the systemd unit does)"}
}

func lookCgroup(root string) finding {
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		return finding{"cgroup v2", gradeMissing, root + " is not the unified hierarchy", "boot with systemd.unified_cgroup_hierarchy=1 (the default since Debian 11)"}
	}
	b, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return finding{"cgroup v2", gradeMissing, err.Error(), ""}
	}
	have := " " + strings.TrimSpace(string(b)) + " "
	var lack []string
	for _, c := range []string{"cpu", "memory", "io", "pids"} {
		if !strings.Contains(have, " "+c+" ") {
			lack = append(lack, c)
		}
	}
	if len(lack) > 0 {
		return finding{"cgroup v2", gradeMissing, "controllers missing: " + strings.Join(lack, ", "), "enable them in the kernel's command line (cgroup_enable=memory) and in cgroup.subtree_control"}
	}
	return finding{"cgroup v2", gradeOK, "unified, with cpu, memory, io, pids", ""}
}

func lookKernel() finding {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return finding{"kernel", gradeMissing, err.Error(), ""}
	}
	release := unix.ByteSliceToString(u.Release[:])
	f := strings.SplitN(release, ".", 3)
	major, _ := strconv.Atoi(f[0])
	minor := 0
	if len(f) > 1 {
		minor, _ = strconv.Atoi(f[1])
	}
	if major < 5 || (major == 5 && minor < 19) {
		return finding{"kernel", gradeWeaker, release + ": memory.reclaim came with 5.19, so tasks cannot be swapped", "use kernel 5.19 or later"}
	}
	return finding{"kernel", gradeOK, release, ""}
}

func lookSocket(path string) finding {
	st, err := os.Stat(path)
	if err != nil || st.Mode()&os.ModeSocket == 0 {
		return finding{"containerd", gradeMissing, "no socket at " + path, "apt-get install containerd, or name its socket with -containerd"}
	}
	return finding{"containerd", gradeOK, path, ""}
}

func lookProgram(name, grade, why string) finding {
	path, err := exec.LookPath(name)
	if err != nil {
		pkg := strings.TrimSuffix(name, "-restore")
		return finding{name, grade, "not in PATH: " + why, "apt-get install " + pkg}
	}
	return finding{name, gradeOK, path, ""}
}

func lookSwap(table string) finding {
	b, err := os.ReadFile(table)
	if err != nil || strings.Count(strings.TrimSpace(string(b)), "\n") == 0 {
		return finding{"swap", gradeWeaker, "none: suspended tasks keep their memory or go to a checkpoint", "add a swap partition or file, as large as the tasks that shall be swapped"}
	}
	return finding{"swap", gradeOK, "present", ""}
}

// lookDisk asks whether limits and quotas can hold on the folder's disk; for a
// folder that does not exist yet it asks its nearest parent.
func lookDisk(dir string) finding {
	for {
		if _, err := os.Stat(dir); err == nil || dir == "/" {
			break
		}
		dir = filepath.Dir(dir)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return finding{"disk", gradeMissing, err.Error(), ""}
	}
	dev := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	if _, err := os.Stat(dev); err != nil {
		return finding{"disk", gradeWeaker, dir + " is not on a block device: io.max cannot hold there", "put the data folder on a disk with ext4 or xfs"}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return finding{"disk", gradeMissing, err.Error(), ""}
	}
	opts := mountOptions(dir)
	if (fs.Type == unix.EXT4_SUPER_MAGIC || fs.Type == unix.XFS_SUPER_MAGIC) && (strings.Contains(opts, "prjquota") || strings.Contains(opts, "pquota")) {
		return finding{"disk", gradeOK, dir + ": limits and project quotas hold", ""}
	}
	return finding{"disk", gradeWeaker, dir + ": no project quotas, disk use is polled", "tune2fs -O quota,project on the unmounted ext4, then mount with prjquota"}
}

// mountOptions gives the options of the mount that holds dir.
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
