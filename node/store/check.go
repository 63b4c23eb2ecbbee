package store

import (
	"errors"
	"os"
)

// Check returns an error if this program cannot read the file. It changes nothing, and accepts a
// file that does not exist. fault.Unsupported: a newer program wrote it. fault.Corrupt: it is
// damaged. fault.Unavailable: another daemon has it open.
func Check(path string) error {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return verify(path)
}
