package cache

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"
)

// write returns a build function that writes one file.
func write(content string) func(string) error {
	return func(dir string) error { return os.WriteFile(filepath.Join(dir, "f"), []byte(content), 0o644) }
}

func mustGet(t *testing.T, d Dir, name string, key Key, build func(string) error) *Entry {
	t.Helper()
	e, err := d.Get(name, key, build)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func content(t *testing.T, e *Entry) string {
	t.Helper()
	b, err := os.ReadFile(e.File("f"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestAnEntryIsBuiltOnceAndFoundAgain(t *testing.T) {
	d := Dir(t.TempDir())
	key := KeyOf("a")
	mustGet(t, d, "x", key, write("first")).Close()
	e := mustGet(t, d, "x", key, func(string) error { return errors.New("built again") })
	defer e.Close()
	if got := content(t, e); got != "first" {
		t.Errorf("content %q", got)
	}
	if !d.has("x", key) || d.has("x", KeyOf("b")) {
		t.Error("Has is wrong")
	}
}

func TestFailedBuildIsRetried(t *testing.T) {
	d := Dir(t.TempDir())
	key := KeyOf("a")
	broken := errors.New("broken")
	_, err := d.Get("x", key, func(dir string) error { return errors.Join(write("half")(dir), broken) })
	if !errors.Is(err, broken) {
		t.Fatalf("error %v", err)
	}
	if left, _ := filepath.Glob(d.Path("x-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	e := mustGet(t, d, "x", key, write("whole"))
	defer e.Close()
	if got := content(t, e); got != "whole" {
		t.Errorf("content %q", got)
	}
}

func TestInterruptedBuildIsNoEntry(t *testing.T) {
	d := Dir(t.TempDir())
	key := KeyOf("a")
	part := d.Path("x-" + string(key) + ".part")
	if err := os.MkdirAll(part, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(part, "remains"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	e := mustGet(t, d, "x", key, write("whole"))
	defer e.Close()
	if _, err := os.Stat(e.File("remains")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("remains of the interrupted build are in the entry: %v", err)
	}
}

func TestConcurrentBuildersBuildOnce(t *testing.T) {
	d := Dir(t.TempDir())
	key := KeyOf("a")
	var built atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			e, err := d.Get("x", key, func(dir string) error {
				built.Add(1)
				return write("once")(dir)
			})
			if err != nil {
				t.Error(err)
				return
			}
			defer e.Close()
			if b, err := os.ReadFile(e.File("f")); err != nil || string(b) != "once" {
				t.Errorf("%q, %v", b, err)
			}
		})
	}
	wg.Wait()
	if built.Load() != 1 {
		t.Errorf("built %d times", built.Load())
	}
}

func TestOldGenerationsAreRemovedUnlessInUse(t *testing.T) {
	d := Dir(t.TempDir())
	first := mustGet(t, d, "x", KeyOf("1"), write("1"))
	other := mustGet(t, d, "x-y", KeyOf("1"), write("other name"))
	other.Close()
	mustGet(t, d, "x", KeyOf("2"), write("2")).Close()
	if !d.has("x", KeyOf("1")) {
		t.Error("a generation in use was removed")
	}
	first.Close()
	mustGet(t, d, "x", KeyOf("3"), write("3")).Close()
	if d.has("x", KeyOf("1")) || d.has("x", KeyOf("2")) {
		t.Error("an old generation remains")
	}
	if !d.has("x-y", KeyOf("1")) {
		t.Error("an entry of another name was removed")
	}
}

func TestLockWaitIsLimited(t *testing.T) {
	d := Dir(t.TempDir())
	l, err := d.Lock("x", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Lock("x", 0); err == nil {
		t.Error("taken twice")
	}
	l.Close()
	again, err := d.Lock("x", 0)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

func TestKeys(t *testing.T) {
	tests := map[string]struct {
		a, b []string
		same bool
	}{
		"equal parts have equal keys":                {[]string{"a", "b"}, []string{"a", "b"}, true},
		"order matters":                              {[]string{"a", "b"}, []string{"b", "a"}, false},
		"the border between parts matters":           {[]string{"ab", "c"}, []string{"a", "bc"}, false},
		"an empty part matters":                      {[]string{"a"}, []string{"a", ""}, false},
		"a part cannot imitate the length of others": {[]string{"a1:b"}, []string{"a", "b"}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := KeyOf(tt.a...) == KeyOf(tt.b...); got != tt.same {
				t.Errorf("equal %v, want %v", got, tt.same)
			}
		})
	}
}

func TestSourcesHoldNamesAndContents(t *testing.T) {
	key := func(files fstest.MapFS) Key {
		parts, err := SourcesOf(files, func(p string) bool { return p != "ignored" })
		if err != nil {
			t.Fatal(err)
		}
		return KeyOf(parts...)
	}
	base := fstest.MapFS{"d/a": {Data: []byte("1")}, "ignored": {Data: []byte("1")}}
	if key(base) != key(fstest.MapFS{"d/a": {Data: []byte("1")}, "ignored": {Data: []byte("2")}}) {
		t.Error("an ignored file changed the key")
	}
	if key(base) == key(fstest.MapFS{"d/a": {Data: []byte("2")}}) {
		t.Error("a changed content did not change the key")
	}
	if key(base) == key(fstest.MapFS{"d/b": {Data: []byte("1")}}) {
		t.Error("a changed name did not change the key")
	}
}

func TestOpenWithoutARepositoryOrAVariableSaysSo(t *testing.T) {
	t.Setenv(EnvDir, "")
	if _, err := Open(""); err == nil {
		t.Error("no error")
	}
	want := filepath.Join(t.TempDir(), "made")
	t.Setenv(EnvDir, want)
	if d, err := Open(""); err != nil || string(d) != want {
		t.Errorf("%q, %v", d, err)
	}
}
