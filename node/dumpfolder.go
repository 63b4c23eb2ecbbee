package node

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/dump"
	"github.com/drover-run/drover/node/store"
)

// dumpFolder is the path of the folder of an attempt's dumps. It is not below the
// attempt's folder, since dumps are not charged to the tenant's quota and contain
// data that the tenant may not read.
type dumpFolder string

// dumpsOf returns the folder of an attempt's dumps.
func (c *Config) dumpsOf(id store.ID) dumpFolder {
	return dumpFolder(filepath.Join(c.Data, "images", id.String()))
}

// dir returns the folder of the n-th dump. A number is never used again.
func (f dumpFolder) dir(n int32) string { return filepath.Join(string(f), strconv.Itoa(int(n))) }

// exists reports whether the folder exists, whatever is in it.
func (f dumpFolder) exists() bool { return pathExists(string(f)) }

// remove deletes every dump.
func (f dumpFolder) remove() error { return os.RemoveAll(string(f)) }

// sums returns the file with the checksums of the attempt's folder at the time of the n-th dump.
func (f dumpFolder) sums(n int32) string { return f.dir(n) + ".folder" }

// summed are the parts of a suspended attempt's folder that have checksums. Logs have none: they
// are text for people, and old ones may be removed meanwhile.
var summed = []string{nameTask, nameTmp}

// writeSums writes the checksums of the attempt's folder.
func (f dumpFolder) writeSums(ctx context.Context, n int32, of folder) error {
	return dump.WriteSums(ctx, f.sums(n), string(of), summed...)
}

// checkSums returns a fault.Corrupt if the attempt's folder has changed since the attempt was
// suspended.
func (f dumpFolder) checkSums(ctx context.Context, n int32, of folder) error {
	return dump.CheckSums(ctx, f.sums(n), string(of), summed...)
}

// checkSpace checks that the disk of data has space for a dump of that much memory
// plus a margin.
func checkSpace(data string, memory int64) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(data, &st); err != nil {
		return err
	}
	need := memory/10*11 + dumpSpaceMargin
	if free := int64(st.Bavail) * st.Bsize; free < need {
		return fault.New(fault.Exhausted, "a dump takes up to %d bytes, but the disk of %s has %d free", need, data, free)
	}
	return nil
}

// dirSize returns the total size of the regular files below a folder.
func dirSize(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		st, err := e.Info()
		if err == nil {
			n += st.Size()
		}
		return err
	})
	return n, err
}
