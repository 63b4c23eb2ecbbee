// Package durable makes changes of a file system survive a loss of power.
package durable

import (
	"errors"
	"os"
)

// SyncFolder makes durable which names a folder has: a file that was made, renamed or removed in it
// is otherwise as it was before after a loss of power, though its content was synced.
func SyncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
