// Command drover-helper is the helper, which fetches and uploads beside a task. Started from
// the drover binary it would cost ten times the page faults, charged to the task's own cgroup.
package main

import (
	"fmt"
	"os"

	"github.com/drover-run/drover/node/helper"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "helper" {
		os.Exit(helper.Main(os.Args[2:]))
	}
	fmt.Fprintln(os.Stderr, "drover-helper is started by the node daemon, as `drover-helper helper`")
	os.Exit(2)
}
