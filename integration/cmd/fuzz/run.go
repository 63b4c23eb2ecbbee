package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drover-run/drover/internal/fuzztest"
)

// runAll runs the targets until each has had its inputs or failed, or ctx ends, which is no error.
func runAll(ctx context.Context, o *options, l *ledger, targets []*target) error {
	s := &session{options: o, ledger: l, targets: targets, programs: map[string]*program{}}
	cache, err := output(ctx, "go", "env", "GOCACHE")
	if err != nil {
		return ignoreEnd(ctx, err)
	}
	s.corpora = filepath.Join(cache, "fuzz")
	g, gctx := errgroup.WithContext(ctx)
	for range o.parallel {
		g.Go(func() error {
			for t, n := s.take(); t != nil && gctx.Err() == nil; t, n = s.take() {
				p, err := s.part(gctx, t, n)
				if err == nil {
					err = s.give(t, n, p)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	return ignoreEnd(ctx, g.Wait())
}

// ignoreEnd returns no error if the run was stopped, because the ledger has the work done so far.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// session is one run of this command.
type session struct {
	*options
	ledger  *ledger
	corpora string // folder of the corpora of Go's engine

	mu       sync.Mutex
	targets  []*target
	programs map[string]*program // by folder
}

// program is the test program of a package.
type program struct {
	once      sync.Once
	file, pkg string
	err       error
}

// program returns the test program of a target's folder, which is built when it is first needed.
func (s *session) program(ctx context.Context, dir string) *program {
	s.mu.Lock()
	p := s.programs[dir]
	if p == nil {
		p = &program{}
		s.programs[dir] = p
	}
	s.mu.Unlock()
	p.once.Do(func() {
		if p.file, p.err = filepath.Abs(filepath.Join(s.out, strings.ReplaceAll(dir, "/", "_")+".test")); p.err != nil {
			return
		}
		if p.pkg, p.err = output(ctx, "go", "list", "./"+dir); p.err == nil {
			_, p.err = output(ctx, "go", "test", "-c", "-o", p.file, "./"+dir)
		}
	})
	return p
}

// take returns the target with the least remaining time and the number of inputs of its next part
// (0 for a part of Go's engine), or nil if no work is left. If there are fewer targets than
// processors, several processors run parts of one target.
func (s *session) take() (best *target, inputs int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	least := 0.0
	for _, t := range s.targets {
		if t.Failures > 0 || !s.left(t) {
			continue
		}
		need := 0.0 // unknown, so it comes first
		if t.Inputs > t.Guided && t.rate() > 0 {
			need = float64(s.inputs-t.Inputs) / t.rate()
		}
		if best == nil || t.running < best.running || t.running == best.running && need < least {
			best, least = t, need
		}
	}
	if best == nil {
		return nil, 0
	}
	if best.running++; !s.wantsEngine(best) {
		inputs = best.nextInputs(s.inputs)
		best.begun += inputs
	}
	return best, inputs
}

// left reports whether a target has work that no part is doing. While its speed is unknown, or Go's
// engine runs, only one part runs at a time.
func (s *session) left(t *target) bool {
	if s.wantsEngine(t) || t.Inputs == t.Guided {
		return t.running == 0 && (s.wantsEngine(t) || t.Inputs < s.inputs)
	}
	return t.Inputs+t.begun < s.inputs
}

// wantsEngine reports whether Go's engine is to run a target next.
func (s *session) wantsEngine(t *target) bool { return s.guided > 0 && t.Guided == 0 }

// give records a finished part with this number of inputs and releases its target.
func (s *session) give(t *target, inputs int64, p part) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.running--
	t.begun -= inputs
	return s.ledger.add(t, p)
}

// part runs a part of a target with n inputs, or with Go's engine if n is 0.
func (s *session) part(ctx context.Context, t *target, n int64) (part, error) {
	if n == 0 {
		return s.guidedPart(ctx, t)
	}
	prog := s.program(ctx, t.dir)
	if prog.err != nil {
		return part{}, prog.err
	}
	cmd := exec.CommandContext(ctx, prog.file, "-test.run", "^"+t.name+"$", "-test.timeout", "0")
	cmd.Dir = t.dir
	// Without RAPID_SEED: otherwise each part would repeat the inputs of the previous one.
	own := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "RAPID_SEED=") })
	cmd.Env = append(own, fmt.Sprintf("%s=%d", fuzztest.EnvInputs, n), fuzztest.EnvCorpus+"="+filepath.Join(s.corpora, prog.pkg, t.name), "GOMAXPROCS=1", "GOGC=400")
	out, began, err := runTest(cmd)
	if ctx.Err() != nil {
		return part{}, ctx.Err()
	}
	p, ok := parseResult(out)
	fmt.Fprintf(os.Stderr, "%s: %d inputs in %.1f s\n", t, p.Inputs, p.Seconds)
	if err != nil || !ok {
		fmt.Fprintf(os.Stderr, "== %s: %v\n%s\n", t, err, tail(out))
		p.Failed, p.Seconds = true, time.Since(began).Seconds()
	}
	return p, nil
}

// guidedPart runs Go's engine.
func (s *session) guidedPart(ctx context.Context, t *target) (part, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "./"+t.dir, "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", s.guided.String(), "-fuzzminimizetime", "10x", "-parallel", "1")
	out, began, err := runTest(cmd)
	if ctx.Err() != nil {
		return part{}, ctx.Err()
	}
	p := part{Guided: true, Inputs: max(1, lastExecs(out)), Seconds: s.guided.Seconds()}
	if err != nil {
		fmt.Fprintf(os.Stderr, "== %s: %v\n%s\n", t, err, tail(out))
		p.Failed, p.Seconds = true, time.Since(began).Seconds()
	}
	return p, nil
}

// runTest runs a test and ends it and its children when its context ends.
func runTest(cmd *exec.Cmd) (out []byte, began time.Time, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Minute
	began = time.Now()
	out, err = cmd.CombinedOutput()
	return out, began, err
}

var (
	resultLine = regexp.MustCompile(`(?m)^fuzz: \w+ inputs=(\d+) seconds=([\d.]+) largest=(\d+)( failed)?$`)
	execsLine  = regexp.MustCompile(`execs: (\d+)`)
)

// parseResult reads what internal/fuzztest prints at its end.
func parseResult(out []byte) (p part, ok bool) {
	m := resultLine.FindSubmatch(out)
	if m == nil {
		return part{}, false
	}
	p.Inputs, _ = strconv.ParseInt(string(m[1]), 10, 64)
	p.Seconds, _ = strconv.ParseFloat(string(m[2]), 64)
	p.Largest, _ = strconv.ParseInt(string(m[3]), 10, 64)
	return p, len(m[4]) == 0
}

// lastExecs returns how many inputs Go's engine tried.
func lastExecs(out []byte) int64 {
	all := execsLine.FindAllSubmatch(out, -1)
	if all == nil {
		return 0
	}
	n, _ := strconv.ParseInt(string(all[len(all)-1][1]), 10, 64)
	return n
}

// tail returns the last lines of an output.
func tail(out []byte) []byte {
	const lines = 60
	all := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	return bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))
}

// output runs a command and returns its output.
func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var errText bytes.Buffer
	cmd.Stderr = &errText
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(errText.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}
