package cluster

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestLeftoversOfAServer(t *testing.T) {
	s := &Server{c: &Cluster{cfg: Config{Dir: t.TempDir()}}, ID: "c1"}
	check := func(want ...string) {
		t.Helper()
		if got, err := s.Leftovers(); err != nil || !slices.Equal(got, want) {
			t.Errorf("%v, %v, want %v", got, err, want)
		}
	}
	check() // it has never started
	for _, name := range []string{"sha256/ab/abcd", "incoming/up-1", "damaged/abcd-1"} {
		path := filepath.Join(s.dataDir(), "blobs", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check("incoming up-1", "damaged abcd-1")
}
