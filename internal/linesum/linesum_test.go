package linesum

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/bitrot"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/fuzztest"
	"github.com/drover-run/drover/internal/seed"
)

func TestSealAndCheck(t *testing.T) {
	sealed := Seal([]byte(`{"a":1}`))
	if want := `{"crc32c":"cff7d56a","a":1}`; string(sealed) != want {
		t.Errorf("%s, want %s", sealed, want)
	}
	var v struct{ A int }
	if err := errors.Join(Check(sealed), Check(append(sealed, '\n')), json.Unmarshal(sealed, &v)); err != nil || v.A != 1 {
		t.Errorf("%v, %+v", err, v)
	}
	for _, bad := range []string{`{"crc32c":"cff7d56a","a":2}`, `{"crc32c":"cff7d56b","a":1}`, `{"crc32c":"CFF7D56A","a":1}`, `{"crc32c":"cff7d56a"}`, `{"crc32c":"`} {
		if err := Check([]byte(bad)); !errors.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if err := Check([]byte(`{"a":1}`)); err != nil {
		t.Errorf("a line of an earlier version: %v", err)
	}
}

// lines returns a file that an earlier version began, and its lines.
func lines(random *rand.Rand, old, sealed int) (file []byte, all []string) {
	for i := range old + sealed {
		line, _ := json.Marshal(map[string]any{"a": i, "b": strings.Repeat("text \"\n{", random.IntN(50))})
		if i >= old {
			line = Seal(line)
		}
		all = append(all, string(line))
		file = append(append(file, line...), '\n')
	}
	return file, all
}

// Whatever happens to a file with checksums, each line that is read was written, and each line that
// is not read is reported, or was cut off with all lines after it.
func TestDamagedLinesAreNamed(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	file, all := lines(random, 0, 100)
	for range bitrot.Rounds(t, 1) {
		bad, what := bitrot.Damage(random, file)
		s := NewScanner(bytes.NewReader(bad), "f")
		read := 0
		for {
			line, err := s.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			// A first line whose checksum member lost a bit looks like a line of an earlier
			// version; the rest of it is intact.
			if at := slices.Index(all, string(line)); at < 0 && !(read == 0 && len(s.Damaged) == 0 && !Sealed(line) && string(line[len(prefix):]) == all[0][len(prefix):]) {
				t.Fatalf("%s: %q was never written", what, line)
			}
			read++
		}
		if len(s.Damaged) == 0 && read < len(all) && !strings.HasPrefix(what, "cut") && !bytes.Equal(bad, file) {
			t.Fatalf("%s: %d of %d lines, and nothing is named", what, read, len(all))
		}
	}
}

// Lines of an earlier version are read, but not after lines with a checksum.
func TestLinesWithoutChecksum(t *testing.T) {
	file, all := lines(rand.New(rand.NewPCG(1, 1)), 3, 2)
	file = append(file, "{\"a\":7}\n{\"crc32c\":\"cut"...)
	path := filepath.Join(t.TempDir(), "f.jsonl")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	damaged, err := CheckFile(path)
	if want := "[line 6 of f.jsonl: the line has no checksum, though those before it have line 7 of f.jsonl: the line has no end]"; err != nil || fmt.Sprint(damaged) != want {
		t.Errorf("%v, %v", damaged, err)
	}
	s := NewScanner(bytes.NewReader(file), "f")
	for i := range all {
		if line, err := s.Next(); err != nil || string(line) != all[i] {
			t.Errorf("line %d: %q %v", i, line, err)
		}
	}
	if damaged, err := CheckFile(path + ".none"); err != nil || len(damaged) != 0 {
		t.Errorf("no file: %v %v", damaged, err)
	}
}

func FuzzScanner(f *testing.F) {
	f.Add([]byte(`{"a":1}` + "\n" + string(Seal([]byte(`{"a":1}`))) + "\n"))
	f.Add([]byte(`{"crc32c":"`))
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		s := NewScanner(bytes.NewReader(b), "f")
		n := 0
		for ; ; n++ {
			line, err := s.Next()
			if err != nil {
				break
			}
			if err := Check(line); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
		}
		if n+len(s.Damaged) > bytes.Count(b, []byte("\n"))+1 {
			t.Fatal("more lines than there are")
		}
	})
}
