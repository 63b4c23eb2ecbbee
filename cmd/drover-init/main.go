// Command drover-init is process 1 of a container that is used again. It contains nothing
// else, since one waits in each such container.
package main

import (
	"fmt"
	"os"

	"github.com/drover-run/drover/runtime/reuse/taskinit"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == taskinit.Verb {
		os.Exit(taskinit.Main(os.Args[2:]))
	}
	fmt.Fprintln(os.Stderr, "drover-init is started by the node daemon, as `drover-init "+taskinit.Verb+" FOLDER`")
	os.Exit(2)
}
