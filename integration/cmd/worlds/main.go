// Command worlds runs TestNoGuaranteeIsViolatedWithinBounds on random worlds until a given number
// of worlds was run, and records the work in a ledger. A hundred thousand worlds take hours; a run
// continues where the last one was stopped, on any machine.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/drover-run/drover/integration/internal/record"
)

const (
	test  = "TestNoGuaranteeIsViolatedWithinBounds"
	dir   = "scheduler/sim/engine"
	slice = 500 // worlds per line of the ledger
)

// entry is a line of the ledger: worlds with consecutive seeds that were run one after another.
type entry struct {
	Seed       uint64  `json:"seed"` // of the first world
	Worlds     int     `json:"worlds"`
	Policies   int     `json:"policies"`   // number of policies that each world was run under
	Guarantees int     `json:"guarantees"` // guarantees given in all of the worlds; none was violated
	Seconds    float64 `json:"seconds"`    // CPU time
	Commit     string  `json:"commit"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ledger := flag.String("ledger", "docs/measured/worlds.jsonl", "file with what was done")
	worlds := flag.Int("worlds", 100_000, "how many worlds are to be run, with those of the ledger")
	parallel := flag.Int("parallel", runtime.NumCPU(), "how many run at once")
	flag.Parse()
	if err := run(ctx, *ledger, *worlds, *parallel, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "worlds:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, ledger string, worlds, parallel int, out io.Writer) error {
	entries, err := record.ReadLedger[entry](ledger)
	if err != nil {
		return err
	}
	if err := runRest(ctx, ledger, worlds-count(entries), parallel); err != nil {
		return err
	}
	if entries, err = record.ReadLedger[entry](ledger); err != nil {
		return err
	}
	printSummary(out, entries)
	if n := count(entries); n < worlds {
		return fmt.Errorf("%d of %d worlds were run", n, worlds)
	}
	return nil
}

// runRest runs a number of worlds, and stops without an error when ctx ends.
func runRest(ctx context.Context, ledger string, worlds, parallel int) error {
	if worlds <= 0 {
		return nil
	}
	commit, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return fmt.Errorf("git rev-parse: %w", err)
	}
	binary, err := os.CreateTemp("", "drover-worlds-")
	if err != nil {
		return err
	}
	defer os.Remove(binary.Name())
	binary.Close()
	if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary.Name(), "./"+dir).CombinedOutput(); err != nil {
		return fmt.Errorf("go test -c ./%s: %w\n%s", dir, err, out)
	}
	var mu sync.Mutex // guards the ledger
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(1, parallel))
	for ; worlds > 0 && gctx.Err() == nil; worlds -= slice {
		n := min(slice, worlds)
		g.Go(func() error {
			e, err := runSlice(gctx, binary.Name(), n)
			if gctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			e.Commit = strings.TrimSpace(string(commit))
			mu.Lock()
			defer mu.Unlock()
			return record.AppendLedger(ledger, e)
		})
	}
	return g.Wait()
}

// runSlice runs worlds from a random seed.
func runSlice(ctx context.Context, binary string, worlds int) (entry, error) {
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^"+test+"$", "-test.v", "-test.timeout", "0")
	cmd.Dir = dir
	own := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "RAPID_SEED=") })
	cmd.Env = append(own, "DROVER_WORLDS="+strconv.Itoa(worlds), "GOMAXPROCS=1", "GOGC=2000")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return entry{}, fmt.Errorf("%s: %w\n%s", test, err, out)
	}
	e, err := parseResult(out)
	if err != nil {
		return entry{}, err
	}
	e.Seconds = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	return e, nil
}

var resultLine = regexp.MustCompile(`(?m)(\d+) worlds from seed (\d+), each under (\d+) policies: (\d+) guarantees$`)

func parseResult(out []byte) (entry, error) {
	m := resultLine.FindSubmatch(out)
	if m == nil {
		return entry{}, fmt.Errorf("%s said nothing of its worlds:\n%s", test, out)
	}
	var e entry
	_, err := fmt.Sscan(string(bytes.Join(m[1:], []byte(" "))), &e.Worlds, &e.Seed, &e.Policies, &e.Guarantees)
	return e, err
}

func count(entries []entry) (worlds int) {
	for _, e := range entries {
		worlds += e.Worlds
	}
	return worlds
}

func printSummary(out io.Writer, entries []entry) {
	guarantees, seconds, policies, commits := 0, 0.0, 0, []string{}
	for _, e := range entries {
		guarantees += e.Guarantees
		seconds += e.Seconds
		policies = max(policies, e.Policies)
		if !slices.Contains(commits, e.Commit) {
			commits = append(commits, e.Commit)
		}
	}
	fmt.Fprintf(out, "%d worlds, each under %d policies: %d guarantees, none violated; %.0f s of a processor; commits %s\n",
		count(entries), policies, guarantees, seconds, strings.Join(commits, ", "))
}
