package run

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func TestFailedFileIsRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "summary.json")
	broken := errors.New("unsupported value: NaN")
	if err := WriteFile(path, func(io.Writer) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("half a file is left: %v", err)
	}
}
