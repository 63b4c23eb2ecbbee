package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A loss of power takes from a server's disk what was not synced, and nothing else. A full disk takes nothing more until it is
// emptied.
func TestDiskOfAServer(t *testing.T) {
	s := &Server{c: &Cluster{cfg: Config{Dir: t.TempDir()}}, ID: "c1"}
	t.Cleanup(func() {
		if err := s.unmount(0); err != nil {
			t.Error(err)
		}
	})
	if err := s.makeDisk(t.Context()); err != nil {
		t.Skip("not proved here: that a coordinator may lose power; ", err)
	}
	path := func(name string) string { return filepath.Join(s.dataDir(), name) }
	write := func(name, text string, sync bool) error {
		f, err := os.OpenFile(path(name), os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = f.WriteString(text)
		if sync {
			err = errors.Join(err, f.Sync())
		}
		return errors.Join(err, f.Close())
	}
	read := func(name string) string {
		b, err := os.ReadFile(path(name))
		if err != nil {
			return "none"
		}
		return string(b)
	}
	for name, sync := range map[string]bool{"synced": true, "changed": true, "unsynced": false} {
		if err := write(name, "before", sync); err != nil {
			t.Fatal(err)
		}
	}
	if err := write("changed", "behind", false); err != nil {
		t.Fatal(err)
	}
	if err := s.loseUnsynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	if read("synced") != "before" || read("changed") != "before" || read("unsynced") == "before" {
		t.Errorf("synced %q, changed since %q, never synced %q", read("synced"), read("changed"), read("unsynced"))
	}
	if err := s.FillDisk(); err != nil {
		t.Fatal(err)
	}
	if err := write("full", string(make([]byte, 64<<10)), true); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a write to a full disk: %v", err)
	}
	if err := s.EmptyDisk(); err != nil {
		t.Fatal(err)
	}
	if err := write("full", string(make([]byte, 64<<10)), true); err != nil {
		t.Errorf("a write to a disk that was emptied: %v", err)
	}
}
