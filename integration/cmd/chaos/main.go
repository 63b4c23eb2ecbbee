// Command chaos keeps a ledger of the runs of `make chaos`, and prints the sum of all runs. With
// -log it first adds the run of a log. With -say-commit it prints only the present commit: a run
// records the commit when it begins, because files may change while it runs.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/drover-run/drover/integration/chaos"
	"github.com/drover-run/drover/integration/internal/record"
)

func main() {
	ledger := flag.String("ledger", "docs/measured/chaos.jsonl", "file with what was done")
	log := flag.String("log", "", "output of a run of the test, which is added")
	commit := flag.String("commit", "", "what the run tested; default: the present commit")
	say := flag.Bool("say-commit", false, "print the present commit, and nothing else")
	flag.Parse()
	name, err := *commit, error(nil)
	if name == "" {
		name, err = record.CommitName()
	}
	if err == nil && *say {
		fmt.Println(name)
		return
	}
	if err == nil {
		err = run(*ledger, *log, name, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

func run(ledger, log, commit string, out io.Writer) error {
	if log != "" {
		if err := addRun(ledger, log, commit); err != nil {
			return err
		}
	}
	runs, err := record.ReadLedger[chaos.Run](ledger)
	if err != nil {
		return err
	}
	return printRuns(out, runs)
}

func addRun(ledger, log, commit string) error {
	text, err := os.ReadFile(log)
	if err != nil {
		return err
	}
	r, err := parseRun(text)
	if err != nil {
		return fmt.Errorf("%s: %w", log, err)
	}
	r.Commit = commit
	r.Date = time.Now().UTC().Format(time.RFC3339)
	return record.AppendLedger(ledger, r)
}

func parseRun(log []byte) (r chaos.Run, err error) {
	_, line, ok := bytes.Cut(log, []byte(chaos.RunPrefix))
	if !ok {
		return r, fmt.Errorf("no line with %q: the test said nothing of its run", chaos.RunPrefix)
	}
	line, _, _ = bytes.Cut(line, []byte("\n"))
	return r, json.Unmarshal(line, &r)
}

// printRuns prints the sums of all runs, and a line for each run with the number of its faults, and
// of the times at which one fault, or several at once, occurred.
func printRuns(out io.Writer, runs []chaos.Run) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	sum := chaos.Run{Faults: map[string]int{}, AtOnce: map[string]int{}}
	faults, failed := 0, 0
	for _, r := range runs {
		add(sum.Faults, r.Faults)
		add(sum.AtOnce, r.AtOnce)
		faults += total(r.Faults)
		sum.Accepted, sum.Ended, sum.Outputs, sum.Logs = sum.Accepted+r.Accepted, sum.Ended+r.Ended, sum.Outputs+r.Outputs, sum.Logs+r.Logs
		sum.Suspensions, sum.Limits, sum.Exclusive, sum.Attempts = sum.Suspensions+r.Suspensions, sum.Limits+r.Limits, sum.Exclusive+r.Exclusive, sum.Attempts+r.Attempts
		sum.Leftovers, sum.Seconds = sum.Leftovers+r.Leftovers, sum.Seconds+r.Seconds
		if r.Failure != "" {
			failed++
		}
	}
	fmt.Fprintf(out, "%d faults in %d runs, of which %d failed; %.1f s for a fault on average\n", faults, len(runs), failed, sum.Seconds/max(1, float64(faults)))
	fmt.Fprintf(out, "%d jobs accepted, %d ended well; outputs compared with the reference: %d folders of MapReduce jobs, %d logs of other tasks\n", sum.Accepted, sum.Ended, sum.Outputs, sum.Logs)
	fmt.Fprintf(out, "%d suspensions; %d looks at the limits of containers that ran, %d of them at %d attempts of exclusive tasks; %d leftovers at the end\n\n",
		sum.Suspensions, sum.Limits, sum.Exclusive, sum.Attempts, sum.Leftovers)
	fmt.Fprintln(w, "FAULT\tTIMES")
	for _, kind := range slices.Sorted(maps.Keys(sum.Faults)) {
		fmt.Fprintf(w, "%s\t%d\n", kind, sum.Faults[kind])
	}
	for _, what := range slices.Sorted(maps.Keys(sum.AtOnce)) {
		fmt.Fprintf(w, "with a %s under way\t%d\n", what, sum.AtOnce[what])
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nDATE\tCOMMIT\tSEED\tFAULTS\tTIMES\tMEDIAN S\tJOBS\tENDED\tRESULT")
	for _, r := range runs {
		result := "passed"
		if r.Failure != "" {
			result = "failed: " + strings.TrimSpace(r.Failure)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%.1f\t%d\t%d\t%s\n", r.Date, r.Commit, r.Seed, total(r.Faults), cmp.Or(r.Times, total(r.Faults)), r.MedianSeconds, r.Accepted, r.Ended, result)
	}
	return w.Flush()
}

func add(to, from map[string]int) {
	for k, n := range from {
		to[k] += n
	}
}

func total(faults map[string]int) (n int) {
	for _, k := range faults {
		n += k
	}
	return n
}
