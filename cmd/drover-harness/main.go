// Command drover-harness is the harness as a small static binary that is mounted into
// task containers. Build it with CGO_ENABLED=0.
package main

import (
	"os"

	"github.com/drover-run/drover/mapreduce/harness"
)

func main() { os.Exit(harness.Main(os.Args[1:])) }
