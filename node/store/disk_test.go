package store

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// TestAChangeThatMayBeWrittenIsFetchedAgain fails the writes of a change of the wanted set, before and after they are made:
// a registration after it has revision 0, since the caller knows of none of it, and a whole set says everything.
func TestAChangeThatMayBeWrittenIsFetchedAgain(t *testing.T) {
	for _, written := range []bool{false, true} {
		s := open(t)
		register := func() Identity {
			t.Helper()
			id, err := s.Register(&droverv1.RegisterResponse{Cluster: "c", Node: 1, Epoch: 1, Term: 1})
			if err != nil {
				t.Fatal(err)
			}
			return id
		}
		register()
		if _, err := s.Apply(&droverv1.Wanted{Term: 1, Revision: 5, Full: true}); err != nil {
			t.Fatal(err)
		}
		if id := register(); id.Revision != 5 {
			t.Errorf("revision %d after a registration, want 5", id.Revision)
		}
		s.SetDisk(Disk{Fault: func(after bool) error {
			if after == written {
				return unix.EIO
			}
			return nil
		}})
		if _, err := s.Apply(&droverv1.Wanted{Term: 1, Revision: 6, Put: []*droverv1.WantedAttempt{want(0, "a")}}); !errors.Is(err, ErrUnwritable) || !errors.Is(err, unix.EIO) {
			t.Errorf("written %v: a change that failed returns %v", written, err)
		}
		if _, err := s.Register(&droverv1.RegisterResponse{Cluster: "c", Node: 1, Epoch: 1, Term: 1}); !errors.Is(err, ErrUnwritable) {
			t.Errorf("written %v: a registration that failed returns %v", written, err)
		}
		s.SetDisk(Disk{})
		if id := register(); id.Revision != 0 {
			t.Errorf("written %v: revision %d after a change that failed, want 0", written, id.Revision)
		}
		if c, err := s.Apply(&droverv1.Wanted{Term: 1, Revision: 6, Full: true, Put: []*droverv1.WantedAttempt{want(0, "a")}}); err != nil || len(c.Put) != 1 {
			t.Errorf("written %v: the whole set puts %d attempts, %v", written, len(c.Put), err)
		}
		if id := register(); id.Revision != 6 {
			t.Errorf("written %v: revision %d after the whole set, want 6", written, id.Revision)
		}
	}
}

// TestDiskIsToldOfEachChange counts what a simulation of a loss of power is told.
func TestDiskIsToldOfEachChange(t *testing.T) {
	s := open(t)
	told := map[bool]int{}
	s.SetDisk(Disk{Writing: func(path string, synced bool) {
		if path != s.db.Path() {
			t.Errorf("told of %s", path)
		}
		told[synced]++
	}})
	change := func() {
		t.Helper()
		_, err1 := s.Register(&droverv1.RegisterResponse{Cluster: "c", Node: 1, Epoch: 1, Term: 1})
		_, err2 := s.Apply(&droverv1.Wanted{Term: 1, Revision: 1, Full: true})
		_, err3 := s.ForgetRevision()
		if err := errors.Join(err1, err2, err3, s.PutRecord("1.0.0.1.1", Record{}), s.DeleteRecord("1.0.0.1.1")); err != nil {
			t.Fatal(err)
		}
	}
	change()
	s.SkipSync()
	change()
	if told[true] != 5 || told[false] != 5 {
		t.Errorf("told of %d changes with fsync and %d without, want 5 of each", told[true], told[false])
	}
}
