package raftstore

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/boltpages"
	"github.com/drover-run/drover/internal/fault"
)

// Salvaged is what could be read from a damaged log.
type Salvaged struct {
	Entries []*raft.Log // whole ones after the given index, which follow it and each other
	First   uint64      // lowest index of a log that is not damaged, 0 for none or unknown
	Highest uint64      // highest index that is known to have been written
	Term    uint64      // highest term in a whole record or in the other file
}

// Salvage reads the entries after index `after` from a log that Open refuses.
// It takes every page of the file by itself, whether or not the database still
// finds it, and believes a record by its own checksum alone. Entries end before
// the first that is missing, or whose term is below that of the one before it,
// since such a record was deleted. It changes nothing; O(bytes), in memory.
func Salvage(dir string, after uint64) (Salvaged, error) {
	var out Salvaged
	f, err := os.Open(filepath.Join(dir, LogFile))
	if errors.Is(err, os.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	defer func() { _ = f.Close() }() // it was only read
	found := map[uint64]*raft.Log{}
	err = eachRecord(f, func(l *raft.Log) {
		out.Highest, out.Term = max(out.Highest, l.Index), max(out.Term, l.Term)
		if old := found[l.Index]; l.Index > after && (old == nil || old.Term < l.Term) {
			found[l.Index] = l
		}
	})
	if err != nil {
		return out, err
	}
	out.Highest = max(out.Highest, declaredLast(f))
	out.Term = max(out.Term, stableTerm(filepath.Join(dir, StableFile)))
	term := uint64(0)
	for i := after + 1; found[i] != nil && found[i].Term >= term; i++ {
		term = found[i].Term
		out.Entries = append(out.Entries, found[i])
	}
	return out, nil
}

// Read reads the entries after index `after` from a log that is not damaged; O(bytes),
// in memory. If the log begins later there are none: without those between they are of
// no use.
func Read(dir string, after uint64) (out Salvaged, err error) {
	s, err := Open(dir, Options{})
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if out.First, err = s.FirstIndex(); err != nil {
		return out, err
	}
	if out.Highest, err = s.LastIndex(); err != nil {
		return out, err
	}
	if out.Highest > 0 {
		last := &raft.Log{}
		if err := s.GetLog(out.Highest, last); err != nil {
			return out, err
		}
		out.Term = last.Term // no entry has a higher one
	}
	for i := after + 1; out.First <= after+1 && i <= out.Highest; i++ {
		l := &raft.Log{}
		if err := s.GetLog(i, l); err != nil {
			return out, err
		}
		out.Entries = append(out.Entries, l)
	}
	out.Term = max(out.Term, stableTerm(filepath.Join(dir, StableFile)))
	return out, nil
}

// eachRecord calls fn for each whole record in a leaf page, also one that the
// database has given up: newer records of an index have a higher term.
func eachRecord(f *os.File, fn func(*raft.Log)) error {
	return boltpages.EachLeaf(f, func(key, value []byte) {
		l := &raft.Log{}
		if len(key) == 8 && decode(binary.BigEndian.Uint64(key), value, l) == nil {
			fn(l)
		}
	})
}

// declaredLast returns the last index that the log says it has, 0 if that
// cannot be read.
func declaredLast(f *os.File) uint64 {
	var declared []byte
	p, err := boltpages.Open(f)
	if err != nil || inMeta(p, f.Name(), rangeKey, &declared) != nil || len(declared) != 20 {
		return 0
	}
	last := binary.BigEndian.Uint64(declared[8:])
	if string(encodeRange(binary.BigEndian.Uint64(declared), last)) != string(declared) {
		return 0
	}
	return last
}

// stableTerm returns the term in the other file, 0 if that cannot be read.
func stableTerm(path string) (term uint64) {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }() // it was only read
	p, err := boltpages.Open(f)
	if err != nil {
		return 0
	}
	_, err = p.Each(kvBucket, func(key, value []byte) error {
		if string(key) == "CurrentTerm" && len(value) == 8 {
			term = binary.BigEndian.Uint64(value)
		}
		return nil
	})
	if err != nil || term > 1<<48 { // a damaged number must not use up the terms
		return 0
	}
	return term
}

// RequireStopped returns an error, Conflict, if a process has the log in dir
// open.
func RequireStopped(dir string) error {
	f, err := os.Open(filepath.Join(dir, LogFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // releases the lock, too
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fault.New(fault.Conflict, "%s is open in another process: stop the coordinator on this folder first", f.Name())
	}
	return err
}
