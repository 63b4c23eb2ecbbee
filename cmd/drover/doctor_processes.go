package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// daemonProcess is a coordinator or node daemon that runs on this machine.
type daemonProcess struct {
	pid   int
	role  string
	old   bool  // its program was replaced since it started
	ports []int // where it listens by TCP; nil where that cannot be seen
}

// listensAt reports whether the daemon listens at the port of an address, or that cannot be seen.
func (d *daemonProcess) listensAt(address string) bool {
	_, text, _ := net.SplitHostPort(address)
	port, err := strconv.Atoi(text)
	return err != nil || port == 0 || d.ports == nil || slices.Contains(d.ports, port)
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
		found = append(found, daemonProcess{pid, args[1], err == nil && strings.HasSuffix(exe, " (deleted)"), listeningPorts(filepath.Join(proc, e.Name()))})
	}
	slices.SortFunc(found, func(a, b daemonProcess) int { return a.pid - b.pid })
	return found
}

// listeningPorts returns the TCP ports at which a process listens, nil where they cannot be seen.
func listeningPorts(process string) []int {
	open, err := os.ReadDir(filepath.Join(process, "fd"))
	if err != nil {
		return nil
	}
	own := map[string]bool{} // numbers of its sockets
	for _, e := range open {
		if to, err := os.Readlink(filepath.Join(process, "fd", e.Name())); err == nil {
			if socket, ok := strings.CutPrefix(to, "socket:["); ok {
				own[strings.TrimSuffix(socket, "]")] = true
			}
		}
	}
	ports := []int{}
	for _, table := range []string{"tcp", "tcp6"} {
		b, err := os.ReadFile(filepath.Join(process, "net", table))
		if err != nil {
			continue // without IPv6 there is no tcp6
		}
		for line := range strings.Lines(string(b)) {
			// sl, address:port, remote, state, queues, timer, retransmits, user, timeout, number of
			// the socket
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != listening || !own[f[9]] {
				continue
			}
			if port, err := strconv.ParseUint(f[1][strings.LastIndexByte(f[1], ':')+1:], 16, 16); err == nil {
				ports = append(ports, int(port))
			}
		}
	}
	return ports
}

// listening is TCP_LISTEN as /proc writes it.
const listening = "0A"

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
