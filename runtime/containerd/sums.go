package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"
)

// Limits of summing up.
const (
	window      = 4 << 20               // bytes mapped at once; pages are a part of it
	followEvery = 50 * time.Millisecond // how often a follower looks; it waits for a window
	followFiles = "pages-"              // begins the names of what is large; criu writes it from its begin to its end
)

// method is how a file of a dump is summed up. The sum is against damage, not
// against an enemy, for whom the folder is closed; what travels to another node
// has sha256 besides (package node/dump). xxh64 needs no instruction that a
// processor might lack or, in an emulator, do bit by bit: there sha256 took
// longer than criu's dump, and crc32c half as long.
type method int

const (
	byXXH64 method = iota + 1
	byCRC32C
	bySHA256
)

// method of a manifest's file: that of the sum it has, or the present one.
func (f manifestFile) method() method {
	switch {
	case f.SHA256 != "":
		return bySHA256
	case f.CRC32C != "":
		return byCRC32C
	default:
		return byXXH64
	}
}

func (m method) new() hash.Hash {
	switch m {
	case byXXH64:
		return xxhash.New()
	case byCRC32C:
		return crc32.New(crc32.MakeTable(crc32.Castagnoli))
	case bySHA256:
		return sha256.New()
	default:
		panic("containerd: no such sum")
	}
}

// file gives the entry of a file.
func (m method) file(path string, bytes int64, h hash.Hash) manifestFile {
	f, text := manifestFile{Name: filepath.Base(path), Bytes: bytes}, hex.EncodeToString(h.Sum(nil))
	switch m {
	case byXXH64:
		f.XXH64 = text
	case byCRC32C:
		f.CRC32C = text
	case bySHA256:
		f.SHA256 = text
	default:
		panic("containerd: no such sum")
	}
	return f
}

// sumFile sums a file up.
func sumFile(ctx context.Context, path string, m method) (manifestFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return manifestFile{}, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return manifestFile{}, err
	}
	h := m.new()
	n, err := sumPart(ctx, h, f, 0, st.Size())
	return m.file(path, n, h), err
}

// sumPart adds a part of a file to a sum, in windows, from a multiple of a window
// on, until ctx ends. It gives how far it is; the sum is of just that much.
func sumPart(ctx context.Context, h hash.Hash, f *os.File, from, to int64) (int64, error) {
	for from < to {
		if err := ctx.Err(); err != nil {
			return from, err
		}
		n := min(to-from, window)
		if err := sumWindow(h, f, from, n); err != nil {
			return from, fmt.Errorf("%s from byte %d: %w", f.Name(), from, err)
		}
		from += n
	}
	return from, nil
}

// sumWindow reads through a mapping: to copy a dump out of the page cache takes
// longer than to sum it up, on emulated machines twice as long. A page that the
// disk does not give is an error, as it is when reading.
func sumWindow(h hash.Hash, f *os.File, from, n int64) (err error) {
	b, err := unix.Mmap(int(f.Fd()), from, int(n), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	defer func() { err = errors.Join(err, os.NewSyscallError("munmap", unix.Munmap(b))) }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface { // what SetPanicOnFault makes of a page that is not there
			error
			Addr() uintptr
		}:
			err = r
		default:
			panic(r)
		}
	}()
	_, err = h.Write(b)
	return err
}

// follower reads what criu writes right behind it, while it is in memory, and
// has the disk begin with it: when the dump is there, so are most of its sums,
// and little is left to wait for. What it cannot follow is summed up at the end.
type follower struct {
	dir   string // with the image
	heads map[string]head
}

// head is what is summed up of a file that grows.
type head struct {
	bytes int64
	sum   *xxhash.Digest
}

func newFollower(dir string) *follower {
	return &follower{dir: filepath.Join(dir, imageDir), heads: map[string]head{}}
}

// follow starts a goroutine; what it gives ends it and waits for it.
func (f *follower) follow(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for sleep(ctx, followEvery) {
			f.catchUp(ctx)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// catchUp sums up what was written since it last looked, in whole steps.
func (f *follower) catchUp(ctx context.Context) {
	all, err := os.ReadDir(f.dir)
	if err != nil {
		return // finish says so
	}
	for _, e := range all {
		if !strings.HasPrefix(e.Name(), followFiles) || !e.Type().IsRegular() {
			continue
		}
		if err := f.advance(ctx, e.Name()); err != nil && ctx.Err() == nil {
			delete(f.heads, e.Name())
		}
	}
}

func (f *follower) advance(ctx context.Context, name string) error {
	in, err := os.Open(filepath.Join(f.dir, name))
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	h, ok := f.heads[name]
	if !ok {
		h.sum = xxhash.New()
	}
	to := st.Size() / window * window
	if to <= h.bytes {
		return nil
	}
	startWriting(in, h.bytes, to-h.bytes)
	h.bytes, err = sumPart(ctx, h.sum, in, h.bytes, to)
	f.heads[name] = h
	return err
}

// startWriting has the disk begin with a part of a file; n 0 is all from there
// on. Where that is not possible Sync does all of it.
func startWriting(f *os.File, from, n int64) {
	_ = unix.SyncFileRange(int(f.Fd()), from, n, unix.SYNC_FILE_RANGE_WRITE)
}

// finish gives all files of the image with their sums, in order of name, once
// they are durable. The disk is told to begin with all of them before it is
// waited for, so that the file system's journal is written once and not for each
// file; meanwhile what is left is summed up.
func (f *follower) finish(ctx context.Context) ([]manifestFile, error) {
	all, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, err
	}
	var open []*os.File
	defer func() {
		for _, o := range open {
			o.Close() // only read
		}
	}()
	for _, e := range all {
		if !e.Type().IsRegular() { // criu writes no others that a restore reads
			continue
		}
		o, err := os.Open(filepath.Join(f.dir, e.Name()))
		if err != nil {
			return nil, err
		}
		open = append(open, o)
		startWriting(o, 0, 0)
	}
	durable := make(chan error, 1)
	go func() {
		var err error
		for _, o := range open {
			err = errors.Join(err, o.Sync())
		}
		durable <- err
	}()
	files, err := f.sumRest(ctx, open)
	return files, errors.Join(err, <-durable)
}

// sumRest goes on from where the follower is.
func (f *follower) sumRest(ctx context.Context, open []*os.File) ([]manifestFile, error) {
	var files []manifestFile
	for _, o := range open {
		st, err := o.Stat()
		if err != nil {
			return nil, err
		}
		h, ok := f.heads[filepath.Base(o.Name())]
		if !ok || h.bytes > st.Size() {
			h = head{sum: xxhash.New()}
		}
		n, err := sumPart(ctx, h.sum, o, h.bytes, st.Size())
		if err != nil {
			return nil, err
		}
		files = append(files, byXXH64.file(o.Name(), n, h.sum))
	}
	return files, nil
}
