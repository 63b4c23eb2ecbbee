package raftstore

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/drover-run/drover/internal/fault"
)

// setVersion writes another version into one file of a closed store.
func setVersion(t *testing.T, path string, version uint32) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket(metaBucket).Put(versionKey, binary.BigEndian.AppendUint32(nil, version))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestCheckVersion(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "raft")
	if err := CheckVersion(dir); err != nil {
		t.Errorf("no folder: %v", err)
	}
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := CheckVersion(dir); err != nil {
		t.Errorf("its own store: %v", err)
	}
	read := func() string {
		var all strings.Builder
		for _, f := range []string{LogFile, StableFile} {
			b, err := os.ReadFile(filepath.Join(dir, f))
			if err != nil {
				t.Fatal(err)
			}
			all.Write(b)
		}
		return all.String()
	}
	for _, c := range []struct {
		file string
		want string
	}{{LogFile, "stopped half way"}, {StableFile, "use the drover that wrote it"}} { // one after the other
		setVersion(t, filepath.Join(dir, c.file), schemaVersion+1)
		before := read()
		err := CheckVersion(dir)
		if !errors.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "drover operator repair") {
			t.Errorf("%s of a newer version: %v", c.file, err)
		}
		if read() != before {
			t.Errorf("%s of a newer version: looking changed a file", c.file)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, LogFile), []byte(strings.Repeat("junk", 10_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := CheckVersion(dir); !errors.Is(err, fault.Corrupt) {
		t.Errorf("junk: %v", err)
	}
}
