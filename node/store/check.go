package store

import (
	"errors"
	"fmt"
	"os"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/drover-run/drover/internal/fault"
)

// Check finds out whether this program can read the file, and changes nothing. A
// file that does not exist is right. fault.Unsupported: a newer program wrote it;
// fault.Unavailable: another daemon holds it.
func Check(path string) error {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: 2 * time.Second, ReadOnly: true})
	switch {
	case errors.Is(err, bbolterrors.ErrTimeout):
		return fault.New(fault.Unavailable, "%s is held by another node daemon: stop it first", path)
	case errors.Is(err, bbolterrors.ErrInvalid), errors.Is(err, bbolterrors.ErrChecksum), errors.Is(err, bbolterrors.ErrVersionMismatch):
		return fault.New(fault.Corrupt, "%s is no store of a node (%w): remove it to start as a new node", path, err)
	case err != nil:
		return fmt.Errorf("node store %s: %w", path, err)
	}
	defer db.Close()
	return db.View(func(tx *bbolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		if meta == nil {
			return nil
		}
		if v := decodeUint(meta.Get(keyVersion)); v > Version {
			return fault.New(fault.Unsupported, "%s has version %d, this program knows up to %d: use the drover that wrote it or a newer one, or remove the file to start as a new node", path, v, Version)
		}
		return nil
	})
}
