// Command drover-helper contains the programs that run beside each task: the helper that
// fetches and uploads, and the logger of containerd's streams. Started from the drover
// binary, each would cost ten times the page faults, charged to the task's own cgroup.
package main

import (
	"fmt"
	"os"

	"github.com/drover-run/drover/node/helper"
	"github.com/drover-run/drover/runtime/containerd/logger"
)

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "helper":
			os.Exit(helper.Main(os.Args[2:]))
		case "logger":
			os.Exit(logger.Main(os.Args[2:]))
		}
	}
	fmt.Fprintln(os.Stderr, "drover-helper is started by the node daemon, as `drover-helper helper` or `drover-helper logger`")
	os.Exit(2)
}
