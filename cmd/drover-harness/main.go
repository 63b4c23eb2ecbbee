// Command drover-harness is the harness alone, small and static, as it is
// mounted into task containers. Build it with CGO_ENABLED=0.
package main

import (
	"os"

	"github.com/drover-run/drover/mapreduce/harness"
)

func main() { os.Exit(harness.Main(os.Args[1:])) }
