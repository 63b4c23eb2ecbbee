package node

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/store"
)

// The names inside an attempt's folder; the drawing is in doc.go.
const (
	nameTask     = "task"
	nameTmp      = "tmp"
	nameLogs     = "logs"
	nameInner    = ".drover" // below task
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
func (f folder) task() string               { return f.join(nameTask) }
func (f folder) logs() string               { return f.join(nameLogs) }
func (f folder) inner(name string) string   { return f.join(nameTask, nameInner, name) }
func (f folder) outName(name string) string { return filepath.Join(nameInner, nameOut, name) }

func (d *daemon) folderOf(id store.ID) folder {
	return folder(filepath.Join(d.cfg.Data, "attempts", id.String()))
}

// exists tells whether anything of the folder is there.
func (f folder) exists() bool { return there(string(f)) }

// whole tells whether make has come to its end, and trim has not begun.
func (f folder) whole() bool { return there(f.join(nameTmp)) }

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// make makes a fresh folder that belongs to uid. What a run before us left
// half made goes first; nobody of the tenant can be in it yet.
func (f folder) make(uid uint32, setQuota func(dir string) error) error {
	if err := os.RemoveAll(string(f)); err != nil {
		return err
	}
	if err := os.Mkdir(string(f), 0o700); err != nil {
		return err
	}
	if err := setQuota(string(f)); err != nil {
		return err
	}
	owned := []string{nameTask, nameTask + "/" + nameInner}
	for _, n := range []string{nameIn, nameSpill, nameOut} {
		owned = append(owned, filepath.Join(nameTask, nameInner, n))
	}
	if err := os.Mkdir(f.logs(), 0o755); err != nil {
		return err
	}
	for _, n := range append(owned, nameTmp) { // tmp last: it says that the folder is whole
		if err := os.Mkdir(f.join(n), 0o700); err != nil {
			return err
		}
		if err := chown(f.join(n), uid); err != nil {
			return err
		}
	}
	return chown(string(f), uid)
}

// chown gives a new file or folder to the tenant; a daemon that is not root
// runs everything as itself.
func chown(path string, uid uint32) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return os.Lchown(path, int(uid), int(uid))
}

// trim removes what a task that succeeded does not need any more: everything
// but its outputs and logs. tmp goes last.
func (f folder) trim() error {
	err := removeBut(f.task(), nameInner)
	if err == nil {
		err = removeBut(f.join(nameTask, nameInner), nameOut)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(f.join(nameTmp))
}

// trimToLogs removes everything but the logs.
func (f folder) trimToLogs() error {
	return errors.Join(os.RemoveAll(f.task()), os.RemoveAll(f.join(nameTmp)))
}

// removeBut empties a folder but for one name. A link in the folder's place is
// left alone: what it points to is not ours.
func removeBut(dir, keep string) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return os.Remove(dir)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	top, err := root.Open(".")
	if err != nil {
		return err
	}
	defer top.Close()
	names, err := top.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, n := range names {
		if n == keep {
			continue
		}
		if err := root.RemoveAll(n); err != nil {
			return err
		}
	}
	return nil
}

// openTask opens a regular file below task/ that the tenant may have put
// there: no link leads out of the folder, no pipe blocks us.
func (f folder) openTask(name string) (*os.File, error) {
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

// readTask reads such a file of at most limit bytes.
func (f folder) readTask(name string, limit int64) ([]byte, error) {
	file, err := f.openTask(name)
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

// tail gives the last n bytes of a log stream as text, across one rotation.
func (f folder) tail(stream string, n int64) string {
	text := ""
	for _, suffix := range []string{"", ".1"} {
		part := tailOf(f.join(nameLogs, stream+".log"+suffix), n-int64(len(text)))
		text = part + text
		if int64(len(text)) >= n {
			break
		}
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

func tailOf(path string, n int64) string {
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

// putFile writes one file of the job into the working folder, before anything
// of the tenant runs there.
func (f folder) putFile(name string, mode uint32, uid uint32, fill func(*os.File) error) error {
	root, err := os.OpenRoot(f.task())
	if err != nil {
		return err
	}
	defer root.Close()
	clean := filepath.Clean(name)
	if !filepath.IsLocal(clean) || clean == nameInner || strings.HasPrefix(clean, nameInner+"/") {
		return fault.New(fault.Invalid, "file name %q: want a path below /task, outside %s", name, nameInner)
	}
	if dir := filepath.Dir(clean); dir != "." {
		if err := f.makeParents(root, dir, uid); err != nil {
			return err
		}
	}
	perm := os.FileMode(or(mode, 0o644)) & 0o777
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
