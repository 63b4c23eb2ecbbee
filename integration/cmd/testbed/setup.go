package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/drover-run/drover/integration/internal/build"
	"github.com/drover-run/drover/integration/internal/cache"
)

func openCache() (cache.Dir, error) { return cache.Open(cache.RepoRoot()) }

func newProgress() *build.Progress { return build.NewProgress(os.Stderr) }

// upFile returns the path of the test bed file of `testbed up`.
func upFile(c cache.Dir) string { return c.Path("up.json") }

// absolutePath makes a path independent of the working directory, for the processes of the test
// bed.
func absolutePath(path string) string {
	if a, err := filepath.Abs(path); err == nil {
		return a
	}
	return path
}

// newFlagSet returns a flag set that returns errors instead of exiting.
func newFlagSet(name string) *flag.FlagSet {
	f := flag.NewFlagSet("testbed "+name, flag.ContinueOnError)
	f.SetOutput(os.Stderr)
	return f
}

// parseWithCommand parses flags that must be followed by a command.
func parseWithCommand(f *flag.FlagSet, args []string) ([]string, error) {
	if err := f.Parse(args); err != nil {
		return nil, errUsage
	}
	if f.NArg() == 0 {
		return nil, fmt.Errorf("%s: missing command after --", f.Name())
	}
	return f.Args(), nil
}
