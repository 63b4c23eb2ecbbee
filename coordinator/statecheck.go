package coordinator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc64"
	"io"
	"os"
	"path/filepath"

	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/raftstore"
	"github.com/drover-run/drover/internal/fault"
)

// CheckState returns an error if this program cannot read the state in a coordinator's folder. It
// changes nothing there, and accepts a folder that does not exist. fault.Unsupported: a newer
// program wrote the state.
func CheckState(dir string) error {
	raft := filepath.Join(dir, "raft")
	if err := raftstore.CheckVersion(raft); err != nil {
		return err
	}
	snapshots, err := filepath.Glob(filepath.Join(raft, "snapshots", "*", "state.bin"))
	if err != nil {
		return err
	}
	for _, s := range snapshots {
		if err := checkSnapshot(s); err != nil {
			return err
		}
	}
	return nil
}

// checkSnapshot checks the version in a snapshot's first line. It leaves snapshots that are damaged
// or cannot be read to package replica.
func checkSnapshot(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	defer f.Close()
	var head struct {
		Drover  string `json:"drover"`
		Version int    `json:"version"`
	}
	if json.NewDecoder(f).Decode(&head) != nil || head.Drover != "facts" {
		return nil
	}
	if head.Version > facts.SnapshotVersion && isWhole(path) {
		return fault.New(fault.Unsupported, "%s has version %d, this program knows up to %d: use the drover that wrote it or a newer one, or restore a backup from before the upgrade", path, head.Version, facts.SnapshotVersion)
	}
	return nil
}

// isWhole reports whether a snapshot has the checksum in its description by raft. O(bytes).
func isWhole(path string) bool {
	b, err := os.ReadFile(filepath.Join(filepath.Dir(path), "meta.json"))
	if err != nil {
		return false
	}
	var meta struct{ CRC []byte }
	if json.Unmarshal(b, &meta) != nil {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	sum := crc64.New(crc64.MakeTable(crc64.ECMA))
	_, err = io.Copy(sum, f)
	return err == nil && bytes.Equal(sum.Sum(nil), meta.CRC)
}
