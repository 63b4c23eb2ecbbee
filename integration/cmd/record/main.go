// Command record writes the page of one benchmark to docs/measured. It reads the output of the
// benchmark from its standard input. The page ends with the figures that changed by more than a
// tenth against the page of the last release; record also prints the figures that became worse.
//
//	record -part NAME -command TEXT [-commit NAME] [-others PROCESSORS] [-failed] FILE
//	record -print-commit
//	record -summary FOLDER <TARGETS
//
// The last form writes summary.md and summary.jsonl of a folder from the pages in it, and from the
// targets of today, as devbench -targets and targets.sh print them.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/drover-run/drover/integration/internal/record"
)

// maxOutput bounds the benchmark's output in bytes.
const maxOutput = 1 << 20

func main() {
	part := flag.String("part", "", "name of the benchmark")
	command := flag.String("command", "", "command that repeats it")
	commit := flag.String("commit", "", "the commit that was measured; default: the present one")
	printCommit := flag.Bool("print-commit", false, "print the present commit: a benchmark may change files of the repository")
	others := flag.Float64("others", record.UnknownOthers, "processors that other work had meanwhile, on average")
	failed := flag.Bool("failed", false, "the benchmark failed or missed a target")
	summary := flag.String("summary", "", "write the summary of this `folder` of pages")
	flag.Parse()
	name, err := *commit, error(nil)
	if name == "" {
		name, err = record.CommitName()
	}
	switch {
	case err != nil:
	case *printCommit:
		fmt.Println(name)
	case *summary != "":
		err = summarize(*summary, *command, os.Stdin)
	default:
		err = run(*part, *command, name, *others, *failed, flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func run(part, command, commit string, others float64, failed bool, args []string) error {
	if part == "" || command == "" || len(args) != 1 {
		return errors.New("usage: record -part NAME -command TEXT [-commit NAME] [-others PROCESSORS] [-failed] FILE <OUTPUT")
	}
	out, err := io.ReadAll(io.LimitReader(os.Stdin, maxOutput))
	if err != nil {
		return err
	}
	m, err := record.ThisMachine()
	if err != nil {
		return err
	}
	m.Others = others
	now := record.Measurement{Part: part, Command: command, At: time.Now(), Commit: commit, Machine: m, Output: string(out), Failed: failed}
	before, err := lastRelease(args[0])
	if err != nil {
		return err
	}
	against, worse := record.Compare(string(before), now)
	if worse > 0 {
		fmt.Print(against)
	}
	return os.WriteFile(args[0], []byte(record.Page(now)+against), 0o644)
}

// lastRelease returns a file as it is in the last release, which is the newest tag, or in HEAD if
// there is no tag; nothing if there is no such file.
func lastRelease(file string) ([]byte, error) {
	abs, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	dir, name := filepath.Split(abs)
	revision := "HEAD"
	if tag, err := exec.Command("git", "-C", dir, "describe", "--tags", "--abbrev=0").Output(); err == nil {
		revision = strings.TrimSpace(string(tag))
	}
	text, err := exec.Command("git", "-C", dir, "show", revision+":./"+name).Output()
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, nil // the release has no such file
	}
	return text, err
}
