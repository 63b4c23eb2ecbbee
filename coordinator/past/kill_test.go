package past

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
)

// writerDir names the folder in which a process of this test writes until it is
// killed.
const writerDir = "DROVER_TEST_HISTORY_WRITER"

// tasksOfAJob is how many attempts each job of the writer has.
const tasksOfAJob = 20

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerDir); dir != "" {
		if err := writeForEver(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// batchOf returns what the log gives for an entry: a job and its attempts.
func batchOf(id uint64) Batch {
	end := day0 + int64(id)*1000
	b := Batch{Index: id, Jobs: []Job{job(id, "t", "user/u", "job", end)}}
	for k := range int32(tasksOfAJob) {
		b.Attempts = append(b.Attempts, attempt(id, id, k, 1, "t", "user/u", "job", end))
	}
	return b
}

// writeForEver goes on after what is in the store, and says what it has written.
func writeForEver(dir string) error {
	s, err := Open(dir, Options{})
	if err != nil {
		return err
	}
	for id := s.Applied() + 1; ; id++ {
		if err := s.Write(batchOf(id)); err != nil {
			return err
		}
		fmt.Println(id)
	}
}

// A process that is killed while it writes the history leaves what it had written, and
// nothing by half; what the log gives again is counted once.
func TestKilledWhileItIsWritten(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 1))
	dir, had := t.TempDir(), uint64(0)
	for range 4 {
		said := killWriter(t, dir, 1+r.IntN(20), time.Duration(r.Int64N(int64(20*time.Millisecond))))
		s := openStore(t, dir, Options{})
		if d := s.Repaired(); d != nil {
			t.Fatalf("it is damaged: %v", d)
		}
		applied := s.Applied()
		if applied < said || applied < had {
			t.Fatalf("it has everything to entry %d; the writer was told of %d, and %d were there before", applied, said, had)
		}
		check := func(jobs uint64) {
			t.Helper()
			rows, err := s.Usage(UsageQuery{Visible: anybody})
			if err != nil || len(rows) != 1 || rows[0].GetAttempts() != int64(jobs*tasksOfAJob) {
				t.Fatalf("%d jobs of %d attempts are written, usage is %v %v", jobs, tasksOfAJob, rows, err)
			}
			if n := len(list(t, s, JobQuery{Limit: 50})); n != int(jobs) {
				t.Fatalf("%d jobs of %d", n, jobs)
			}
			for _, id := range []uint64{1, jobs} {
				if a, _, err := s.Attempts(id, -1, 100, ""); err != nil || len(a) != tasksOfAJob {
					t.Fatalf("job %d has %d attempts, %v", id, len(a), err)
				}
			}
		}
		check(applied)
		for id := applied - min(applied-1, 3); id <= applied+2; id++ { // the log gives more than is missing
			if err := s.Write(batchOf(id)); err != nil {
				t.Fatal(err)
			}
		}
		had = applied + 2
		check(had)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// killWriter has a process write to dir, kills it some time after the n-th entry, and
// returns the last entry that it said it had written.
func killWriter(t *testing.T, dir string, n int, after time.Duration) (last uint64) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), writerDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := 0
	for s := bufio.NewScanner(out); s.Scan(); {
		if last, err = strconv.ParseUint(s.Text(), 10, 64); err != nil {
			t.Fatal(err)
		}
		if lines++; lines == n { // it goes on writing meanwhile
			time.AfterFunc(after, func() { _ = cmd.Process.Kill() }) // fails only if it has ended
		}
	}
	_ = cmd.Wait() // it was killed
	if lines < n {
		t.Fatalf("the writer ended after %d entries", lines)
	}
	return last
}
