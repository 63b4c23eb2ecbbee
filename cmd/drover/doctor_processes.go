package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// daemonProcess is a coordinator or node daemon that runs on this machine.
type daemonProcess struct {
	pid  int
	role string
	old  bool // its program was replaced since it started
}

// findDaemons looks through /proc, or a folder like it.
func findDaemons(proc string) []daemonProcess {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil
	}
	var found []daemonProcess
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join(proc, e.Name(), "cmdline"))
		args := strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")
		if err != nil || len(args) < 2 || filepath.Base(args[0]) != "drover" || !slices.Contains([]string{"coordinator", "node"}, args[1]) {
			continue
		}
		if args[1] == "node" && len(args) > 2 && !strings.HasPrefix(args[2], "-") {
			continue // a verb, as drover node list
		}
		exe, err := os.Readlink(filepath.Join(proc, e.Name(), "exe"))
		found = append(found, daemonProcess{pid, args[1], err == nil && strings.HasSuffix(exe, " (deleted)")})
	}
	slices.SortFunc(found, func(a, b daemonProcess) int { return a.pid - b.pid })
	return found
}

// checkUpgrade finds daemons that an upgrade did not restart.
func checkUpgrade(daemons []daemonProcess) checkResult {
	var old, roles []string
	for _, d := range daemons {
		if d.old {
			old = append(old, fmt.Sprintf("%s (process %d)", d.role, d.pid))
			roles = append(roles, "drover-"+d.role)
		}
	}
	if len(old) > 0 {
		return checkResult{"upgrade", statusDegraded, "half finished: " + strings.Join(old, ", ") + " still runs the program from before", "systemctl restart " + strings.Join(roles, " ")}
	}
	return checkResult{"upgrade", statusOK, fmt.Sprintf("%d daemons run, with the program that is installed", len(daemons)), ""}
}
