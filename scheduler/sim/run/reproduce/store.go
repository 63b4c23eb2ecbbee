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
	"time"

	"github.com/drover-run/drover/scheduler/sim/report"
	"github.com/drover-run/drover/scheduler/sim/run"
)

// Store stores samples in a folder, so that an interrupted run can continue. A sample is reused
// only by the same program with the same parameters. A nil Store stores nothing.
type Store struct {
	dir     string
	build   string
	version string
	now     func() time.Time
	// AcceptOtherBuilds also reuses samples of other builds of the program, and counts them.
	AcceptOtherBuilds bool
	fromOtherBuilds   atomic.Int64
}

// FromOtherBuilds returns how many samples of other builds were reused.
func (s *Store) FromOtherBuilds() int {
	if s == nil {
		return 0
	}
	return int(s.fromOtherBuilds.Load())
}

// storedSample is the content of a file of a Store.
type storedSample struct {
	Build  string  `json:"build"`
	Made   string  `json:"made"` // version and day
	Key    string  `json:"key"`
	Sample *Sample `json:"sample"`
}

// OpenStore opens a folder of samples and creates it if needed. build identifies the program;
// version is its name for users.
func OpenStore(dir, build, version string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("folder of samples: %w", err)
	}
	return &Store{dir: dir, build: build, version: version, now: time.Now}, nil
}

// BuildID returns the SHA-256 of the running program's file.
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
	return filepath.Join(s.dir, unsafeChars.ReplaceAllString(name, "-")+".json")
}

// get returns the stored sample of a name, or nil if there is no valid one.
func (s *Store) get(name, key string) *Sample {
	if s == nil {
		return nil
	}
	b, err := os.ReadFile(s.path(name))
	if err != nil {
		return nil
	}
	var k storedSample
	if json.Unmarshal(b, &k) != nil || k.Sample == nil || k.Key != key || (k.Build != s.build && !s.AcceptOtherBuilds) {
		return nil // truncated, or of another program: it is made again
	}
	if k.Build != s.build {
		s.fromOtherBuilds.Add(1)
	}
	k.Sample.made = k.Made
	return k.Sample
}

// put stores a sample atomically.
func (s *Store) put(name, key string, sample *Sample) error {
	if s == nil {
		return nil
	}
	path := s.path(name)
	sample.made = fmt.Sprintf("%s on %s", s.version, s.now().UTC().Format(time.DateOnly))
	if err := run.WriteFile(path+".new", func(w io.Writer) error { return report.WriteJSON(w, storedSample{s.build, sample.made, key, sample}) }); err != nil {
		return fmt.Errorf("store a sample: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("store a sample: %w", err)
	}
	return nil
}
