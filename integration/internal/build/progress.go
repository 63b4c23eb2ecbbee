package build

import (
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// Progress writes lines with the time since its start in front. It may be used by several goroutines.
type Progress struct {
	mu    sync.Mutex
	w     io.Writer
	start time.Time
}

// NewProgress starts the clock.
func NewProgress(w io.Writer) *Progress { return &Progress{w: w, start: time.Now()} }

// Say writes one line.
func (p *Progress) Say(format string, a ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "[%6.1fs] %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, a...))
}

// Step writes what begins, does it, and writes how long it took unless that was short or it failed.
func (p *Progress) Step(what string, do func() error) error {
	t := time.Now()
	p.Say("%s ...", what)
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	p.Say("%s: done in %.1f s", what, time.Since(t).Seconds())
	return nil
}

// run runs a command and returns its standard output; an error shows the last lines of what it wrote.
func run(c *exec.Cmd) (string, error) {
	var out, both tail
	c.Stdout = io.MultiWriter(&out, &both)
	c.Stderr = &both
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("%s: %w; its last lines:\n%s", strings.Join(c.Args, " "), err, both.lines(15))
	}
	return out.String(), nil
}

// tail collects output up to a limit and then keeps its end.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailLimit = 4 << 20

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if len(t.b) > 2*tailLimit {
		t.b = append([]byte(nil), t.b[len(t.b)-tailLimit:]...)
	}
	return len(b), nil
}

func (t *tail) String() string { return string(t.b) }

func (t *tail) lines(n int) string {
	l := strings.Split(strings.TrimSpace(string(t.b)), "\n")
	return strings.Join(l[max(0, len(l)-n):], "\n")
}
