package requests

import (
	"context"
	"errors"
	"fmt"
	"path"
	"syscall"

	"golang.org/x/sync/errgroup"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/fault"
)

// successName is the file that marks a result as complete.
const successName = "_SUCCESS"

// maxRenames bounds the concurrent renames of one commit.
const maxRenames = 8

// checkOutput checks that the output path is free. With prepare it also creates and removes a test
// file, and makes the temporary folder: together they show that the user may write there. A
// repeated request accepts its own temporary folder.
func (d *Server) checkOutput(ctx context.Context, o *droverv1.CheckOutputRequest, user string) error {
	fs, uri, err := d.openFS(o.GetPath(), user)
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
	if err := checkFree(ctx, fs, uri, tmp); err != nil {
		return err
	}
	if !o.GetPrepare() {
		_, err := parentFolder(ctx, fs, uri, uri.Path)
		return err
	}
	if tmp == "" {
		return fault.New(fault.Invalid, "output %s: the request names no temporary folder", uri)
	}
	if _, err := fs.Stat(ctx, tmp); errors.Is(err, hdfs.ErrNotExist) {
		if err := probeFolder(ctx, fs, uri, tmp); err != nil {
			return mkdirError(uri, user, err)
		}
	}
	if err := fs.Mkdir(ctx, tmp); err != nil {
		return mkdirError(uri, user, err)
	}
	return nil
}

// probeFolder creates a hidden file in the nearest folder above tmp, and removes it. Some folders
// accept folders but no files, for example in an encryption zone, which the job would otherwise
// notice only after its maps. The file is not created in tmp, because tmp would remain if the file
// is refused.
func probeFolder(ctx context.Context, fs hdfs.FS, uri hdfs.URI, tmp string) error {
	dir, err := parentFolder(ctx, fs, uri, tmp)
	if err != nil {
		return err
	}
	// Overwrite: an interrupted request may have left the file, or a concurrent one on another node
	// may just have created it.
	w, err := fs.Create(ctx, path.Join(dir, "_drover_"+path.Base(tmp)), hdfs.CreateOptions{Overwrite: true})
	if errors.Is(err, hdfs.ErrPermission) {
		return err
	}
	if err != nil {
		return fmt.Errorf("output %s: no file can be written there: %w", uri, err)
	}
	return w.Abort()
}

// mkdirError explains why the output's folder cannot be made. It does not name the temporary
// folder, which the user does not know.
func mkdirError(uri hdfs.URI, user string, err error) error {
	cause := err
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		cause = errno
	}
	switch {
	case errors.Is(err, hdfs.ErrPermission):
		return fault.New(fault.Denied, "output %s: %s may not write there: %w", uri, actor(uri, user), cause)
	case cause != err:
		return fmt.Errorf("output %s: its folder cannot be made: %w", uri, cause)
	default:
		return err
	}
}

// checkFree returns nil if nothing exists at the path except folders towards tmp.
func checkFree(ctx context.Context, fs hdfs.FS, uri hdfs.URI, tmp string) error {
	info, err := fs.Stat(ctx, uri.Path)
	if errors.Is(err, hdfs.ErrNotExist) || errors.Is(err, hdfs.ErrNotDirectory) {
		return nil // the parents are checked next
	}
	if err != nil {
		return err
	}
	taken := fault.New(fault.Exists, "output %s exists already: choose another path, or remove it first", uri)
	if !info.Dir || tmp == "" || !hdfs.IsWithin(tmp, uri.Path) {
		return taken
	}
	inside, err := fs.List(ctx, uri.Path)
	if err != nil {
		return err
	}
	for _, i := range inside {
		if !hdfs.IsWithin(tmp, i.Path) {
			return taken
		}
	}
	if len(inside) == 0 {
		return taken
	}
	return nil
}

// parentFolder returns the nearest existing ancestor of a path of the output, which must be a folder.
func parentFolder(ctx context.Context, fs hdfs.FS, uri hdfs.URI, name string) (string, error) {
	for p := path.Dir(name); ; p = path.Dir(p) {
		info, err := fs.Stat(ctx, p)
		switch {
		case (errors.Is(err, hdfs.ErrNotExist) || errors.Is(err, hdfs.ErrNotDirectory)) && p != "/":
			continue
		case err != nil:
			return "", err
		case !info.Dir:
			return "", fault.New(fault.Invalid, "output %s: %s is a file, so nothing can be below it: choose another path", uri, p)
		}
		return p, nil
	}
}

// commitOutput publishes a result:
//
//  1. Make the folder, and refuse it if another program's result is there. If the temporary folder
//     is gone, skip this: the job has succeeded, and its user may have moved the result. The next
//     steps then only check that everything is published.
//  2. Rename every file to its name, never over an existing one.
//  3. Write _SUCCESS.
//  4. Remove the temporary folder.
//
// Each step detects whether it was done before, so a repetition after a crash at any point has the
// same result, and so has a concurrent one on another node.
func (d *Server) commitOutput(ctx context.Context, o *droverv1.CommitOutputRequest, user string) error {
	fs, uri, err := d.openFS(o.GetPath(), user)
	if err != nil {
		return err
	}
	tmp, err := hdfs.ParseURI(o.GetTemporary())
	if err != nil {
		return err
	}
	if err := makeOwnFolder(ctx, fs, uri, tmp, o.GetFiles()); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(maxRenames)
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

// makeOwnFolder performs step 1 of commitOutput.
func makeOwnFolder(ctx context.Context, fs hdfs.FS, dir, tmp hdfs.URI, files []*droverv1.CommitFile) error {
	_, err := fs.Stat(ctx, tmp.Path)
	if errors.Is(err, hdfs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = fs.Mkdir(ctx, dir.Path)
	}
	if err != nil {
		return err
	}
	return checkOwnFolder(ctx, fs, dir, files)
}

// checkOwnFolder returns an error if the folder of a result has files of another result, so that
// the two are not mixed. It lists the folder before it looks at the sources: a concurrent commit on
// another node may rename files in between. Those then have no source, and that commit writes
// _SUCCESS after its last rename.
func checkOwnFolder(ctx context.Context, fs hdfs.FS, dir hdfs.URI, files []*droverv1.CommitFile) error {
	list, err := fs.List(ctx, dir.Path)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, i := range list {
		there[path.Base(i.Path)] = true
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxRenames)
	for _, f := range files {
		taken := f.GetName()
		switch {
		case there[taken]:
		case there[successName]:
			taken = successName
		default:
			continue
		}
		g.Go(func() error {
			source, err := hdfs.ParseURI(f.GetSource())
			if err != nil {
				return err
			}
			_, err = fs.Stat(ctx, source.Path)
			switch {
			case err == nil:
				return takenError(path.Join(dir.Path, taken))
			case errors.Is(err, hdfs.ErrNotExist):
				return nil
			default:
				return err
			}
		})
	}
	return g.Wait()
}

// takenError is the error of a job whose result cannot be renamed to target, because a file exists
// there.
func takenError(target string) error {
	return fault.New(fault.Exists, "%s exists already: it was created by another program after the job was accepted; nothing was overwritten", target)
}

// publish renames one file and verifies its length. An existing target belongs to this job only if
// the source is gone, since the source is in a folder of this job alone.
func publish(ctx context.Context, fs hdfs.FS, dir, tmp hdfs.URI, f *droverv1.CommitFile) error {
	source, err := hdfs.ParseURI(f.GetSource())
	if err != nil {
		return err
	}
	target := path.Join(dir.Path, f.GetName())
	if path.Dir(target) != dir.Path || f.GetName() == successName || !hdfs.IsWithin(source.Path, tmp.Path) {
		return fault.New(fault.Invalid, "commit of %s as %q: the source must lie below %s and the name in %s", f.GetSource(), f.GetName(), tmp, dir)
	}
	for range 2 { // after a race on source or target, check once more
		done, err := isPublished(ctx, fs, source, target, f.GetLength())
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
	return fault.New(fault.Unavailable, "%s could not be renamed to %s: another program moves files there", source, target)
}

// isPublished reports whether the rename has happened, and fails if it must not.
func isPublished(ctx context.Context, fs hdfs.FS, source hdfs.URI, target string, length int64) (bool, error) {
	from, fromErr := fs.Stat(ctx, source.Path)
	if fromErr != nil && !errors.Is(fromErr, hdfs.ErrNotExist) {
		return false, fromErr
	}
	to, toErr := fs.Stat(ctx, target)
	if toErr != nil && !errors.Is(toErr, hdfs.ErrNotExist) {
		return false, toErr
	}
	if fromErr == nil && toErr == nil { // unless this commit renamed it on another node in between
		if from, fromErr = fs.Stat(ctx, source.Path); fromErr != nil && !errors.Is(fromErr, hdfs.ErrNotExist) {
			return false, fromErr
		}
	}
	switch {
	case fromErr != nil && toErr != nil:
		return false, fault.New(fault.NotFound, "the result %s is not there, nor is %s: it was removed before the job could publish it", source, target)
	case fromErr == nil && toErr == nil:
		return false, takenError(target)
	case toErr == nil && (to.Dir || to.LengthBytes != length):
		return false, fault.New(fault.Conflict, "%s has %d bytes, the result has %d: another program wrote it", target, to.LengthBytes, length)
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
