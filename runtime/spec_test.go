package runtime

import (
	"errors"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/fault"
)

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*Spec)
		want string // in the error; "" for none
	}{
		{"a minimal spec", func(*Spec) {}, ""},
		{"an id of 76 bytes", func(s *Spec) { s.ID = strings.Repeat("a", 76) }, ""},
		{"an id of 77 bytes", func(s *Spec) { s.ID = strings.Repeat("a", 77) }, "container id"},
		{"an id that climbs", func(s *Spec) { s.ID = ".." }, "container id"},
		{"an id with a slash", func(s *Spec) { s.ID = "a/b" }, "container id"},
		{"no arguments", func(s *Spec) { s.Args = nil }, "Args is empty"},
		{"an empty command", func(s *Spec) { s.Args = []string{""} }, "Args is empty"},
		{"a zero byte in an argument", func(s *Spec) { s.Args = []string{"a", "b\x00"} }, "zero byte"},
		{"image and rootfs", func(s *Spec) { s.Image, s.Rootfs = "sha256:a", "/r" }, "both set"},
		{"a relative rootfs", func(s *Spec) { s.Rootfs = "r" }, "Rootfs"},
		{"a cgroup that climbs", func(s *Spec) { s.Cgroup = "/a/../b" }, "Cgroup"},
		{"a mount on the root", func(s *Spec) { s.Mounts = []Mount{{Source: "/a", Target: "/"}} }, "mount"},
		{"two mounts on one target", func(s *Spec) { s.Mounts = []Mount{{Source: "/a", Target: "/t"}, {Source: "/b", Target: "/t"}} }, "two mounts"},
		{"a variable with an empty value", func(s *Spec) { s.Env = []string{"A="} }, ""},
		{"a variable without a value", func(s *Spec) { s.Env = []string{"A"} }, "NAME=value"},
		{"a negative log size", func(s *Spec) { s.Log.MaxBytes = -1 }, "below zero"},
		{"a negative log rate", func(s *Spec) { s.Log.BytesPerS = -1 }, "below zero"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := Spec{ID: "a-1", Args: []string{"true"}}
			c.edit(&s)
			err := s.Validate()
			switch {
			case c.want == "" && err != nil:
				t.Errorf("got %v, want no error", err)
			case c.want != "" && (!errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want fault.Invalid with %q", err, c.want)
			}
		})
	}
}

func TestFingerprintTellsSpecsApart(t *testing.T) {
	base := func() Spec { return Spec{ID: "a", Args: []string{"x"}, Labels: map[string]string{"k": "v", "l": "w"}} }
	same := base()
	same.Env, same.Mounts = []string{}, []Mount{}
	if base().Fingerprint() != same.Fingerprint() {
		t.Error("nil and empty lists differ")
	}
	seen := map[string]string{base().Fingerprint(): "base"}
	for name, edit := range map[string]func(*Spec){
		"args": func(s *Spec) { s.Args = []string{"y"} }, "env": func(s *Spec) { s.Env = []string{"A=1"} },
		"uid": func(s *Spec) { s.UID = 1 }, "labels": func(s *Spec) { s.Labels = nil },
		"mount": func(s *Spec) { s.Mounts = []Mount{{Source: "/a", Target: "/b", ReadOnly: true}} },
		"log":   func(s *Spec) { s.Log.MaxFiles = 3 }, "log rate": func(s *Spec) { s.Log.BytesPerS = 3 },
	} {
		s := base()
		edit(&s)
		if other, ok := seen[s.Fingerprint()]; ok {
			t.Errorf("%s has the fingerprint of %s", name, other)
		}
		seen[s.Fingerprint()] = name
	}
}
