package store

import (
	"errors"
	"os"
)

// Check finds out whether this program can read the file, and changes nothing. A
// file that does not exist is right. fault.Unsupported: a newer program wrote it;
// fault.Corrupt: it is damaged; fault.Unavailable: another daemon holds it.
func Check(path string) error {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return verify(path)
}
