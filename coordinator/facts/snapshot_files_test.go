package facts

import (
	"slices"
	"testing"
)

// An archive names the files whose bytes it has, and no other: those that jobs need.
func TestSnapshotForgetsFilesWithoutAJob(t *testing.T) {
	s := &Snapshot{blobs: []Blob{{Digest: "needed", Refs: 1}, {Digest: "uploaded before its job"}}}
	if all := s.Digests(); len(all) != 2 {
		t.Errorf("%q", all)
	}
	s.ForgetUnneededFiles()
	if left := s.Digests(); !slices.Equal(left, []string{"needed"}) {
		t.Errorf("%q", left)
	}
}
