package fake

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/runtimetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// suiteProgram runs the suite's program as a virtual program.
func suiteProgram(ctx context.Context, p *Process) int {
	return runtimetest.Program(ctx, runtimetest.ProgramEnv{
		Stdin: p.Stdin, Stdout: p.Stdout, Stderr: p.Stderr,
		Getenv: func(name string) string {
			for _, e := range p.Spec.Env {
				if v, ok := strings.CutPrefix(e, name+"="); ok {
					return v
				}
			}
			return ""
		},
		Signals: func() <-chan syscall.Signal { p.Handle(); return p.signals },
	}, p.Spec.Args[1:])
}

func newEngine(t *testing.T) *Engine {
	e := New(nil, map[string]Program{
		"prog":  suiteProgram,
		"sleep": func(ctx context.Context, _ *Process) int { <-ctx.Done(); return 0 },
		"true":  func(context.Context, *Process) int { return 0 },
	})
	t.Cleanup(e.Close)
	return e
}

func TestConformance(t *testing.T) {
	e := newEngine(t)
	runtimetest.Run(t, runtimetest.Subject{
		Connect: func(*testing.T) runtime.Driver { return e.Driver() },
		Spec: func(t *testing.T, id string, args ...string) runtime.Spec {
			return runtime.Spec{ID: id, Args: append([]string{"prog"}, args...), Log: runtime.Log{Dir: t.TempDir()}}
		},
		Churn:       100,
		SlowStart:   func(_ *testing.T, d time.Duration) { e.Inject(Fault{Verb: Start, Nth: 1, delay: d}) },
		StopEngine:  func(*testing.T) { e.Down(true) },
		StartEngine: func(*testing.T) { e.Down(false) },
	})
}

func TestConformanceUsedAgain(t *testing.T) {
	e := newEngine(t)
	runtimetest.Run(t, runtimetest.Subject{
		Connect: func(*testing.T) runtime.Driver { return e.Driver() },
		Spec: func(t *testing.T, id string, args ...string) runtime.Spec {
			return runtime.Spec{ID: id, Reuse: "stage", Args: append([]string{"prog"}, args...), Log: runtime.Log{Dir: t.TempDir()}}
		},
		Churn: 100, Shared: e.Shared,
		SlowStart:   func(_ *testing.T, d time.Duration) { e.Inject(Fault{Verb: Start, Nth: 1, delay: d}) },
		StopEngine:  func(*testing.T) { e.Down(true) },
		StartEngine: func(*testing.T) { e.Down(false) },
	})
}

func TestFaults(t *testing.T) {
	boom := fault.New(fault.Unavailable, "boom")
	spec := runtime.Spec{ID: "c", Args: []string{"sleep"}}
	ctx := context.Background()
	for _, c := range []struct {
		name  string
		fault Fault
		want  []error // of successive Creates of c
		made  []bool  // whether c exists after each
	}{
		{"the next call fails before it acts", Fault{Verb: Create, Nth: 1, Err: boom}, []error{boom, nil}, []bool{false, true}},
		{"the third call fails", Fault{Verb: Create, Nth: 3, Err: boom}, []error{nil, nil, boom, nil}, []bool{true, true, true, true}},
		{"the next call acts and loses its answer", Fault{Verb: Create, Nth: 1, Err: boom, ActFirst: true}, []error{boom, nil}, []bool{true, true}},
		{"every call fails", Fault{Verb: Create, Err: boom}, []error{boom, boom, boom}, []bool{false, false, false}},
		{"another verb's fault does not matter", Fault{Verb: Kill, Nth: 1, Err: boom}, []error{nil}, []bool{true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEngine(t)
			d := e.Driver()
			e.Inject(c.fault)
			for i, want := range c.want {
				if err := d.Create(ctx, spec); !errors.Is(err, want) {
					t.Errorf("call %d: %v, want %v", i+1, err, want)
				}
				all, err := d.List(ctx)
				if err != nil || (len(all) == 1) != c.made[i] {
					t.Errorf("after call %d: %v, %v; want there: %v", i+1, all, err, c.made[i])
				}
			}
			if e.Calls(Create) != len(c.want) {
				t.Errorf("%d calls counted, want %d", e.Calls(Create), len(c.want))
			}
			e.Heal()
			if err := d.Create(ctx, spec); err != nil {
				t.Errorf("after Heal: %v", err)
			}
		})
	}
}

func TestDelayEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New(nil, map[string]Program{"true": func(context.Context, *Process) int { return 0 }})
		defer e.Close()
		d := e.Driver()
		e.Inject(Fault{Verb: Create, delay: time.Minute})
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := d.Create(ctx, runtime.Spec{ID: "c", Args: []string{"true"}}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the context's error", err)
		}
		start := time.Now()
		if err := d.Create(context.Background(), runtime.Spec{ID: "c", Args: []string{"true"}}); err != nil || time.Since(start) != time.Minute {
			t.Errorf("a delayed Create gave %v after %v", err, time.Since(start))
		}
	})
}

func TestImages(t *testing.T) {
	e := newEngine(t)
	d, ctx := e.Driver(), context.Background()
	spec := runtime.Spec{ID: "c", Args: []string{"true"}, Image: "sha256:ab"}
	if err := d.Create(ctx, spec); !errors.Is(err, fault.NotFound) {
		t.Errorf("Create without its image: %v, want fault.NotFound", err)
	}
	if err := d.Import(ctx, "sha256:ab", strings.NewReader("archive")); err != nil {
		t.Fatal(err)
	}
	if ok, err := d.Has(ctx, "sha256:ab"); !ok || err != nil {
		t.Errorf("Has gives %v, %v", ok, err)
	}
	if err := d.Create(ctx, spec); err != nil {
		t.Error(err)
	}
	if err := d.Import(ctx, "sha256:cd", io.MultiReader(strings.NewReader("x"), brokenReader{})); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a broken archive: %v", err)
	}
	if err := d.Remove(ctx, "sha256:ab"); err != nil {
		t.Error(err)
	}
	if ok, _ := d.Has(ctx, "sha256:ab"); ok {
		t.Error("the image is there after Remove")
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }

func TestVerbsPrintThemselves(t *testing.T) {
	for v := Create; v <= ReleaseImports; v++ {
		if s := v.String(); s == "" || s == "invalid verb" {
			t.Errorf("verb %d prints %q", v, s)
		}
	}
	if Verb(0).String() != "invalid verb" || (ReleaseImports+1).String() != "invalid verb" {
		t.Error("a verb outside the list has a name")
	}
}
