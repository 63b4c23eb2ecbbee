package coordinator

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
)

func TestCheckStateReadsSnapshots(t *testing.T) {
	dir := t.TempDir()
	snaps, err := raft.NewFileSnapshotStoreWithLogger(filepath.Join(dir, "raft"), 9, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	version := func(n int) string { return fmt.Sprintf(`{"drover":"facts","version":%d}`, n) }
	for i, c := range []struct {
		text    string
		damaged string // what the file says later, if not the text
		want    error
	}{
		{text: version(facts.SnapshotVersion)},
		{text: "not JSON"},
		// A version that the checksum of the snapshot does not confirm is damage, which package replica finds.
		{text: version(facts.SnapshotVersion), damaged: version(facts.SnapshotVersion + 1)},
		{text: version(facts.SnapshotVersion + 1), want: fault.Unsupported},
	} {
		sink, err := snaps.Create(raft.SnapshotVersionMax, uint64(i+1), 1, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(sink, c.text+"\n{}\n"); err != nil {
			t.Fatal(err)
		}
		if err := sink.Close(); err != nil {
			t.Fatal(err)
		}
		if c.damaged != "" {
			if err := os.WriteFile(filepath.Join(dir, "raft", "snapshots", sink.ID(), "state.bin"), []byte(c.damaged+"\n{}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := CheckState(dir); !errors.Is(err, c.want) {
			t.Errorf("with %s, then %s: %v, want %v", c.text, c.damaged, err, c.want)
		}
	}
}
