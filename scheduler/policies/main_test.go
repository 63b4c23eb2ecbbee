package policies

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// rapidSeed fixes the random worlds so that all builds are compared on the same
// ones. DROVER_SOAK=1 or -rapid.seed explores others.
const rapidSeed = "20261121"

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("rapid.seed"); os.Getenv("DROVER_SOAK") == "" && f != nil && f.Value.String() == f.DefValue {
		if err := f.Value.Set(rapidSeed); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}
