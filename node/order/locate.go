package order

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/fault"
)

// Limits of locate.
const (
	defaultPage  = 5000 // blocks in one answer
	mostPage     = 20000
	listingsMost = 16
	listingAge   = 2 * time.Minute
	pollMissing  = 500 * time.Millisecond
	defaultSlot  = int64(128) << 20 // bytes, of a file whose block size is not known
)

// file is one input file. Its blocks are counted in slots of its block size: a
// block belongs to the slot in which it begins, so that any node finds the same
// blocks behind the same numbers without asking for those before.
type file struct {
	fs   hdfs.FS
	uri  hdfs.URI
	info hdfs.Info
	slot int64 // bytes
}

func (f file) slots() int {
	return int((f.info.LengthBytes + f.slot - 1) / f.slot)
}

// listing is what globs expanded to, kept from one page to the next.
type listing struct {
	made  time.Time
	files []file
	bytes int64
}

type listings struct {
	mu    sync.Mutex
	byKey map[string]*listing
}

func (l *listings) get(key string) *listing {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x := l.byKey[key]; x != nil && time.Since(x.made) < listingAge {
		return x
	}
	return nil
}

func (l *listings) put(key string, x *listing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.byKey) >= listingsMost {
		oldest := ""
		for k, v := range l.byKey {
			if oldest == "" || v.made.Before(l.byKey[oldest].made) {
				oldest = k
			}
		}
		delete(l.byKey, oldest)
	}
	l.byKey[key] = x
}

// locate expands the paths and gives one page of their blocks.
func (d *Desk) locate(ctx context.Context, o *droverv1.LocateOrder, user string) (*droverv1.LocateAnswer, error) {
	key := user + "\x00" + strings.Join(o.GetPaths(), "\x00")
	l := d.listings.get(key)
	if l == nil || o.GetFirstBlock() == 0 || o.GetRefresh() {
		var err error
		if l, err = d.list(ctx, o.GetPaths(), user); err != nil {
			return nil, err
		}
		d.listings.put(key, l)
	}
	page := int(o.GetMaxBlocks())
	if page <= 0 {
		page = defaultPage
	}
	page = min(page, mostPage)
	answer := &droverv1.LocateAnswer{TotalFiles: int32(len(l.files)), TotalBytes: l.bytes}
	first, last, at := int(o.GetFirstBlock()), int(o.GetFirstBlock())+page, 0
	for _, f := range l.files {
		from, to := max(first, at)-at, min(last, at+f.slots())-at
		at += f.slots()
		if from >= to {
			continue
		}
		blocks, err := f.blocks(ctx, from, to, o.GetRefresh())
		if err != nil {
			return nil, err
		}
		answer.Blocks = append(answer.Blocks, blocks...)
	}
	if last < at {
		answer.NextBlock = int32(last)
	}
	return answer, nil
}

// list expands globs and folders into files, in the order of the paths and then
// of the names; a file that several paths name counts once.
func (d *Desk) list(ctx context.Context, paths []string, user string) (*listing, error) {
	l := &listing{made: time.Now()}
	seen := map[string]bool{}
	for _, raw := range paths {
		fs, uri, err := d.open(raw, user)
		if err != nil {
			return nil, err
		}
		infos, err := expand(ctx, fs, uri.Path)
		if errors.Is(err, hdfs.ErrNotExist) || err == nil && len(infos) == 0 {
			return nil, fault.New(fault.NotFound, "input %s: there is no such file; check the path, and that user %q may read it", raw, user)
		}
		if err != nil {
			return nil, err
		}
		for _, info := range infos {
			u := hdfs.URI{Scheme: uri.Scheme, Authority: uri.Authority, Path: info.Path}
			if seen[u.String()] {
				continue
			}
			seen[u.String()] = true
			slot := info.BlockSizeBytes
			if slot <= 0 {
				slot = defaultSlot
			}
			l.files = append(l.files, file{fs, u, info, slot})
			l.bytes += info.LengthBytes
		}
	}
	return l, nil
}

// expand gives the files behind a path: what a glob matches, and of a folder
// the files in it. Names that start with _ or . are hidden, as Hadoop hides
// them, unless the path says them itself.
func expand(ctx context.Context, fs hdfs.FS, pattern string) ([]hdfs.Info, error) {
	matches, err := hdfs.Glob(ctx, fs, pattern)
	if err != nil {
		return nil, err
	}
	var files []hdfs.Info
	for _, m := range matches {
		if hdfs.HasGlob(pattern) && hidden(m.Path) {
			continue
		}
		if !m.Dir {
			files = append(files, m)
			continue
		}
		inside, err := fs.List(ctx, m.Path)
		if err != nil {
			return nil, err
		}
		for _, i := range inside {
			if !i.Dir && !hidden(i.Path) {
				files = append(files, i)
			}
		}
	}
	return files, nil
}

func hidden(p string) bool {
	base := path.Base(p)
	return strings.HasPrefix(base, "_") || strings.HasPrefix(base, ".")
}

// blocks gives those that begin in the slots [from, to).
func (f file) blocks(ctx context.Context, from, to int, refresh bool) ([]*droverv1.FileBlock, error) {
	layout, err := f.layout(ctx, from, to, refresh)
	if err != nil {
		return nil, err
	}
	if layout.FileLengthBytes != f.info.LengthBytes {
		return nil, fault.New(fault.Conflict, "input %s grew or shrank from %d to %d bytes while it was looked at: wait until it is written", f.uri, f.info.LengthBytes, layout.FileLengthBytes)
	}
	var blocks []*droverv1.FileBlock
	for _, b := range layout.Blocks {
		if s := int(b.OffsetBytes / f.slot); s < from || s >= to {
			continue
		}
		fb := &droverv1.FileBlock{Uri: f.uri.String(), Offset: b.OffsetBytes, Length: b.LengthBytes, FileLength: f.info.LengthBytes}
		for _, r := range b.Replicas {
			if !slices.Contains(fb.Hosts, r.IP) {
				fb.Hosts, fb.Racks = append(fb.Hosts, r.IP), append(fb.Racks, r.Rack)
			}
		}
		blocks = append(blocks, fb)
	}
	return blocks, nil
}

// layout asks where the blocks are. A block that nobody has is asked again for
// a while, since a NameNode that has just started knows not all of them; with
// refresh it is a fact that the coordinator wants to know.
func (f file) layout(ctx context.Context, from, to int, refresh bool) (hdfs.Layout, error) {
	forget, _ := f.fs.(interface{ Forget(name string) })
	end := time.Now().Add(missingWait)
	for again := refresh; ; again = true {
		if again && forget != nil {
			forget.Forget(f.uri.Path)
		}
		layout, err := f.fs.Locations(ctx, f.uri.Path, int64(from)*f.slot, int64(to-from)*f.slot)
		if err != nil || layout.Err() == nil || refresh {
			return layout, err
		}
		if time.Now().After(end) {
			return layout, fault.New(fault.Unavailable, "input %s: %w", f.uri, layout.Err())
		}
		if err := hdfs.Sleep(ctx, pollMissing); err != nil {
			return layout, err
		}
	}
}
