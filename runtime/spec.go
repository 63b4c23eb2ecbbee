package runtime

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path"
	"regexp"
	"strings"

	"github.com/drover-run/drover/internal/fault"
)

// maxIDBytes is the longest ID of a container that every engine takes.
const maxIDBytes = 76

var idPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]*$`)

// ValidID reports whether id can name a container.
func ValidID(id string) bool { return len(id) <= maxIDBytes && idPattern.MatchString(id) }

// Validate checks the form of a Spec, for every driver alike; each driver checks
// that image, folders and cgroup exist. Errors are fault.Invalid and name the
// field.
func (s Spec) Validate() error {
	switch {
	case !ValidID(s.ID):
		return fault.New(fault.Invalid, "container id %q: 1 to %d of a-z A-Z 0-9 . _ -, beginning with a letter or digit", s.ID, maxIDBytes)
	case len(s.Args) == 0 || s.Args[0] == "":
		return fault.New(fault.Invalid, "container %s: no command: Args is empty", s.ID)
	case s.Image != "" && s.Rootfs != "":
		return fault.New(fault.Invalid, "container %s: Image and Rootfs are both set: give one", s.ID)
	case s.Log.MaxBytes < 0 || s.Log.MaxFiles < 0 || s.Log.BytesPerS < 0:
		return fault.New(fault.Invalid, "container %s: log sizes or rate below zero", s.ID)
	}
	for _, f := range []struct{ name, path string }{{"Rootfs", s.Rootfs}, {"Dir", s.Dir}, {"Cgroup", s.Cgroup}, {"Log.Dir", s.Log.Dir}} {
		if f.path != "" && !isCleanAbs(f.path) {
			return fault.New(fault.Invalid, "container %s: %s %q is not a clean absolute path", s.ID, f.name, f.path)
		}
	}
	targets := map[string]bool{}
	for _, m := range s.Mounts {
		if !isCleanAbs(m.Source) || !isCleanAbs(m.Target) || m.Target == "/" {
			return fault.New(fault.Invalid, "container %s: mount %q on %q: both must be clean absolute paths, and the target not /", s.ID, m.Source, m.Target)
		}
		if targets[m.Target] {
			return fault.New(fault.Invalid, "container %s: two mounts on %s", s.ID, m.Target)
		}
		targets[m.Target] = true
	}
	for _, e := range s.Env {
		if k, _, ok := strings.Cut(e, "="); !ok || k == "" || strings.ContainsRune(e, 0) {
			return fault.New(fault.Invalid, "container %s: environment entry %q is not NAME=value", s.ID, e)
		}
	}
	for _, a := range s.Args {
		if strings.ContainsRune(a, 0) {
			return fault.New(fault.Invalid, "container %s: a zero byte in argument %q", s.ID, a)
		}
	}
	return nil
}

// Fingerprint returns the sha256 (hex) over all fields of the Spec; two Specs with
// equal fingerprints describe the same container. A nil list equals an empty one.
func (s Spec) Fingerprint() string {
	s.Env, s.Mounts = append([]string{}, s.Env...), append([]Mount{}, s.Mounts...)
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	b, err := json.Marshal(s) // JSON sorts the keys of maps
	if err != nil {
		panic("runtime: a Spec that JSON cannot hold: " + err.Error())
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

func isCleanAbs(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && !strings.ContainsRune(p, 0)
}
