package build

import (
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// Progress writes lines that begin with the time since its start. It is safe for concurrent use.
type Progress struct {
	mu    sync.Mutex
	w     io.Writer
	start time.Time
}

// NewProgress returns a Progress that starts now.
func NewProgress(w io.Writer) *Progress { return &Progress{w: w, start: time.Now()} }

// printf writes one line.
func (p *Progress) printf(format string, a ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "[%6.1fs] %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, a...))
}

// step announces a step, executes it, and writes how long it took unless it failed.
func (p *Progress) step(what string, do func() error) error {
	t := time.Now()
	p.printf("%s ...", what)
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	p.printf("%s: done in %.1f s", what, time.Since(t).Seconds())
	return nil
}

// runCommand runs a command and returns its standard output. An error includes the last lines of
// its output.
func runCommand(c *exec.Cmd) (string, error) {
	var out, both tailBuffer
	c.Stdout = io.MultiWriter(&out, &both)
	c.Stderr = &both
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("%s: %w; its last lines:\n%s", strings.Join(c.Args, " "), err, both.lines(15))
	}
	return out.String(), nil
}

// tailBuffer keeps the end of the output, up to a limit.
type tailBuffer struct {
	mu sync.Mutex
	b  []byte
}

const tailLimit = 4 << 20

func (t *tailBuffer) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if len(t.b) > 2*tailLimit {
		t.b = append([]byte(nil), t.b[len(t.b)-tailLimit:]...)
	}
	return len(b), nil
}

func (t *tailBuffer) String() string { return string(t.b) }

func (t *tailBuffer) lines(n int) string {
	l := strings.Split(strings.TrimSpace(string(t.b)), "\n")
	return strings.Join(l[max(0, len(l)-n):], "\n")
}
