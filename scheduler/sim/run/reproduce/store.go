package reproduce

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/drover-run/drover/scheduler/sim/report"
	"github.com/drover-run/drover/scheduler/sim/run"
)

// Store keeps samples in a folder, so that a run that was broken off goes on
// where it was. A sample is taken again only by the same program with the same
// parameters. A nil Store keeps nothing.
type Store struct {
	dir   string
	build string
	// Others takes samples of other builds of the program too, and counts them.
	Others bool
	others atomic.Int64
}

// FromOthers is how many samples other builds of the program made.
func (s *Store) FromOthers() int {
	if s == nil {
		return 0
	}
	return int(s.others.Load())
}

// kept is a file of a Store.
type kept struct {
	Build  string  `json:"build"`
	Key    string  `json:"key"`
	Sample *Sample `json:"sample"`
}

// OpenStore opens the folder, making it where needed. build names the program.
func OpenStore(dir, build string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("folder of samples: %w", err)
	}
	return &Store{dir: dir, build: build}, nil
}

// BuildID is the SHA-256 of the running program's file.
func BuildID() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program's file: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read this program's file: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read this program's file: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func (s *Store) path(name string) string {
	return filepath.Join(s.dir, unsafe.ReplaceAllString(name, "-")+".json")
}

// get gives the sample of a name, nil if there is none that is good.
func (s *Store) get(name, key string) *Sample {
	if s == nil {
		return nil
	}
	b, err := os.ReadFile(s.path(name))
	if err != nil {
		return nil
	}
	var k kept
	if json.Unmarshal(b, &k) != nil || k.Key != key || (k.Build != s.build && !s.Others) {
		return nil // half written, or of another program: it is made again
	}
	if k.Build != s.build {
		s.others.Add(1)
	}
	return k.Sample
}

// put keeps a sample: whole or not at all.
func (s *Store) put(name, key string, sample *Sample) error {
	if s == nil {
		return nil
	}
	path := s.path(name)
	if err := run.WriteFile(path+".new", func(w io.Writer) error { return report.WriteJSON(w, kept{s.build, key, sample}) }); err != nil {
		return fmt.Errorf("keep a sample: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep a sample: %w", err)
	}
	return nil
}
