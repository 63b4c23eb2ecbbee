// Command drover is Drover: coordinator, node daemon and command line.
package main

import (
	"fmt"

	"github.com/drover-run/drover/internal/version"
)

func main() { fmt.Println("drover", version.Version) }
