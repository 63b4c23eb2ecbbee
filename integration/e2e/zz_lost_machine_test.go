package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// A machine disappears during a job: its tasks and the map outputs on it, of which there is one, are made again elsewhere.
// This test runs last, since the machine cannot return.
func TestZZLostMachine(t *testing.T) {
	s := newFixture(t, 8*time.Minute)
	text := sampleText(6 << 20)
	s.putHDFS("/e2e/lost.txt", text)
	file := s.wordcountFile("lost", "/e2e/lost.txt")
	job, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	few := strings.Replace(string(job), `kind = "map"`, `kind = "map"  max_parallel = 3`, 1) // so that a map is done before others begin
	s.mustRun("job", "run", "-detach", s.writeJob("lost-few", few))
	var (
		task  string
		first attempt
	)
	s.waitUntil(3*time.Minute, "a map that is done while others are not", func() error {
		list, left := s.tasks("lost"), 0
		task = ""
		for _, x := range list.Tasks {
			switch {
			case x.Stage != "map":
			case x.State != "done":
				left++
			case len(x.Attempts) > 0:
				task, first = fmt.Sprintf("map/%d", x.Task), x.Attempts[len(x.Attempts)-1]
			}
		}
		if task == "" || left < 3 { // with three left, one has begun after a map was done: the job lasts a container's life at least
			return fmt.Errorf("%d maps are not done: %+v", left, list.Tasks)
		}
		return nil
	})
	t.Logf("%s is done on %s, which is lost", task, first.Node)
	if err := s.testbed.Nodes[first.Node[1]-'1'].Kill(s.ctx); err != nil {
		t.Fatal(err)
	}
	if r := s.waitJob("lost"); r.ExitCode != 0 {
		t.Fatalf("the job failed:\n%s%s", r.Stdout, r.Stderr)
	}
	if got, want := sortLines(s.readParts("/e2e/lost")), sampleCounts(text); got != want {
		t.Errorf("result\n%s\nwant\n%s", got, want)
	}
	if again := s.taskStatus("lost", task); again.Node == first.Node || again.id() == first.id() {
		t.Errorf("%s was not made again: %+v", task, again)
	}
}
