package coordinator

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
)

func TestCheckStateReadsSnapshots(t *testing.T) {
	dir := t.TempDir()
	for i, c := range []struct {
		text string
		want error
	}{
		{fmt.Sprintf(`{"drover":"facts","version":%d}`, facts.SnapshotVersion), nil},
		{"not JSON", nil},
		{fmt.Sprintf(`{"drover":"facts","version":%d}`, facts.SnapshotVersion+1), fault.Unsupported},
	} {
		at := filepath.Join(dir, "raft", "snapshots", fmt.Sprint(i))
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, "state.bin"), []byte(c.text+"\n{}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := CheckState(dir); !errors.Is(err, c.want) {
			t.Errorf("with %s: %v, want %v", c.text, err, c.want)
		}
	}
}
