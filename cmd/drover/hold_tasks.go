package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/drover-run/drover/cgroups"
	"github.com/drover-run/drover/internal/systemd"
)

// holdTasks is the main process of drover-tasks.service: it keeps the cgroup that
// systemd delegates to the tasks, and does nothing else. It is not restarted when
// Drover is upgraded, since its end is the end of the tasks.
func holdTasks(args []string) int {
	if len(args) > 0 {
		fmt.Fprintln(os.Stderr, "drover: hold-tasks takes no arguments")
		return exitUsage
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, os.Interrupt)
	if err := cgroups.Hold(); err != nil {
		fmt.Fprintln(os.Stderr, "drover: "+err.Error())
		return exitCode(err)
	}
	if err := systemd.Ready("holds the cgroup of the tasks"); err != nil {
		fmt.Fprintln(os.Stderr, "drover: systemd was not told: "+err.Error())
	}
	<-end
	return exitOK
}
