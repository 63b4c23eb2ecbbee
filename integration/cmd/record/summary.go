package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/drover-run/drover/integration/internal/record"
)

// summaryName is the name of the summary, beside the pages.
const summaryName = "summary"

// summarize writes the summary of the pages in a folder, with the tables of targets that it reads,
// and prints how many are met and what became worse. command is the one that repeats it.
func summarize(dir, command string, targets io.Reader) error {
	tables, err := io.ReadAll(io.LimitReader(targets, maxOutput))
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		return err
	}
	pages := map[string]string{}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".md")
		if name == summaryName {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		pages[name] = string(text)
	}
	rows, others := record.Summarize(pages, record.Targets(string(tables)))
	ledger := filepath.Join(dir, summaryName+".jsonl")
	last, err := lastRelease(ledger)
	if err != nil {
		return err
	}
	before, err := record.ParseLedger[record.Row](last)
	if err != nil {
		return fmt.Errorf("%s of the last release, %w", ledger, err)
	}
	against, worse := record.CompareSummaries(before, rows)
	fmt.Println(record.StatusText(rows))
	if worse > 0 {
		fmt.Print(against)
	}
	text, err := record.Ledger(rows)
	if err != nil {
		return err
	}
	if err := os.WriteFile(ledger, text, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, summaryName+".md"), []byte(record.SummaryPage(command, rows, others, against)), 0o644)
}
