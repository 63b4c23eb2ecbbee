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

	"github.com/drover-run/drover/internal/sleep"
)

// Limits of computing sums.
const (
	windowBytes    = 4 << 20               // bytes mapped at once; a multiple of the page size
	followInterval = 50 * time.Millisecond // how often a follower looks for new windows
	followedPrefix = "pages-"              // prefix of the large files, which criu writes from start to end
)

// sumMethod is the checksum of a dump's files. It detects damage, not attacks:
// the folder is inaccessible to tenants, and a transfer to another node adds
// sha256 (package node/dump). xxh64 needs no special instructions, which a
// processor may lack and an emulator is slow at: there sha256 took longer than
// criu's dump, and crc32c half as long.
type sumMethod int

const (
	sumXXH64 sumMethod = iota + 1
	sumCRC32C
	sumSHA256
)

// method returns the method of a manifest's file; the current one if it has no sum.
func (f manifestFile) method() sumMethod {
	switch {
	case f.SHA256 != "":
		return sumSHA256
	case f.CRC32C != "":
		return sumCRC32C
	default:
		return sumXXH64
	}
}

func (m sumMethod) newHash() hash.Hash {
	switch m {
	case sumXXH64:
		return xxhash.New()
	case sumCRC32C:
		return crc32.New(crc32.MakeTable(crc32.Castagnoli))
	case sumSHA256:
		return sha256.New()
	default:
		panic("containerd: unknown sum method")
	}
}

// manifestEntry returns the manifest's entry of a file.
func (m sumMethod) manifestEntry(path string, bytes int64, h hash.Hash) manifestFile {
	f, text := manifestFile{Name: filepath.Base(path), Bytes: bytes}, hex.EncodeToString(h.Sum(nil))
	switch m {
	case sumXXH64:
		f.XXH64 = text
	case sumCRC32C:
		f.CRC32C = text
	case sumSHA256:
		f.SHA256 = text
	default:
		panic("containerd: unknown sum method")
	}
	return f
}

// sumFile computes the sum of a file.
func sumFile(ctx context.Context, path string, m sumMethod) (manifestFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return manifestFile{}, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return manifestFile{}, err
	}
	h := m.newHash()
	n, err := sumPart(ctx, h, f, 0, st.Size())
	return m.manifestEntry(path, n, h), err
}

// sumPart adds bytes from to to of a file to a sum, window by window, until ctx
// ends; from must be a multiple of a window. It returns how far the sum has come,
// also with an error.
func sumPart(ctx context.Context, h hash.Hash, f *os.File, from, to int64) (int64, error) {
	for from < to {
		if err := ctx.Err(); err != nil {
			return from, err
		}
		n := min(to-from, windowBytes)
		if err := sumWindow(h, f, from, n); err != nil {
			return from, fmt.Errorf("%s from byte %d: %w", f.Name(), from, err)
		}
		from += n
	}
	return from, nil
}

// sumWindow reads through a mapping: copying a dump out of the page cache takes
// longer than summing it, twice as long on emulated machines. MAP_POPULATE waits for
// the disk in a system call. Without it the processor time is a fifth less, but a page
// fault that waits for a failing disk would hold up the next garbage collection, and
// with it the daemon. An unreadable page is an error, as with read(2).
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
		case interface { // the panic of SetPanicOnFault for an unreadable page
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

// follower sums files while criu writes them and they are in memory, and starts
// their writeback. When the dump ends, most sums are known and little writeback
// is left. Files that it cannot follow are summed at the end.
type follower struct {
	dir         string // the image's folder
	partialSums map[string]partialSum
}

// partialSum is the sum of the first bytes of a growing file.
type partialSum struct {
	bytes  int64
	digest *xxhash.Digest
}

func newFollower(dir string) *follower {
	return &follower{dir: filepath.Join(dir, imageDir), partialSums: map[string]partialSum{}}
}

// follow starts a goroutine; the returned function stops it and waits for it.
func (f *follower) follow(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for sleep.For(ctx, followInterval) {
			f.catchUp(ctx)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// catchUp sums complete windows written since the last call.
func (f *follower) catchUp(ctx context.Context) {
	all, err := os.ReadDir(f.dir)
	if err != nil {
		return // finish returns the error
	}
	for _, e := range all {
		if !strings.HasPrefix(e.Name(), followedPrefix) || !e.Type().IsRegular() {
			continue
		}
		if err := f.sumNewWindows(ctx, e.Name()); err != nil && ctx.Err() == nil {
			delete(f.partialSums, e.Name())
		}
	}
}

func (f *follower) sumNewWindows(ctx context.Context, name string) error {
	in, err := os.Open(filepath.Join(f.dir, name))
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	h, ok := f.partialSums[name]
	if !ok {
		h.digest = xxhash.New()
	}
	to := st.Size() / windowBytes * windowBytes
	if to <= h.bytes {
		return nil
	}
	startWriteback(in, h.bytes, to-h.bytes)
	h.bytes, err = sumPart(ctx, h.digest, in, h.bytes, to)
	f.partialSums[name] = h
	return err
}

// startWriteback starts writing a part of a file to disk; n 0 means to its end.
// If that fails, Sync writes it.
func startWriteback(f *os.File, from, n int64) {
	_ = unix.SyncFileRange(int(f.Fd()), from, n, unix.SYNC_FILE_RANGE_WRITE)
}

// finish returns all files of the image with their sums, sorted by name, once they
// are durable. Writeback is started for all files before the first Sync, so that
// the file system's journal is written once and not per file; meanwhile the
// remaining sums are computed.
func (f *follower) finish(ctx context.Context) ([]manifestFile, error) {
	all, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, err
	}
	var open []*os.File
	defer func() {
		for _, o := range open {
			o.Close() // opened for reading only
		}
	}()
	for _, e := range all {
		if !e.Type().IsRegular() { // a restore reads no others
			continue
		}
		o, err := os.Open(filepath.Join(f.dir, e.Name()))
		if err != nil {
			return nil, err
		}
		open = append(open, o)
		startWriteback(o, 0, 0)
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

// sumRest computes the sums from where the follower has stopped.
func (f *follower) sumRest(ctx context.Context, open []*os.File) ([]manifestFile, error) {
	var files []manifestFile
	for _, o := range open {
		st, err := o.Stat()
		if err != nil {
			return nil, err
		}
		h, ok := f.partialSums[filepath.Base(o.Name())]
		if !ok || h.bytes > st.Size() {
			h = partialSum{digest: xxhash.New()}
		}
		n, err := sumPart(ctx, h.digest, o, h.bytes, st.Size())
		if err != nil {
			return nil, err
		}
		files = append(files, sumXXH64.manifestEntry(o.Name(), n, h.digest))
	}
	return files, nil
}
