package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/apitext"
)

var (
	eventKindRE = regexp.MustCompile(`^[a-z]+\.[a-z_]+$`)
	dataFileRE  = regexp.MustCompile(`\.(jsonl?|key|bin)$`) // of a coordinator, whose names look like kinds of events
)

// eventKinds returns the kinds of events that a coordinator can produce: the literals in the sources of it and of
// package facts, and the ends of jobs and attempts, whose names are put together.
func eventKinds(t *testing.T) map[string]bool {
	t.Helper()
	kinds := map[string]bool{}
	var files []string
	for _, dir := range []string{"coordinator", "coordinator/facts"} {
		of, err := filepath.Glob(filepath.Join(docsRoot, dir, "*.go"))
		if err != nil || len(of) == 0 {
			t.Fatalf("%d sources in %s: %v", len(of), dir, err)
		}
		files = append(files, of...)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				if s, err := strconv.Unquote(l.Value); err == nil && eventKindRE.MatchString(s) && !dataFileRE.MatchString(s) {
					kinds[s] = true
				}
			}
			return true
		})
	}
	for _, s := range []droverv1.JobState{droverv1.JobState_JOB_STATE_SUCCEEDED, droverv1.JobState_JOB_STATE_FAILED, droverv1.JobState_JOB_STATE_STOPPED} {
		kinds["job."+apitext.JobState(s)] = true
	}
	for _, s := range []facts.AttemptState{facts.AttemptSucceeded, facts.AttemptFailed, facts.AttemptStopped, facts.AttemptLost} {
		kinds["task."+s.String()] = true
	}
	return kinds
}

func TestEveryEventIsDocumented(t *testing.T) {
	kinds := eventKinds(t)
	if len(kinds) < 30 {
		t.Fatalf("only %d kinds of events found", len(kinds))
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("`([a-z]+\\.[a-z_]+)`").FindAllStringSubmatch(readDoc(t, "docs/reference/events.md"), -1) {
		if eventKindRE.MatchString(m[1]) {
			documented[m[1]] = true
		}
	}
	for k := range kinds {
		if !documented[k] {
			t.Errorf("docs/reference/events.md does not explain %s", k)
		}
	}
	for k := range documented {
		if !kinds[k] {
			t.Errorf("docs/reference/events.md explains %s, which no coordinator produces", k)
		}
	}
}
