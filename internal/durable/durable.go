// Package durable makes changes of a file system survive a loss of power.
package durable

import (
	"errors"
	"os"
)

// SyncFolder makes the entries of a folder durable. Without it, a file that was created, renamed or
// removed in the folder may be as before after a loss of power, even if its content was synced.
func SyncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
