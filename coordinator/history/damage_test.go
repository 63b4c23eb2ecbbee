package history

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/bitrot"
	"github.com/drover-run/drover/internal/linesum"
	"github.com/drover-run/drover/internal/seed"
)

// oldHistory returns a folder with the history that an earlier version wrote, without
// checksums.
func oldHistory(t *testing.T) (dir, file string) {
	t.Helper()
	b, err := os.ReadFile("testdata/history-000001.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	file = filepath.Join(dir, "history-000001.jsonl")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, file
}

// A history that an earlier version began goes on in the same file; its jobs are known.
func TestAnEarlierHistoryGoesOn(t *testing.T) {
	dir, file := oldHistory(t)
	for range 2 {
		w, err := Open(dir, 0, 0)
		if err != nil || len(w.Damaged()) > 0 || !w.Has(1) || !w.Has(2) {
			t.Fatal(err, w.Damaged())
		}
		if err := w.Append([]Job{{Job: 2}, {Job: 3, Name: "new <&>"}}); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	if len(lines) != 3 || linesum.Sealed(lines[1]) || !linesum.Sealed(lines[2]) || !bytes.Contains(lines[2], []byte("new <&>")) {
		t.Fatalf("%s", b)
	}
}

// Whatever happens to the file on disk, the history opens, knows no job that it does not
// have, names the damaged lines, and goes on: a job whose line is damaged may be written
// again, any other one may not.
func TestDamageOfTheHistoryIsNamed(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	const jobs = 40
	dir := t.TempDir()
	w, err := Open(dir, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(jobs) {
		j := Job{Job: i + 1, Name: "j", Message: strings.Repeat("m\n\"", random.IntN(200)), Stages: []Stage{{Name: "main", Tasks: make([]Task, random.IntN(9))}}}
		if err := w.Append([]Job{j}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "history-000001.jsonl")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	written := map[string]bool{}
	for line := range strings.Lines(string(whole)) {
		written[line] = true
	}
	found := 0
	for range bitrot.Rounds(t, 2) {
		bad, what := bitrot.Damage(random, whole)
		if err := os.WriteFile(file, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		w, err := Open(dir, 0, 0)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		known := 0
		for job := range w.written {
			if known++; job < 1 || job > jobs {
				t.Fatalf("%s: job %d never was", what, job)
			}
		}
		if found += min(1, len(w.Damaged())); known < jobs && len(w.Damaged()) == 0 && !strings.HasPrefix(what, "cut") {
			t.Fatalf("%s: %d jobs, and nothing is named", what, known)
		}
		for i := range uint64(jobs + 1) {
			if err := w.Append([]Job{{Job: i + 1, Name: "again"}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		checkJobs(t, file, what, written, jobs+1)
	}
	t.Logf("%d named", found)
}

// checkJobs checks that each of the jobs has a whole line, either one that was written
// before the damage or one of after it.
func checkJobs(t *testing.T, file, what string, written map[string]bool, jobs int) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	seen := map[uint64]bool{}
	for s := linesum.NewScanner(f, "f"); ; {
		line, err := s.Next()
		if err != nil {
			break
		}
		var j Job
		if err := json.Unmarshal(line, &j); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if linesum.Sealed(line) && j.Name != "again" && !written[string(line)+"\n"] {
			t.Fatalf("%s: %s was never written", what, line)
		}
		seen[j.Job] = true
	}
	if len(seen) != jobs {
		t.Fatalf("%s: %d jobs have a line, of %d", what, len(seen), jobs)
	}
}
