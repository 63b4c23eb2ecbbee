package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/drover-run/drover/node/task"
)

// What is known of a folder is read once, and again after forget.
func TestFolderStateRemembers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "attempt")
	s := folderState{dir: folder(dir)}
	want := func(when string, exists, complete, hasTask bool) {
		t.Helper()
		if s.exists() != exists || s.isComplete() != complete || s.hasTask() != hasTask {
			t.Errorf("%s: exists %v, complete %v, task %v", when, s.exists(), s.isComplete(), s.hasTask())
		}
	}
	want("before it is made", false, false, false)
	if err := folder(dir).create(t.Context(), uint32(os.Geteuid()), false, func(string) error { return nil }); err != nil {
		t.Fatal(err)
	}
	want("as remembered", false, false, false)
	s.forget()
	want("made", true, true, true)
	if err := folder(dir).trimToLogs(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.forget()
	want("trimmed", true, false, false)
}

// Each step that may make or remove a folder is among those after which it is read again.
func TestStepsThatChangeTheFolder(t *testing.T) {
	for _, do := range []task.Do{task.MakeFolder, task.FetchDump, task.Restore, task.Trim, task.RemoveFolder} {
		if !changesFolder(do) {
			t.Errorf("after %v the folder is not read again", do)
		}
	}
}
