package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// badProgram is a program that fails.
type badProgram struct {
	stage    string // attributes of the map stage
	attempts int
	words    []string // expected in the job's message and the failure's output
}

// A bad program only affects its own job: it has its attempts, then the job fails with the
// program's last output and the command that shows more. Another job on the same machines succeeds.
func TestBadPrograms(t *testing.T) {
	s := newFixture(t, 12*time.Minute)
	s.putHDFS("/e2e/bad.txt", strings.Repeat("one two three\n", 1000))
	neighbour := s.wordcountFile("neighbour", "/e2e/bad.txt")
	s.mustRun("job", "run", "-detach", neighbour)
	cases := map[string]badProgram{
		"exits non-zero":         {`command = ["sh", "-c", "echo it is broken >&2; exit 3"]`, 4, []string{"it is broken", "3"}},
		"hangs past its limit":   {"command = [\"sleep\", \"600\"]\n time_limit = \"3s\"\n attempts = 2", 2, []string{"time"}},
		"fills its disk quota":   {`command = ["sh", "-c", "dd if=/dev/zero of=big bs=1M count=64"]` + "\n attempts = 2", 2, []string{"disk"}},
		"goes over its memory":   {`command = ["awk", "BEGIN { s = \"x\"; while (1) s = s s }"]` + "\n attempts = 2", 2, []string{"memory"}},
		"does not exist":         {`command = ["no-such-program"]`, 2, []string{"no-such-program"}},                                              // nor on the second node
		"writes a line too long": {`command = ["sh", "-c", "head -c 40000000 /dev/zero | tr '\\0' x"]` + "\n attempts = 2", 1, []string{"line"}}, // with memory for the longest line; a retry would not help
	}
	t.Run("jobs", func(t *testing.T) { s.runBadPrograms(t, cases) })
	if r := s.waitJob("neighbour"); r.ExitCode != 0 {
		t.Errorf("the other job failed:\n%s%s", r.Stdout, r.Stderr)
	}
	if got := sortLines(s.readParts("/e2e/neighbour")); got != "one\t1000\nthree\t1000\ntwo\t1000\n" {
		t.Errorf("the other job's result is %q", got)
	}
}

// runBadPrograms runs a job of each bad program, as many beside each other as the host has processors.
func (s *fixture) runBadPrograms(t *testing.T, cases map[string]badProgram) {
	i := 0
	for name, c := range cases {
		i++
		job := fmt.Sprintf("bad%d", i)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sub := *s
			sub.T = t
			memory := "32MiB"
			if strings.Contains(name, "line") {
				memory = "160MiB"
			}
			f := sub.writeJob(job, fmt.Sprintf(`job %q {
  tenant = "e2e"
  input  { path = "hdfs:///e2e/bad.txt" }
  output { path = "hdfs:///e2e/%s" }
  image = "oci-archive:%s"
  stage "map" {
    kind = "map"
    %s
    disk = "16MiB"
    resources { cpu = "300m"  memory = "%s"  io = "20MiB/s" }
  }
  stage "reduce" { kind = "reduce"  builtin = ["sum"]  disk = "16MiB"
    resources { cpu = "100m"  memory = "32MiB"  io = "4MiB/s" } }
}
`, job, job, s.imagePath("busybox"), c.stage, memory))
			r := sub.runDrover("job", "run", f)
			if r.ExitCode != 1 {
				t.Fatalf("exit code %d, want 1\n%s%s", r.ExitCode, r.Stdout, r.Stderr)
			}
			st := sub.jobStatus(job)
			if got := st.Stages[0].FailedAttempts; got != c.attempts {
				t.Errorf("%d attempts failed, want %d", got, c.attempts)
			}
			said := strings.ToLower(st.Job.Message + "\n" + st.FailureTail + "\n" + r.Stdout)
			for _, w := range c.words {
				if !strings.Contains(said, w) {
					t.Errorf("the user's output lacks %q:\n%s", w, said)
				}
			}
			more := "more: drover task logs -stderr "
			if st.FailureTail == "" {
				more = "more: drover task status "
			}
			if !strings.Contains(r.Stdout, more) {
				t.Errorf("the summary does not name the command that shows more:\n%s", r.Stdout)
			}
		})
	}
}
