package order

import (
	"context"
	"errors"
	"path"

	"golang.org/x/sync/errgroup"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/fault"
)

// successName is the file that says that a result is complete.
const successName = "_SUCCESS"

// renamesAtOnce bounds the renames of one commit.
const renamesAtOnce = 8

// checkOutput sees that the output path is free. With prepare it makes the
// temporary folder, which also shows that the user may write there. Repeated,
// it takes its own temporary folder for no obstacle.
func (d *Desk) checkOutput(ctx context.Context, o *droverv1.CheckOutputOrder, user string) error {
	fs, uri, err := d.open(o.GetPath(), user)
	if err != nil {
		return err
	}
	tmp := ""
	if o.GetTemporary() != "" {
		t, err := hdfs.ParseURI(o.GetTemporary())
		if err != nil {
			return err
		}
		tmp = t.Path
	}
	if err := free(ctx, fs, uri, tmp); err != nil {
		return err
	}
	if !o.GetPrepare() {
		return ancestor(ctx, fs, uri)
	}
	if tmp == "" {
		return fault.New(fault.Invalid, "output %s: no temporary folder was named", uri)
	}
	if err := fs.Mkdir(ctx, tmp); err != nil {
		if errors.Is(err, hdfs.ErrPermission) {
			return fault.New(fault.Denied, "output %s: user %q may not write there: %w", uri, user, err)
		}
		return err
	}
	return nil
}

// free is nil where nothing has the path but folders on the way to tmp.
func free(ctx context.Context, fs hdfs.FS, uri hdfs.URI, tmp string) error {
	info, err := fs.Stat(ctx, uri.Path)
	if errors.Is(err, hdfs.ErrNotExist) || errors.Is(err, hdfs.ErrNotDirectory) {
		return nil // what is above is looked at next
	}
	if err != nil {
		return err
	}
	taken := fault.New(fault.Exists, "output %s exists already: choose another path, or remove it first", uri)
	if !info.Dir || tmp == "" || !hdfs.Within(tmp, uri.Path) {
		return taken
	}
	inside, err := fs.List(ctx, uri.Path)
	if err != nil {
		return err
	}
	for _, i := range inside {
		if !hdfs.Within(tmp, i.Path) {
			return taken
		}
	}
	if len(inside) == 0 {
		return taken
	}
	return nil
}

// ancestor sees that the nearest thing above the path is a folder.
func ancestor(ctx context.Context, fs hdfs.FS, uri hdfs.URI) error {
	for p := path.Dir(uri.Path); ; p = path.Dir(p) {
		info, err := fs.Stat(ctx, p)
		switch {
		case (errors.Is(err, hdfs.ErrNotExist) || errors.Is(err, hdfs.ErrNotDirectory)) && p != "/":
			continue
		case err != nil:
			return err
		case !info.Dir:
			return fault.New(fault.Invalid, "output %s: %s is a file, so nothing can be below it: choose another path", uri, p)
		}
		return nil
	}
}

// commitOutput publishes a result:
//
//  1. the folder is made;
//  2. every file is renamed to its name, never over another one;
//  3. _SUCCESS is written;
//  4. the temporary folder goes.
//
// Each step finds out whether it was done before, so a repetition after a crash
// anywhere ends the same, and so does one on another node at the same time.
func (d *Desk) commitOutput(ctx context.Context, o *droverv1.CommitOutputOrder, user string) error {
	fs, uri, err := d.open(o.GetPath(), user)
	if err != nil {
		return err
	}
	tmp, err := hdfs.ParseURI(o.GetTemporary())
	if err != nil {
		return err
	}
	if err := fs.Mkdir(ctx, uri.Path); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(renamesAtOnce)
	for _, f := range o.GetFiles() {
		g.Go(func() error { return publish(gctx, fs, uri, tmp, f) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := writeSuccess(ctx, fs, path.Join(uri.Path, successName)); err != nil {
		return err
	}
	return fs.Delete(ctx, tmp.Path)
}

// publish renames one file and verifies its length. A target that is there is
// ours only when the source is not.
func publish(ctx context.Context, fs hdfs.FS, dir, tmp hdfs.URI, f *droverv1.CommitFile) error {
	source, err := hdfs.ParseURI(f.GetSource())
	if err != nil {
		return err
	}
	target := path.Join(dir.Path, f.GetName())
	if path.Dir(target) != dir.Path || f.GetName() == successName || !hdfs.Within(source.Path, tmp.Path) {
		return fault.New(fault.Invalid, "commit of %s as %q: the source must lie below %s and the name in %s", f.GetSource(), f.GetName(), tmp, dir)
	}
	for range 2 { // a rename that finds a target, or no source, is looked at once more
		done, err := published(ctx, fs, source, target, f.GetLength())
		if done || err != nil {
			return err
		}
		err = fs.Rename(ctx, source.Path, target)
		if err == nil {
			return nil
		}
		if !errors.Is(err, hdfs.ErrExist) && !errors.Is(err, hdfs.ErrNotExist) {
			return err
		}
	}
	return fault.New(fault.Unavailable, "%s could not be renamed to %s: something else moves files there", source, target)
}

// published tells whether the rename has happened, and errs where it may not.
func published(ctx context.Context, fs hdfs.FS, source hdfs.URI, target string, length int64) (bool, error) {
	from, fromErr := fs.Stat(ctx, source.Path)
	if fromErr != nil && !errors.Is(fromErr, hdfs.ErrNotExist) {
		return false, fromErr
	}
	to, toErr := fs.Stat(ctx, target)
	if toErr != nil && !errors.Is(toErr, hdfs.ErrNotExist) {
		return false, toErr
	}
	switch {
	case fromErr != nil && toErr != nil:
		return false, fault.New(fault.NotFound, "the result %s is not there, nor is %s: it was removed before the job could publish it", source, target)
	case fromErr == nil && toErr == nil:
		return false, fault.New(fault.Exists, "%s exists already: it was made by somebody else after the job was accepted; nothing was overwritten", target)
	case toErr == nil && (to.Dir || to.LengthBytes != length):
		return false, fault.New(fault.Conflict, "%s has %d bytes, the result has %d: somebody else wrote it", target, to.LengthBytes, length)
	case toErr == nil:
		return true, nil
	case from.Dir || from.LengthBytes != length:
		return false, fault.New(fault.Corrupt, "the result %s has %d bytes, the task reported %d", source, from.LengthBytes, length)
	}
	return false, nil
}

func writeSuccess(ctx context.Context, fs hdfs.FS, name string) error {
	_, err := fs.Stat(ctx, name)
	if !errors.Is(err, hdfs.ErrNotExist) {
		return err
	}
	err = hdfs.WriteFile(ctx, fs, name, nil, hdfs.CreateOptions{})
	if errors.Is(err, hdfs.ErrExist) {
		return nil // the same commit on another node was faster
	}
	return err
}
