package coordinator

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/history"
)

// history0 reads the history of a bed.
func history0(t *testing.T, b *bed) (out []history.Job) {
	t.Helper()
	b.until("a job is written down", func() bool {
		out = nil
		files, err := history.Files(filepath.Join(b.cfg.Dir, "history"))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range files {
			f, err := os.Open(p)
			if err != nil {
				t.Fatal(err)
			}
			for s := bufio.NewScanner(f); s.Scan(); {
				var j history.Job
				if err := json.Unmarshal(s.Bytes(), &j); err != nil {
					t.Fatal(err)
				}
				out = append(out, j)
			}
			_ = f.Close()
		}
		return len(out) > 0
	})
	return out
}

func TestEveryEndedJobIsInTheHistoryOnceAndOldOnesAreForgotten(t *testing.T) {
	b := newBed(t, func(c *Config) { c.RetainJobs, c.KeepLogs = 2, -1 })
	b.node(coordtest.Info("n1"), coordtest.Succeed)
	b.registered()
	names := []string{"a", "b", "c", "d", "e"}
	for i, name := range names {
		b.submit(groupJob(name, 2))
		b.ends(name, succeeded)
		if i == 2 {
			b.kill()
			b.start()
		}
	}
	b.until("only two are left", func() bool { return b.job("c") == nil && b.job("d") != nil && b.job("e") != nil })
	seen := map[string]int{}
	for _, j := range history0(t, b) {
		seen[j.Name]++
		if j.State != "succeeded" || len(j.Stages[0].Tasks) != 2 || j.Stages[0].Tasks[0].Attempts[0].Node != "n1" || j.FinishMS < j.SubmitMS {
			t.Errorf("%+v", j)
		}
	}
	for _, n := range names[:3] {
		if seen[n] != 1 {
			t.Errorf("job %s stands %d times in the history", n, seen[n])
		}
	}
}
