package e2e

import (
	"testing"
	"time"
)

// A machine that disappears in the middle of a job: its tasks and map outputs
// are made again elsewhere. It runs last, since the machine stays gone.
func TestZZLostMachine(t *testing.T) {
	s := begin(t, 8*time.Minute)
	text := steady(6 << 20)
	s.put("/e2e/lost.txt", text)
	s.ok("job", "run", "-detach", s.wordcountFile("lost", "/e2e/lost.txt"))
	s.awaitRunning("lost", 0, 3)
	if err := s.bed.Nodes[2].Kill(s.ctx); err != nil {
		t.Fatal(err)
	}
	if r := s.waitJob("lost"); r.Code != 0 {
		t.Fatalf("the job failed:\n%s%s", r.Stdout, r.Stderr)
	}
	if got, want := sorted(s.parts("/e2e/lost")), countOf(text); got != want {
		t.Errorf("result\n%s\nwant\n%s", got, want)
	}
}
