// Command drover-logger writes the streams of one container to its log files. It contains
// nothing else, since containerd's shim starts it once for each task.
package main

import (
	"fmt"
	"os"

	"github.com/drover-run/drover/runtime/containerd/logger"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == logger.Verb {
		os.Exit(logger.Main(os.Args[2:]))
	}
	fmt.Fprintln(os.Stderr, "drover-logger is started by containerd's shim, as `drover-logger logger`")
	os.Exit(2)
}
