package pastlogs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var day0 = time.Unix(1_700_000_000, 0)

func open(t testing.TB, dir string, o Options) *Store {
	t.Helper()
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// attemptFolder makes a folder with logs.
func attemptFolder(t testing.TB, dir string, files map[string]string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, nameLogs), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, nameLogs, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Logs are kept as they were, of a long file the end, and nothing that a link or a
// pipe of the tenant leads to.
func TestKeepCopiesFilesOnly(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("password"), 0o600); err != nil {
		t.Fatal(err)
	}
	from := attemptFolder(t, filepath.Join(dir, "a"), map[string]string{"stdout.log": "new\n", "stdout.log.1": "old\n", "stderr.log": strings.Repeat("x", 100) + "end"})
	if err := os.Symlink(secret, filepath.Join(from, nameLogs, "stdout.log.2")); err != nil {
		t.Fatal(err)
	}
	s := open(t, filepath.Join(dir, "kept"), Options{MaxBytes: 100_000, MaxAge: time.Hour, MaxFile: 10})
	for range 2 { // the second time changes nothing
		if err := s.Keep("1.0.0.1.1", from, day0); err != nil {
			t.Fatal(err)
		}
	}
	linked := filepath.Join(dir, "b")
	if err := os.Mkdir(linked, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, filepath.Join(linked, nameLogs)); err != nil {
		t.Fatal(err)
	}
	if err := s.Keep("1.0.1.1.1", linked, day0); err == nil {
		t.Error("logs behind a link are kept")
	}
	if err := s.Keep("1.0.2.1.1", filepath.Join(dir, "none"), day0); err != nil {
		t.Error(err)
	}
	for file, want := range map[string]string{"stdout.log": "new\n", "stdout.log.1": "old\n", "stderr.log": "xxxxxxxend"} {
		got, err := os.ReadFile(filepath.Join(s.Folder("1.0.0.1.1"), nameLogs, file))
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", file, got, err)
		}
	}
	list, err := os.ReadDir(filepath.Join(s.Folder("1.0.0.1.1"), nameLogs))
	if err != nil || len(list) != 3 {
		t.Errorf("%v %v", list, err)
	}
	if s.Folder("1.0.1.1.1") != "" || s.Folder("1.0.2.1.1") != "" {
		t.Error("what failed or was empty is there")
	}
	if !s.Failed("1.0.1.1.1") || s.Failed("1.0.0.1.1") || s.Failed("1.0.2.1.1") {
		t.Error("the logs that could not be kept are not known")
	}
}

// Whatever is kept and whenever the process starts again, the store has the logs of jobs in use, of the others
// the newest that fit, and no older ones than it may.
func TestLimits(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "kept")
		if err != nil {
			rt.Fatal(err)
		}
		from := attemptFolder(t, filepath.Join(dir, "attempt"), nil)
		o := Options{MaxBytes: 10 * block, MaxAge: 10 * time.Minute, MaxFile: 8 * block}
		s := open(t, filepath.Join(dir, "kept"), o)
		type kept struct {
			name string
			job  uint64
			at   time.Time
			n    int
		}
		var all []kept
		now := day0
		for i := range rapid.IntRange(1, 16).Draw(rt, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(1, 300).Draw(rt, "seconds")) * time.Second)
			switch rapid.IntRange(0, 5).Draw(rt, "what") {
			case 0:
				if err := os.Mkdir(filepath.Join(dir, "kept", partPrefix+"x"), 0o700); err != nil {
					rt.Fatal(err)
				}
				s = open(t, filepath.Join(dir, "kept"), o)
			case 1, 2:
				used := rapid.Uint64Range(0, 3).Draw(rt, "job in use")
				if err := s.Prune(now, func(job uint64) bool { return job == used }); err != nil {
					rt.Fatal(err)
				}
				counts := func(k kept) int {
					if k.job == used {
						return 0
					}
					return k.n
				}
				for i := 0; i < len(all); {
					if all[i].job != used && (sum(all, counts) > 10*block || now.Sub(all[i].at) > o.MaxAge) {
						all = slices.Delete(all, i, i+1)
					} else {
						i++
					}
				}
			default:
				n, job := rapid.IntRange(0, 8*block).Draw(rt, "bytes"), rapid.Uint64Range(1, 3).Draw(rt, "job")
				attemptFolder(t, from, map[string]string{"stdout.log": strings.Repeat("a", n)})
				name := fmt.Sprintf("%d.0.%d.1.1", job, i)
				if err := s.Keep(name, from, now); err != nil {
					rt.Fatal(err)
				}
				if n > 0 {
					all = append(all, kept{name, job, now, folderBytes + int(inBlocks(int64(n)))})
				}
			}
			list, err := os.ReadDir(filepath.Join(dir, "kept"))
			if err != nil || len(list) != len(all) {
				rt.Fatalf("%d folders, want %v (%v)", len(list), all, err)
			}
			for _, k := range all {
				if s.Folder(k.name) == "" {
					rt.Fatalf("%s is gone", k.name)
				}
			}
		}
	})
}

// While old logs are removed from the disk those of other attempts are kept and read. What cannot be
// removed stays, and is removed the next time.
func TestNobodyWaitsForAPrune(t *testing.T) {
	dir := t.TempDir()
	s := open(t, filepath.Join(dir, "kept"), Options{MaxBytes: 0, MaxAge: time.Hour, MaxFile: block})
	from := attemptFolder(t, filepath.Join(dir, "attempt"), map[string]string{"stdout.log": "said\n"})
	keep := func(attempt string) {
		if err := s.Keep(attempt, from, day0); err != nil {
			t.Error(err)
		}
	}
	keep("1.0.0.1.1")
	keep("1.0.1.1.1")
	s.remove = func(path string) error {
		done := make(chan struct{})
		go func() { defer close(done); keep("2.0.0.1.1") }()
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Error("nothing is kept while old logs are removed")
		}
		return errors.New("busy")
	}
	none := func(uint64) bool { return false }
	if err := s.Prune(day0, none); err == nil || s.Folder("1.0.0.1.1") == "" || s.Folder("1.0.1.1.1") == "" || s.Folder("2.0.0.1.1") == "" {
		t.Errorf("%v; kept %v", err, s.Attempts())
	}
	s.remove = os.RemoveAll
	if err := s.Prune(day0, none); err != nil || len(s.Attempts()) > 0 {
		t.Errorf("%v; kept %v", err, s.Attempts())
	}
}

// Logs that could not be kept stay known as lost over a restart, until they are kept after
// all, or are as old as others may become. Where very many failed, any may be lost.
func TestLostLogsStayKnown(t *testing.T) {
	dir, o := t.TempDir(), Options{MaxBytes: 1 << 20, MaxAge: time.Hour, MaxFile: block}
	s, links := open(t, filepath.Join(dir, "kept"), o), filepath.Join(dir, "links")
	if err := os.Mkdir(links, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, filepath.Join(links, nameLogs)); err != nil {
		t.Fatal(err)
	}
	for _, attempt := range []string{"1.0.0.1.1", "2.0.0.1.1"} {
		if err := s.Keep(attempt, links, day0); err == nil {
			t.Fatal("logs behind a link are kept")
		}
	}
	s = open(t, filepath.Join(dir, "kept"), o)
	if !s.Failed("1.0.0.1.1") || !s.Failed("2.0.0.1.1") || s.Failed("1.0.1.1.1") || len(s.Attempts()) > 0 {
		t.Errorf("after a restart: %v, kept %v", s.failed, s.Attempts())
	}
	from := attemptFolder(t, filepath.Join(dir, "attempt"), map[string]string{"stdout.log": "said\n"})
	if err := s.Keep("1.0.0.1.1", from, day0); err != nil || s.Failed("1.0.0.1.1") {
		t.Errorf("kept after all: %v, %v", err, s.failed)
	}
	for _, used := range []bool{true, false} {
		if err := s.Prune(day0.Add(2*time.Hour), func(uint64) bool { return used }); err != nil || s.Failed("2.0.0.1.1") != used {
			t.Errorf("pruned, job in use %v: %v, %v", used, err, s.failed)
		}
	}
	if left, err := os.ReadDir(filepath.Join(dir, "kept")); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
	for i := range maxFailed {
		s.failed[fmt.Sprint(i)] = day0
	}
	if !s.Failed("3.0.0.1.1") {
		t.Error("a log is said to be empty, and may be lost")
	}
}

// What was kept after the look at which jobs are in use stays: its job was not yet there.
func TestPruneLeavesLaterLogs(t *testing.T) {
	dir := t.TempDir()
	s := open(t, filepath.Join(dir, "kept"), Options{MaxBytes: 0, MaxAge: time.Hour, MaxFile: block})
	from := attemptFolder(t, filepath.Join(dir, "attempt"), map[string]string{"stdout.log": "said\n"})
	if err := s.Keep("1.0.0.1.1", from, day0.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, false} {
		at := time.Duration(i) * time.Second
		if err := s.Prune(day0.Add(at), func(uint64) bool { return false }); err != nil {
			t.Fatal(err)
		}
		if got := s.Folder("1.0.0.1.1") != ""; got != want {
			t.Errorf("pruned as of %s: kept %v, want %v", at, got, want)
		}
	}
}

// What was kept while the clock was years ahead counts as kept when the clock is right again, also after a restart.
func TestLogsOfATimeToCome(t *testing.T) {
	dir, o := t.TempDir(), Options{MaxBytes: 1 << 20, MaxAge: time.Hour, MaxFile: block}
	s := open(t, filepath.Join(dir, "kept"), o)
	from := attemptFolder(t, filepath.Join(dir, "attempt"), map[string]string{"stdout.log": "said\n"})
	ahead := day0.Add(10 * 365 * 24 * time.Hour)
	if err := s.Keep("1.0.0.1.1", from, ahead); err != nil {
		t.Fatal(err)
	}
	if err := s.Keep("1.0.1.1.1", filepath.Join(from, nameLogs, "stdout.log"), ahead); err == nil {
		t.Fatal("a file is taken for a folder")
	}
	s = open(t, filepath.Join(dir, "kept"), o)
	for after, want := range []bool{true, true, false} {
		if err := s.Prune(day0.Add(time.Duration(after)*o.MaxAge), func(uint64) bool { return false }); err != nil {
			t.Fatal(err)
		}
		if kept, lost := s.Folder("1.0.0.1.1") != "", s.Failed("1.0.1.1.1"); kept != want || lost != want {
			t.Errorf("%d h after the clock was set: kept %v, known as lost %v, want %v", after, kept, lost, want)
		}
	}
}

// One folder that cannot be removed keeps no other.
func TestPruneGoesOnAfterAnError(t *testing.T) {
	dir := t.TempDir()
	s := open(t, filepath.Join(dir, "kept"), Options{MaxBytes: 0, MaxAge: time.Hour, MaxFile: block})
	from := attemptFolder(t, filepath.Join(dir, "attempt"), map[string]string{"stdout.log": "said\n"})
	for _, attempt := range []string{"1.0.0.1.1", "1.0.1.1.1", "1.0.2.1.1"} {
		if err := s.Keep(attempt, from, day0); err != nil {
			t.Fatal(err)
		}
	}
	s.remove = func(path string) error {
		if filepath.Base(path) == "1.0.1.1.1" {
			return errors.New("input/output error")
		}
		return os.RemoveAll(path)
	}
	if err := s.Prune(day0, func(uint64) bool { return false }); err == nil || !slices.Equal(s.Attempts(), []string{"1.0.1.1.1"}) {
		t.Errorf("%v; kept %v", err, s.Attempts())
	}
}

func sum[T any](list []T, of func(T) int) (n int) {
	for _, x := range list {
		n += of(x)
	}
	return n
}
