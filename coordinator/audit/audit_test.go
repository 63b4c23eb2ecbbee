package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/linesum"
)

// read returns the records of a file.
func read(t *testing.T, path string) (out []Record) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("%s has mode %s", path, info.Mode())
	}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var r Record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("%s: %q: %v", path, lines.Text(), err)
		}
		out = append(out, r)
	}
	return out
}

// TestRotation writes records from several goroutines, over restarts: the newest keptFiles+1
// files have whole records, none twice, and no file is over its size.
func TestRotation(t *testing.T) {
	const maxBytes, writers, each = 2000, 4, 100
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.WriteFile(path, nil, 0o644); err != nil { // of somebody who was careless
		t.Fatal(err)
	}
	for round := range 3 {
		l, err := Open(path, maxBytes)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for i := range each {
					if err := l.Write(Record{Time: time.Unix(0, 0), Actor: "user/a\nb", Call: "StopJob", Target: fmt.Sprint(round, " ", w, " ", i), Outcome: "ok"}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	seen, last := map[string]bool{}, ""
	for k := keptFiles; k >= 0; k-- {
		name := path
		if k > 0 {
			name = fmt.Sprint(path, ".", k)
		}
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > maxBytes {
			t.Errorf("%s has %d bytes", name, info.Size())
		}
		for _, r := range read(t, name) {
			if seen[r.Target] {
				t.Errorf("%q is there twice", r.Target)
			}
			seen[r.Target], last = true, r.Target
		}
	}
	if !strings.HasPrefix(last, "2 ") || !strings.HasSuffix(last, fmt.Sprint(" ", each-1)) {
		t.Errorf("the last record is %q", last)
	}
	if _, err := os.Stat(fmt.Sprint(path, ".", keptFiles+1)); err == nil {
		t.Error("there are more files than keptFiles")
	}
}

// TestWriteAfterFailure has the log go on after its folder was away.
func TestWriteAfterFailure(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := Open(filepath.Join(dir, "audit.jsonl"), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	write := func(target string) error { return l.Write(Record{Call: "StopJob", Target: target, Outcome: "ok"}) }
	if err := write("first"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	if err := write("lost"); err == nil {
		t.Error("a record without a folder was written")
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	if err := write("second"); err != nil {
		t.Fatal(err)
	}
	records := read(t, filepath.Join(dir, "audit.jsonl"))
	if len(records) == 0 || records[len(records)-1].Target != "second" {
		t.Errorf("the records are %+v", records)
	}
}

// TestOnlyAnAuditLogIsContinued opens files that are there: what is no audit log keeps its bytes and its mode.
func TestOnlyAnAuditLogIsContinued(t *testing.T) {
	record := string(linesum.Seal([]byte(`{"time":"2026-01-02T03:04:05Z","actor":"local","call":"StopJob","outcome":"ok"}`)))
	for name, tc := range map[string]struct {
		text string
		want bool
	}{
		"nothing":                                {"", true},
		"a record":                               {record + "\n", true},
		"a record of an earlier version":         {`{"time":"2026-01-02T03:04:05Z","actor":"local","call":"StopJob","outcome":"ok"}` + "\n", true},
		"a damaged record":                       {strings.Replace(record, "local", "lokal", 1) + "\n", true},
		"a record after rubbish":                 {"\x00\x00\n" + record + "\n", true},
		"a record that was cut short":            {record[:40], true},
		"a record that was cut short at its sum": {record[:5] + "\n", true},
		"zero bytes of a loss of power":          {strings.Repeat("\x00", headBytes+1), true},
		"a record after zero bytes":              {"\x00\x00" + record + "\n", true},
		"text after zero bytes":                  {"\x00\x00root:x:0:0\n", false},
		"lines of text":                          {"root:x:0:0\nbin:x:1:1\n", false},
		"a daemon's log":                         {`{"time":"2026-01-02T03:04:05Z","level":"INFO","msg":"ready"}` + "\n", false},
		"the JSON history":                       {string(linesum.Seal([]byte(`{"job":1,"name":"a"}`))) + "\n", false},
		"a key":                                  {"-----BEGIN PRIVATE KEY-----\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(path, []byte(tc.text), 0o644); err != nil {
				t.Fatal(err)
			}
			l, err := Open(path, 0)
			if err == nil {
				err = l.Close()
			}
			if tc.want {
				if err != nil {
					t.Error(err)
				}
				return
			}
			info, serr := os.Stat(path)
			text, rerr := os.ReadFile(path)
			if !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), path+" is there and is none: name another file with -audit-log") {
				t.Error(err)
			}
			if serr != nil || rerr != nil || info.Mode().Perm() != 0o644 || string(text) != tc.text {
				t.Errorf("the file was changed: %v %v %q", serr, rerr, text)
			}
		})
	}
}
