// Package diskbench measures a disk's bandwidth in bytes per second: reading,
// writing, and both at once, with several streams and bypassing the page cache.
// A node registers these figures, so that disk I/O demands refer to measured
// bandwidth.
//
// It writes a few files in a folder on that disk, for a bounded time, and
// removes them. Run it while no task is running; the result is cached in a file.
package diskbench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/cgroups"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/linesum"
)

// Options configure a measurement; zero values mean the defaults.
type Options struct {
	Streams    int           // concurrent streams; default 4, at least 2
	Duration   time.Duration // of each of the three phases; default 1 s, at most 1 min
	FileBytes  int64         // of each stream; default 64 MiB
	BlockBytes int           // size of one read or write; default 1 MiB, a multiple of 4096
}

// Rates are the measured bytes per second over all streams.
type Rates struct {
	Disk     string    `json:"disk"` // major:minor
	ReadBPS  int64     `json:"read_bps"`
	WriteBPS int64     `json:"write_bps"`
	MixedBPS int64     `json:"mixed_bps"` // half of the streams read, half write
	Streams  int       `json:"streams"`
	Direct   bool      `json:"direct"` // page cache bypassed; otherwise the figures are an upper bound
	Measured time.Time `json:"measured"`
}

// Capacity returns the bytes per second that can be allocated to tasks in total.
// A task with a demand of d may read d and write d at once, so it is
// min(read, write, mixed/2).
func (r Rates) Capacity() int64 { return min(r.ReadBPS, r.WriteBPS, r.MixedBPS/2) }

// cacheVersion changes when figures of older versions are not comparable.
const cacheVersion = 1

type cacheFile struct {
	Version int   `json:"version"`
	Rates   Rates `json:"rates"`
}

// Cached returns the result stored in file if it is for the disk that holds dir
// and not older than maxAge; otherwise it measures and writes file. fresh
// reports whether it measured.
func Cached(ctx context.Context, dir, file string, maxAge time.Duration, now time.Time, o Options) (r Rates, fresh bool, err error) {
	disk, err := cgroups.DiskOf(dir)
	if err != nil {
		return Rates{}, false, err
	}
	if r, ok := loadCache(file, disk.String(), maxAge, now); ok {
		return r, false, nil
	}
	if r, err = measure(ctx, dir, o); err != nil {
		return Rates{}, false, err
	}
	r.Disk, r.Measured = disk.String(), now
	return r, true, saveCache(file, r)
}

// loadCache returns the stored result and whether it is usable. A damaged result is not usable, so
// the disk is measured again.
func loadCache(file, disk string, maxAge time.Duration, now time.Time) (Rates, bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return Rates{}, false
	}
	var c cacheFile
	if linesum.Unmarshal(b, &c) != nil || c.Version != cacheVersion || c.Rates.Disk != disk || c.Rates.Capacity() <= 0 {
		return Rates{}, false
	}
	age := now.Sub(c.Rates.Measured)
	return c.Rates, age >= 0 && age <= maxAge
}

func saveCache(file string, r Rates) error {
	b, err := linesum.Marshal(cacheFile{cacheVersion, r})
	if err != nil {
		return err
	}
	tmp := file + ".new"
	if err := os.WriteFile(tmp, b, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, file)
}

// withDefaults fills in defaults and checks the options.
func (o Options) withDefaults() (Options, error) {
	if o.Streams == 0 {
		o.Streams = 4
	}
	if o.Duration == 0 {
		o.Duration = time.Second
	}
	if o.BlockBytes == 0 {
		o.BlockBytes = 1 << 20
	}
	if o.FileBytes == 0 {
		o.FileBytes = 64 << 20
	}
	if o.Streams < 2 || o.Streams > 64 || o.Duration < 0 || o.Duration > time.Minute || o.BlockBytes < 4096 || o.BlockBytes%4096 != 0 || o.FileBytes < int64(o.BlockBytes) {
		return o, fault.New(fault.Invalid, "disk measurement: options %+v out of range", o)
	}
	o.FileBytes -= o.FileBytes % int64(o.BlockBytes)
	return o, nil
}

// measure measures the disk that holds dir. It takes three times o.Duration plus
// the last block of each stream.
func measure(ctx context.Context, dir string, o Options) (Rates, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Rates{}, err
	}
	if o, err = shrinkToFreeSpace(dir, o); err != nil {
		return Rates{}, err
	}
	work, err := os.MkdirTemp(dir, ".diskbench-")
	if err != nil {
		return Rates{}, fmt.Errorf("disk measurement: %w", err)
	}
	defer os.RemoveAll(work)
	r := Rates{Streams: o.Streams, Direct: true}
	streams := make([]*stream, o.Streams)
	for i := range streams {
		s, err := newStream(filepath.Join(work, fmt.Sprint(i)), o, uint64(i))
		if err != nil {
			return Rates{}, fmt.Errorf("disk measurement: %w", err)
		}
		defer s.close()
		streams[i], r.Direct = s, r.Direct && s.direct
	}
	for _, k := range []struct {
		name   string
		writes func(i int) bool
		to     *int64
	}{
		{"write", func(int) bool { return true }, &r.WriteBPS}, // first, because it creates the data that the other phases read
		{"read", func(int) bool { return false }, &r.ReadBPS},
		{"mixed", func(i int) bool { return i%2 == 0 }, &r.MixedBPS},
	} {
		if *k.to, err = runStreams(ctx, streams, o.Duration, k.writes); err != nil {
			return Rates{}, fmt.Errorf("disk measurement: %s in %s: %w", k.name, dir, err)
		}
	}
	return r, nil
}

// shrinkToFreeSpace reduces the file size to fit the free space.
func shrinkToFreeSpace(dir string, o Options) (Options, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return o, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	free := int64(st.Bavail) * st.Bsize / 4 // a quarter: other programs may be writing
	if each := free / int64(o.Streams); each < o.FileBytes {
		o.FileBytes = each - each%int64(o.BlockBytes)
	}
	if o.FileBytes < int64(o.BlockBytes) {
		return o, fault.New(fault.Exhausted, "disk measurement: %s has too little free space", dir)
	}
	return o, nil
}

// runStreams runs all streams for duration and returns their combined rate.
func runStreams(ctx context.Context, streams []*stream, duration time.Duration, writes func(int) bool) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, duration+time.Minute)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	moved := make([]int64, len(streams))
	start := time.Now()
	for i, s := range streams {
		g.Go(func() (err error) {
			moved[i], err = s.run(ctx, start.Add(duration), writes(i))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	var sum int64
	for _, n := range moved {
		sum += n
	}
	return int64(float64(sum) / time.Since(start).Seconds()), nil
}

// stream reads or writes one file from start to end, repeatedly.
type stream struct {
	f       *os.File
	direct  bool
	buf     []byte // one block, aligned for O_DIRECT
	size    int64
	written int64 // bytes from the start that hold data
}

func newStream(path string, o Options, seed uint64) (*stream, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_DIRECT, 0o600)
	direct := err == nil
	if errors.Is(err, unix.EINVAL) {
		f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	}
	if err != nil {
		return nil, err
	}
	buf, err := unix.Mmap(-1, 0, o.BlockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		f.Close()
		return nil, err
	}
	r := rand.New(rand.NewPCG(seed, 0)) // incompressible data
	for i := range buf {
		buf[i] = byte(r.Uint32())
	}
	return &stream{f: f, direct: direct, buf: buf, size: o.FileBytes}, nil
}

func (s *stream) close() {
	s.f.Close()
	_ = unix.Munmap(s.buf)
}

// run moves blocks until end, at least one, and returns the bytes moved.
func (s *stream) run(ctx context.Context, end time.Time, write bool) (int64, error) {
	if !s.direct && !write {
		_ = unix.Fadvise(int(s.f.Fd()), 0, 0, unix.FADV_DONTNEED) // best effort
	}
	var moved int64
	limit := s.size
	if !write {
		limit = s.written
	}
	for moved == 0 || time.Now().Before(end) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		at := moved % limit
		var n int
		var err error
		if write {
			n, err = s.f.WriteAt(s.buf, at)
			s.written = max(s.written, at+int64(n))
		} else {
			n, err = s.f.ReadAt(s.buf, at)
		}
		if err != nil {
			return 0, err
		}
		moved += int64(n)
	}
	if write {
		if err := s.f.Sync(); err != nil {
			return 0, err
		}
	}
	return moved, nil
}
