package main

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	bolt "go.etcd.io/bbolt"
)

// scriptNewer writes version 99 into a file of the coordinator's raft store, or of
// a node's store, which is made where it is not there.
func scriptNewer(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: newer FILE")
	}
	path := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(filepath.Dir(path), 0o700))
	db, err := bolt.Open(path, 0o600, nil)
	ts.Check(err)
	defer db.Close()
	version := binary.BigEndian.AppendUint32(nil, 99)
	if !strings.Contains(path, "raft") {
		version = binary.BigEndian.AppendUint64(nil, 99)
	}
	ts.Check(db.Update(func(tx *bolt.Tx) error {
		meta, err := tx.CreateBucketIfNotExists([]byte("meta"))
		if err != nil {
			return err
		}
		return meta.Put([]byte("version"), version)
	}))
}
