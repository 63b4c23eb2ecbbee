package e2e

import (
	"testing"
	"time"
)

// A machine disappears during a job: its tasks and map outputs are made again elsewhere. This test
// runs last, since the machine cannot return.
func TestZZLostMachine(t *testing.T) {
	s := newFixture(t, 8*time.Minute)
	text := sampleText(6 << 20)
	s.putHDFS("/e2e/lost.txt", text)
	s.mustRun("job", "run", "-detach", s.wordcountFile("lost", "/e2e/lost.txt"))
	s.awaitRunning("lost", 0, 3)
	if err := s.testbed.Nodes[2].Kill(s.ctx); err != nil {
		t.Fatal(err)
	}
	if r := s.waitJob("lost"); r.ExitCode != 0 {
		t.Fatalf("the job failed:\n%s%s", r.Stdout, r.Stderr)
	}
	if got, want := sortLines(s.readParts("/e2e/lost")), sampleCounts(text); got != want {
		t.Errorf("result\n%s\nwant\n%s", got, want)
	}
}
