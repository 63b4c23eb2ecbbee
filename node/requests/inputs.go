package requests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/fault"
)

// Limits of the expansion of input paths.
const (
	maxInputFiles  = hdfs.MaxGlobMatches
	maxFolderDepth = 64 // below the folder that the job names, with recurse
)

// listInputs expands globs and folders into files, in order of the paths and then
// of the names. As in Hadoop, a file named twice is read twice, and a folder
// without files is an empty input; only a path that matches nothing is an error.
func (d *Server) listInputs(ctx context.Context, paths []string, user string, recurse bool) (*listing, error) {
	l := &listing{madeAt: time.Now()}
	for _, raw := range paths {
		fs, uri, err := d.openFS(raw, user)
		if err != nil {
			return nil, err
		}
		x := expansion{fs: fs, uri: uri, recurse: recurse, limit: maxInputFiles - len(l.files)}
		matched, err := x.expand(ctx, uri.Path)
		if errors.Is(err, hdfs.ErrNotExist) || err == nil && matched == 0 {
			return nil, fault.New(fault.NotFound, "input %s: no such file: check the path, and that %s may read it", raw, actor(uri, user))
		}
		if err != nil {
			return nil, readError(uri, err)
		}
		for _, info := range x.files {
			slot := info.BlockSizeBytes
			if slot <= 0 {
				slot = defaultSlot
			}
			l.files = append(l.files, inputFile{fs, x.uriOf(info.Path), info, slot})
			l.bytes += info.LengthBytes
		}
	}
	l.sum = sumOf(l.files)
	return l, nil
}

// actor returns which user reads and writes the files of a URI: the HDFS user, or, for files of
// this machine, the daemon's user.
func actor(uri hdfs.URI, user string) string {
	if uri.Scheme == hdfs.SchemeLocal {
		return fmt.Sprintf("the node daemon (uid %d)", os.Geteuid())
	}
	return fmt.Sprintf("user %q", user)
}

// readError adds to an error about a file of this machine which user could not read it. Errors of a
// NameNode name the user themselves.
func readError(uri hdfs.URI, err error) error {
	if uri.Scheme != hdfs.SchemeLocal || !errors.Is(err, hdfs.ErrPermission) {
		return err
	}
	return fault.New(fault.Denied, "input %s: %s may not read it: change its permissions or those of the folders above it, or name another path", uri, actor(uri, ""))
}

// expansion collects the files of one input path.
type expansion struct {
	fs      hdfs.FS
	uri     hdfs.URI // of the input path; its file system
	recurse bool
	limit   int // files
	files   []hdfs.Info
}

func (x *expansion) uriOf(p string) hdfs.URI {
	return hdfs.URI{Scheme: x.uri.Scheme, Authority: x.uri.Authority, Path: p}
}

// expand adds the files of a path: the matches of a glob, or the files in a
// folder. It returns the number of matches. Names that start with _ or . are
// hidden, as in Hadoop, unless the path contains the name itself.
func (x *expansion) expand(ctx context.Context, pattern string) (matched int, err error) {
	matches, err := hdfs.Glob(ctx, x.fs, pattern)
	if err != nil {
		return 0, err
	}
	for _, m := range matches {
		if hdfs.HasGlob(pattern) && isHidden(m.Path) {
			continue
		}
		matched++
		if m.Dir && m.Unreadable == "" {
			err = x.addFolder(ctx, m.Path)
		} else {
			err = x.addFile(m)
		}
		if err != nil {
			return 0, err
		}
	}
	return matched, nil
}

func (x *expansion) addFile(info hdfs.Info) error {
	if info.Unreadable != "" {
		return fault.New(fault.Invalid, "input %s: %s: remove it, or name the files that are input (…/*.txt)", x.uriOf(info.Path), info.Unreadable)
	}
	if !utf8.ValidString(info.Path) {
		return fault.New(fault.Invalid, "input %s: the name %q is not UTF-8: rename the file, or name the files that are input (…/*.txt)", x.uri, info.Path)
	}
	if len(x.files) >= x.limit {
		return fault.New(fault.Exhausted, "input %s: more than %d files: name fewer, or pack small ones into large ones", x.uri, maxInputFiles)
	}
	x.files = append(x.files, info)
	return nil
}

// addFolder adds the files of a folder and, with recurse, of those below it,
// sorted by path. Without recurse a folder inside it is an error, as in Hadoop:
// reading only a part of the input in silence is worse.
func (x *expansion) addFolder(ctx context.Context, folder string) error {
	type entry struct {
		info  hdfs.Info
		depth int
	}
	todo := []entry{{hdfs.Info{Path: folder, Dir: true}, 0}}
	for len(todo) > 0 {
		e := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		switch {
		case !e.info.Dir || e.info.Unreadable != "":
			if err := x.addFile(e.info); err != nil {
				return err
			}
			continue
		case e.depth > 0 && !x.recurse:
			return fault.New(fault.Invalid, "input %s: not a file but a folder inside an input folder: write recurse = true in the job's input to read subfolders too, or name files (%s/*.txt)", x.uriOf(e.info.Path), x.uriOf(folder))
		case e.depth > maxFolderDepth:
			return fault.New(fault.Invalid, "input %s: more than %d folders deep", x.uriOf(e.info.Path), maxFolderDepth)
		}
		inside, err := x.fs.List(ctx, e.info.Path)
		if err != nil {
			return err
		}
		for i := len(inside) - 1; i >= 0; i-- { // the last is handled first
			if !isHidden(inside[i].Path) {
				todo = append(todo, entry{inside[i], e.depth + 1})
			}
		}
		if len(todo) > 2*hdfs.MaxGlobMatches {
			return fault.New(fault.Exhausted, "input %s: more than %d files", x.uri, maxInputFiles)
		}
	}
	return nil
}

func isHidden(p string) bool {
	base := path.Base(p)
	return strings.HasPrefix(base, "_") || strings.HasPrefix(base, ".")
}
