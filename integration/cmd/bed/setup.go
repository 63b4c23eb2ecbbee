package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/drover-run/drover/integration/internal/build"
	"github.com/drover-run/drover/integration/internal/cache"
)

// repoRoot finds the repository that holds the current folder, "" if none does.
func repoRoot() string {
	d, err := os.Getwd()
	if err != nil {
		return ""
	}
	for ; ; d = filepath.Dir(d) {
		b, err := os.ReadFile(filepath.Join(d, "go.mod"))
		if err == nil && strings.HasPrefix(string(b), "module github.com/drover-run/drover\n") {
			return d
		}
		if d == filepath.Dir(d) {
			return ""
		}
	}
}

func openCache() (cache.Dir, error) { return cache.Open(repoRoot()) }

func newProgress() *build.Progress { return build.NewProgress(os.Stderr) }

// upFile is the bed file of the bed that `bed up` left running.
func upFile(c cache.Dir) string { return c.Path("up.json") }

// absolute makes a path independent of the current folder, for the processes of the bed.
func absolute(path string) string {
	if a, err := filepath.Abs(path); err == nil {
		return a
	}
	return path
}

// flags makes a flag set that reports its errors instead of ending the process.
func flags(name string) *flag.FlagSet {
	f := flag.NewFlagSet("bed "+name, flag.ContinueOnError)
	f.SetOutput(os.Stderr)
	return f
}

// parse parses flags and demands a command after them.
func parseWithCommand(f *flag.FlagSet, args []string) ([]string, error) {
	if err := f.Parse(args); err != nil {
		return nil, errUsage
	}
	if f.NArg() == 0 {
		return nil, fmt.Errorf("%s: which command? Write it after --", f.Name())
	}
	return f.Args(), nil
}
