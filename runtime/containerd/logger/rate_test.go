package logger

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/internal/rotate"
)

// Whoever waits as told writes as much as the limit allows, and no more than a burst and
// the last write above it.
func TestRateLimitIsKeptAndUsed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Int64Range(1, 1<<31).Draw(t, "rate")
		start := time.Unix(1, 0)
		now, total := start, int64(0)
		l := newRateLimit(rate, start)
		idle, biggest := time.Duration(0), int64(0)
		for range rapid.IntRange(1, 50).Draw(t, "writes") {
			n := rapid.IntRange(1, 64<<10).Draw(t, "bytes")
			total, biggest = total+int64(n), max(biggest, int64(n))
			now = now.Add(l.take(n, now))
			if rapid.Bool().Draw(t, "pauses") {
				pause := time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "pause"))
				idle += pause
				now = now.Add(pause)
			}
		}
		allowed := float64(rate) * (now.Sub(start) + burstTime).Seconds()
		if float64(total) > allowed+float64(biggest) {
			t.Fatalf("%d bytes in %s at %d bytes/s", total, now.Sub(start), rate)
		}
		if needed := time.Duration(float64(total) / float64(rate) * 1e9); now.Sub(start) > needed+idle+time.Microsecond {
			t.Fatalf("%s for %d bytes at %d bytes/s, of them %s idle", now.Sub(start), total, rate, idle)
		}
	})
}

// A program that floods both streams waits for its pipes: at 4 MiB/s.
func TestFloodsAreWrittenAtTheTasksOwnRate(t *testing.T) {
	const rate, each = 4 << 20, 2 << 20
	c := Config{Dir: t.TempDir(), BytesPerS: rate}
	_, stdout, stderr, ready := shim(t, c)
	awaitReady(t, ready)
	line := bytes.Repeat([]byte("0123456789abcde\n"), 4<<10)
	start, done := time.Now(), make(chan error, 2)
	for _, f := range []*os.File{stdout, stderr} {
		go func() {
			var err error
			for n := 0; n < each && err == nil; n += len(line) {
				_, err = f.Write(line)
			}
			f.Close()
			done <- err
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	// A burst of a quarter of a second, and two pipes and buffers of 64 KiB.
	unwritten := rate/4 + 4*64<<10
	if took, least := time.Since(start), time.Duration(2*each-unwritten)*time.Second/rate; took < least {
		t.Errorf("%d bytes were taken in %s, at %d bytes/s it takes %s at least", 2*each, took, rate, least)
	}
	if !rotate.Await(t.Context(), c.Dir) {
		t.Error("the logs do not count as written")
	}
	for _, name := range []string{"stdout.log", "stderr.log"} {
		if st, err := os.Stat(filepath.Join(c.Dir, name)); err != nil || st.Size() != each {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
}

// What a program wrote last is not held back: neither when it has ended, nor when the
// logger is told to.
func TestLimitDelaysNoEnd(t *testing.T) {
	for name, end := range map[string]func(stdout, stderr *os.File, logger *os.Process) error{
		"the program ended": func(stdout, stderr *os.File, _ *os.Process) error {
			stdout.Close()
			return stderr.Close()
		},
		"the logger is told to end": func(_, _ *os.File, logger *os.Process) error { return logger.Signal(syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			c := Config{Dir: t.TempDir(), BytesPerS: 16} // over an hour for what follows
			cmd, stdout, stderr, ready := shim(t, c)
			awaitReady(t, ready)
			text := bytes.Repeat([]byte("0123456789abcde\n"), 4<<10) // as much as a pipe holds
			if _, err := stdout.Write(text[:16]); err != nil {
				t.Fatal(err)
			}
			if _, err := stdout.Write(text[16:]); err != nil {
				t.Fatal(err)
			}
			if err := end(stdout, stderr, cmd.Process); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("the logger ended with %v", err)
				}
			case <-time.After(20 * time.Second):
				cmd.Process.Kill()
				<-ended
				t.Fatal("the logger did not end in 20 s")
			}
			if got, err := os.ReadFile(filepath.Join(c.Dir, "stdout.log")); err != nil || !bytes.Equal(got, text) {
				t.Errorf("stdout.log has %d bytes, want %d, %v", len(got), len(text), err)
			}
		})
	}
}
