// Command record writes the page of one benchmark to docs/measured. The output of
// the benchmark is its standard input.
//
//	record -part NAME -command TEXT [-failed] FILE
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/drover-run/drover/integration/internal/record"
)

// maxOutput bounds the benchmark's output in bytes.
const maxOutput = 1 << 20

func main() {
	part := flag.String("part", "", "name of the benchmark")
	command := flag.String("command", "", "command that repeats it")
	failed := flag.Bool("failed", false, "the benchmark failed or missed a target")
	flag.Parse()
	if err := run(*part, *command, *failed, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func run(part, command string, failed bool, args []string) error {
	if part == "" || command == "" || len(args) != 1 {
		return errors.New("usage: record -part NAME -command TEXT [-failed] FILE <OUTPUT")
	}
	out, err := io.ReadAll(io.LimitReader(os.Stdin, maxOutput))
	if err != nil {
		return err
	}
	m, err := record.ThisMachine()
	if err != nil {
		return err
	}
	commit, err := commitName()
	if err != nil {
		return err
	}
	page := record.Page(record.Measurement{Part: part, Command: command, At: time.Now(), Commit: commit, Machine: m, Output: string(out), Failed: failed})
	return os.WriteFile(args[0], []byte(page), 0o644)
}

// commitName returns the present commit, with "-dirty" if files other than the
// measurements have changed.
func commitName() (string, error) {
	head, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "", fmt.Errorf("git rev-parse: %w", err)
	}
	name := strings.TrimSpace(string(head))
	changed, err := exec.Command("git", "status", "--porcelain", "--untracked-files=no", "--", ":/", ":(exclude,top)docs/measured").Output()
	if err != nil {
		return "", fmt.Errorf("git status: %w", err)
	}
	if len(changed) > 0 {
		name += "-dirty"
	}
	return name, nil
}
