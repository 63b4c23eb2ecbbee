package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/rotate"
	"github.com/drover-run/drover/node/pastlogs"
	"github.com/drover-run/drover/runtime/fake"
)

// However often a reader loses its connection while a task writes and its log is
// rotated, what it gets is what was written, each byte once, but for what was rotated
// away, of which it is told how much. The end may come from the copy that outlives the
// attempt.
func TestLogsContinueAtTheirPosition(t *testing.T) {
	root := t.TempDir()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		dir := folder(filepath.Join(root, fmt.Sprint("a", n)))
		if err := os.MkdirAll(dir.logs(), 0o755); err != nil {
			rt.Fatal(err)
		}
		path := dir.join(nameLogs, "stdout.log")
		w := rotate.New(path, 4<<10, rapid.IntRange(2, 4).Draw(rt, "files"))
		var written bytes.Buffer
		place, seen := int64(0), int64(0) // bytes of the stream that the reader has passed, and has got
		after := ""
		var l *logFiles
		from := dir
		read := func() {
			if l == nil {
				var err error
				if l, err = openLogs(from, "stdout"); err != nil {
					rt.Fatal(err)
				}
				if err := l.seek(&droverv1.LogsRequest{After: after}); err != nil {
					rt.Fatal(err)
				}
				if after == "" { // it begins with what is left, and says how much is not
					place = 0
				}
			}
			err := l.copy(func(b []byte, lost int64) error {
				place += lost
				if want := written.Bytes()[place : place+int64(len(b))]; !bytes.Equal(b, want) {
					rt.Fatalf("at %d it read %d bytes %.9q…, and %.9q… was written", place, len(b), b, want)
				}
				place, seen, after = place+int64(len(b)), seen+int64(len(b)), l.position()
				return nil
			})
			if err != nil {
				rt.Fatal(err)
			}
		}
		leave := func() {
			if l != nil {
				l.close()
				l = nil
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				line := bytes.Repeat([]byte{byte('a' + written.Len()%26)}, rapid.IntRange(1, 3000).Draw(rt, "length"))
				line = append(line, '\n')
				written.Write(line)
				_, _ = w.Write(line) // never fails
			},
			"read":        func(*rapid.T) { read() },
			"disconnect":  func(*rapid.T) { leave() },
			"new process": func(*rapid.T) { _ = w.Close() }, // the next write opens the file again
		})
		read()
		leave()
		past, err := pastlogs.Open(filepath.Join(root, fmt.Sprint("p", n)), pastlogs.Options{MaxBytes: 1 << 20, MaxAge: time.Hour, MaxFile: 1 << 20})
		if err != nil {
			rt.Fatal(err)
		}
		_ = w.Close()
		if err := past.Keep("x", string(dir), time.Unix(1, 0)); err != nil {
			rt.Fatal(err)
		}
		if rapid.Bool().Draw(rt, "also from a position in the copy") && seen > 0 && place == int64(written.Len()) {
			back := rapid.Int64Range(0, min(seen, 2000)).Draw(rt, "back")
			place, seen = place-back, seen-back
			after = fmt.Sprint(place)
		}
		if from = folder(past.Folder("x")); from != "" {
			read()
		}
		leave()
		if place != int64(written.Len()) {
			rt.Fatalf("%d of %d bytes", place, written.Len())
		}
	})
}

// A reader that asks for all gets what is left, and is told how much is not.
func TestLogsSayWhatIsMissingAtTheBeginning(t *testing.T) {
	dir := folder(t.TempDir())
	if err := os.MkdirAll(dir.logs(), 0o755); err != nil {
		t.Fatal(err)
	}
	w := rotate.New(dir.join(nameLogs, "stdout.log"), 4<<10, 2)
	var written bytes.Buffer
	for i := range 2000 {
		line := fmt.Appendf(nil, "line %d\n", i)
		written.Write(line)
		_, _ = w.Write(line) // never fails
	}
	for _, tail := range []int64{0, 3} {
		l, err := openLogs(dir, "stdout")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.seek(&droverv1.LogsRequest{Tail: tail}); err != nil {
			t.Fatal(err)
		}
		missing, got := int64(0), []byte{}
		if err := l.copy(func(b []byte, lost int64) error { missing, got = missing+lost, append(got, b...); return nil }); err != nil {
			t.Fatal(err)
		}
		l.close()
		switch {
		case tail == 0 && (missing == 0 || !bytes.Equal(got, written.Bytes()[missing:])):
			t.Errorf("%d bytes are missing and %d are there of %d", missing, len(got), written.Len())
		case tail > 0 && (missing != 0 || string(got) != "line 1997\nline 1998\nline 1999\n"):
			t.Errorf("the last lines are %q, and %d bytes are missing", got, missing)
		}
	}
	_ = w.Close()
}

func TestLogsFromNoPosition(t *testing.T) {
	for _, after := range []string{"x", "-1", "9223372036854775808"} {
		if err := (&logFiles{}).seek(&droverv1.LogsRequest{After: after}); err == nil {
			t.Errorf("position %q was taken", after)
		}
	}
}

// The end of a task is reported when nobody writes its log any more, and after logsLimit in any case.
func TestEndWaitsForTheLastLines(t *testing.T) {
	for name, code := range map[string]int{"a success": 0, "a failure": 3} {
		t.Run(name, func(t *testing.T) {
			var exited time.Time
			held := func(_ context.Context, p *fake.Process) int {
				hold, err := rotate.Hold(p.Spec.Log.Dir) // as a logger does that is slower than the task
				if err != nil {
					t.Error(err)
					return code
				}
				t.Cleanup(func() { hold.Close() })
				exited = time.Now()
				return code
			}
			b := newTestNode(t, map[string]fake.Program{"held": held})
			b.start()
			w := groupTask(0, "held")
			b.put(w)
			want := succeeded
			if code != 0 {
				want = failed
			}
			b.await(t, w, want)
			if took := time.Since(exited); took < logsLimit {
				t.Errorf("reported after %s, while the log was written", took)
			}
		})
	}
}
