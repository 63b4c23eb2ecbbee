package node

import (
	"errors"
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
	if err := folder(dir).create(t.Context(), false, allowed, allowed); err != nil {
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

func allowed(string) error { return nil }

// A daemon may be killed at any step: the folder is complete only once all of it belongs to the tenant,
// and is made again else.
func TestFolderIsCompleteOnceItIsOwned(t *testing.T) {
	killed := errors.New("killed")
	for _, harness := range []bool{false, true} {
		for step := 0; ; step++ {
			f, owned := folder(filepath.Join(t.TempDir(), "attempt")), 0
			own := func(string) error {
				if owned++; owned > step {
					return killed
				}
				return nil
			}
			err := f.create(t.Context(), harness, allowed, own)
			if err == nil {
				if step < 3 || !f.isComplete() {
					t.Errorf("harness %v: %d folders were given to the tenant, complete %v", harness, step, f.isComplete())
				}
				break
			}
			if !errors.Is(err, killed) || f.isComplete() {
				t.Fatalf("harness %v, killed after %d folders: %v, complete %v", harness, step, err, f.isComplete())
			}
			if err := f.create(t.Context(), harness, allowed, allowed); err != nil || !f.isComplete() {
				t.Fatalf("harness %v, killed after %d folders, made again: %v, complete %v", harness, step, err, f.isComplete())
			}
		}
	}
}

// Each step that may make or remove a folder is among those after which it is read again.
func TestStepsThatChangeTheFolder(t *testing.T) {
	for _, do := range []task.Do{task.MakeFolder, task.FetchDump, task.Restore, task.Trim, task.RemoveFolder} {
		if !changesFolder(do) {
			t.Errorf("after %v the folder is not read again", do)
		}
	}
}
