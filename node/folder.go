package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/tree"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/task"
)

// Names inside an attempt's folder; the layout is in doc.go.
const (
	nameTask     = "task"
	nameTmp      = "tmp"
	nameLogs     = "logs"
	nameMeta     = ".drover" // below task
	nameSpec     = "spec.json"
	nameResult   = "result.json"
	nameProgress = "progress.json"
	nameIn       = "in"
	nameSpill    = "spill"
	nameOut      = "out"
)

// folder is the path of an attempt's folder.
type folder string

func (f folder) join(part ...string) string {
	return filepath.Join(append([]string{string(f)}, part...)...)
}
func (f folder) task() string                  { return f.join(nameTask) }
func (f folder) logs() string                  { return f.join(nameLogs) }
func (f folder) metaPath(name string) string   { return f.join(nameTask, nameMeta, name) }
func (f folder) outputName(name string) string { return filepath.Join(nameMeta, nameOut, name) }

func (d *daemon) folderOf(id store.ID) folder {
	return folder(filepath.Join(d.cfg.Data, "attempts", id.String()))
}

// exists reports whether the folder exists, complete or not.
func (f folder) exists() bool { return pathExists(string(f)) }

// isComplete reports whether create has finished and trim has not started.
func (f folder) isComplete() bool { return pathExists(f.join(nameTmp)) }

// folderState caches what is known of an attempt's folder, because the loop needs it before each
// step. Only the steps named by changesFolder change it.
type folderState struct {
	dir                   folder
	folder, tmp, taskSeen presence
}

// presence is whether a path is known to exist.
type presence int8

const (
	unknown presence = iota
	absent
	present
)

// look reports whether the path exists. It reads that from the disk only once.
func (p *presence) look(path func() string) bool {
	if *p == unknown {
		if *p = absent; pathExists(path()) {
			*p = present
		}
	}
	return *p == present
}

func (s *folderState) exists() bool { return s.folder.look(func() string { return string(s.dir) }) }

func (s *folderState) isComplete() bool {
	return s.tmp.look(func() string { return s.dir.join(nameTmp) })
}

func (s *folderState) hasTask() bool { return s.taskSeen.look(s.dir.task) }

// hasScratch reports whether an ended attempt has files that are not needed. A
// stopped attempt keeps only its logs, a successful one its output and logs. A
// failed one keeps everything for inspection until the coordinator stops it.
func (s *folderState) hasScratch(stopped, succeeded bool) bool {
	if stopped {
		return s.isComplete() || s.hasTask()
	}
	return succeeded && s.isComplete()
}

// forget makes the next queries read the folder again.
func (s *folderState) forget() { s.folder, s.tmp, s.taskSeen = unknown, unknown, unknown }

// changesFolder reports whether a step creates or removes something that folderState caches.
func changesFolder(do task.Do) bool {
	switch do {
	case task.MakeFolder, task.Trim, task.RemoveFolder, task.FetchDump, task.Restore:
		return true
	default:
		return false
	}
}

func pathExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// create makes a new folder, with the folders of the harness if the task has one: making a folder
// costs as much as starting a small program. own gives a folder to the tenant. create first removes
// an incomplete folder of an earlier try, which no process of the tenant can be using yet.
func (f folder) create(ctx context.Context, harness bool, setQuota, own func(dir string) error) error {
	err := os.Mkdir(string(f), 0o700)
	if errors.Is(err, fs.ErrExist) {
		if err = tree.RemoveAll(ctx, string(f)); err == nil {
			err = os.Mkdir(string(f), 0o700)
		}
	}
	if err != nil {
		return err
	}
	if err := setQuota(string(f)); err != nil {
		return err
	}
	if err := os.Mkdir(f.logs(), 0o755); err != nil {
		return err
	}
	unfinished := f.join(nameTmp + ".new")
	owned := []string{f.task()}
	if harness {
		owned = append(owned, f.metaPath(""), f.metaPath(nameIn), f.metaPath(nameSpill), f.metaPath(nameOut))
	}
	for _, dir := range append(owned, unfinished) {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if err := own(dir); err != nil {
			return err
		}
	}
	if err := own(string(f)); err != nil {
		return err
	}
	return os.Rename(unfinished, f.join(nameTmp)) // last: it marks the folder as complete, also if the daemon is killed here
}

// chown gives a new file or folder to the tenant; it does nothing if the daemon
// is not root, since everything then runs as the daemon's user.
func chown(path string, uid uint32) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return os.Lchown(path, int(uid), int(uid))
}

// trim removes everything that a successful task does not need: all but its
// outputs and logs. tmp goes last.
func (f folder) trim(ctx context.Context) error {
	err := tree.RemoveBelow(ctx, f.task(), nameMeta)
	if err == nil {
		err = tree.RemoveBelow(ctx, f.join(nameTask, nameMeta), nameOut)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return tree.RemoveAll(ctx, f.join(nameTmp))
}

// trimToLogs removes everything except the logs.
func (f folder) trimToLogs(ctx context.Context) error {
	return errors.Join(tree.RemoveAll(ctx, f.task()), tree.RemoveAll(ctx, f.join(nameTmp)))
}

// openTaskFile opens a regular file below task/. The tenant controls its
// content: links cannot lead outside the folder, and a pipe cannot block.
func (f folder) openTaskFile(name string) (*os.File, error) {
	root, err := os.OpenRoot(f.task())
	if err != nil {
		return nil, err
	}
	defer root.Close()
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := file.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fault.New(fault.Invalid, "%s is not a regular file", name)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// readTaskFile reads a file like openTaskFile, at most limit bytes.
func (f folder) readTaskFile(name string, limit int64) ([]byte, error) {
	file, err := f.openTaskFile(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fault.New(fault.Invalid, "%s is longer than %d bytes", name, limit)
	}
	return b, err
}

// tail returns the last n bytes of a log stream as text, across one rotation.
func (f folder) tail(stream string, n int64) string {
	text := ""
	for _, suffix := range []string{"", ".1"} {
		part := readTail(f.join(nameLogs, stream+".log"+suffix), n-int64(len(text)))
		text = part + text
		if int64(len(text)) >= n {
			break
		}
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

func readTail(path string, n int64) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return ""
	}
	from := max(0, st.Size()-n)
	b := make([]byte, st.Size()-from)
	k, _ := file.ReadAt(b, from)
	return string(b[:k])
}

// putFile writes one file of the job into the working folder. It must be called
// before any process of the tenant runs.
func (f folder) putFile(name string, mode uint32, uid uint32, fill func(*os.File) error) error {
	root, err := os.OpenRoot(f.task())
	if err != nil {
		return err
	}
	defer root.Close()
	clean := filepath.Clean(name)
	if !filepath.IsLocal(clean) || clean == nameMeta || strings.HasPrefix(clean, nameMeta+"/") {
		return fault.New(fault.Invalid, "file name %q: want a path below /task, outside %s", name, nameMeta)
	}
	if dir := filepath.Dir(clean); dir != "." {
		if err := f.makeParents(root, dir, uid); err != nil {
			return err
		}
	}
	perm := os.FileMode(orDefault(mode, 0o644)) & 0o777
	file, err := root.OpenFile(clean, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, perm)
	if err != nil {
		return err
	}
	err = fill(file)
	if e := file.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("file %s: %w", name, err)
	}
	return errors.Join(root.Chmod(clean, perm), chownIn(root, clean, uid))
}

func (f folder) makeParents(root *os.Root, dir string, uid uint32) error {
	part := ""
	for p := range strings.SplitSeq(dir, "/") {
		part = filepath.Join(part, p)
		if err := root.Mkdir(part, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := chownIn(root, part, uid); err != nil {
			return err
		}
	}
	return nil
}

func chownIn(root *os.Root, name string, uid uint32) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return root.Lchown(name, int(uid), int(uid))
}
