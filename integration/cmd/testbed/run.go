package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/drover-run/drover/integration/internal/build"
	"github.com/drover-run/drover/integration/internal/cache"
	"github.com/drover-run/drover/integration/internal/run"
)

// testbedFlags are the flags that describe a test bed.
type testbedFlags struct {
	nodes      int
	size       build.Size
	booksMB    int
	hdfs, cold bool
	host       bool
	deadAfter  *time.Duration
}

func addTestbedFlags(f *flag.FlagSet) *testbedFlags {
	b := &testbedFlags{}
	f.IntVar(&b.nodes, "nodes", 3, "number of machines, 1 to 9")
	f.IntVar(&b.size.MemoryMB, "mem", 512, "memory of each machine in MB; 256 suffices for small tests, 1024 for checkpoints of 100 MB")
	f.IntVar(&b.size.CPUs, "cpus", 1, "processors of each machine, 1 to 8; for timing tests no more in total than the host has")
	f.BoolVar(&b.hdfs, "hdfs", false, "also run Apache HDFS with a DataNode for each machine")
	f.BoolVar(&b.cold, "cold", false, "boot the machines instead of resuming a saved one (20 s instead of 3)")
	f.IntVar(&b.booksMB, "books", 0, "also prepare this many MiB of real text for jobs")
	f.BoolVar(&b.host, "host", false, "no virtual machines: this host is the only machine (needs unified cgroup v2, containerd, root)")
	b.deadAfter = deadAfterFlag(f)
	return b
}

func (b *testbedFlags) check() error {
	if b.nodes < 1 || b.nodes > run.MaxMachines {
		return fmt.Errorf("testbed: -nodes %d: must be 1 to %d", b.nodes, run.MaxMachines)
	}
	if mb := b.size.MemoryMB; mb < 192 || mb > 16384 {
		return fmt.Errorf("testbed: -mem %d: must be 192 to 16384 MB", mb)
	}
	if n := b.size.CPUs; n < 1 || n > 8 {
		return fmt.Errorf("testbed: -cpus %d: must be 1 to 8", n)
	}
	return checkDeadAfter(*b.deadAfter)
}

// cacheEntries are cache entries in use.
type cacheEntries []*cache.Entry

func (e *cacheEntries) add(x *cache.Entry, err error) (*cache.Entry, error) {
	if err == nil {
		*e = append(*e, x)
	}
	return x, err
}

// Close releases all entries.
func (e cacheEntries) Close() {
	for _, x := range e {
		x.Close()
	}
}

// prepare makes everything that the test bed needs or finds it in the cache. The caller closes the
// entries after the test bed has ended.
func (b *testbedFlags) prepare(ctx context.Context, c cache.Dir) (*run.Config, cacheEntries, error) {
	var inUse cacheEntries
	config, err := b.makeConfig(ctx, c, &inUse)
	if err != nil {
		inUse.Close()
		return nil, nil, err
	}
	return config, inUse, nil
}

func (b *testbedFlags) makeConfig(ctx context.Context, c cache.Dir, inUse *cacheEntries) (*run.Config, error) {
	if b.host {
		return b.makeHostConfig(ctx, c, inUse)
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("testbed: machines need root (bridge and tap devices); for HDFS alone use: testbed hdfs -- CMD")
	}
	groups := []build.Group{build.ForMachines}
	if b.hdfs {
		groups = append(groups, build.ForHDFS)
	}
	if err := build.Require(groups...); err != nil {
		return nil, fmt.Errorf("%w\nwithout machines (-host): %v", err, run.CheckHost(ctx))
	}
	root := cache.RepoRoot()
	if root == "" {
		return nil, errors.New("testbed: the machines' agent is compiled from this repository: run the command inside it")
	}
	p := newProgress()
	config := &run.Config{DeadAfter: *b.deadAfter, Machines: &run.Machines{Count: b.nodes, Size: b.size}}
	if b.hdfs {
		if err := addHDFS(ctx, c, p, inUse, config); err != nil {
			return nil, err
		}
	}
	if b.booksMB > 0 {
		books, err := build.Books(ctx, c, p, b.booksMB)
		if err != nil {
			return nil, err
		}
		config.Books = books
	}
	debian, err := inUse.add(build.Debian(ctx, c, p))
	if err != nil {
		return nil, err
	}
	images, err := inUse.add(build.Images(ctx, c, p, debian))
	if err != nil {
		return nil, err
	}
	boot, err := inUse.add(build.Boot(ctx, c, p, root, debian, images))
	if err != nil {
		return nil, err
	}
	config.Machines.Debian, config.Machines.Boot = debian.Path, boot.Path
	config.Images = map[string]string{"busybox": images.File(build.BusyboxImage), "python": images.File(build.PythonImage)}
	if !b.cold {
		saved, err := inUse.add(build.Saved(ctx, c, p, debian, boot, b.size))
		if err != nil {
			return nil, err
		}
		config.Machines.Saved = saved.Path
	}
	return config, nil
}

// addHDFS prepares HDFS.
func addHDFS(ctx context.Context, c cache.Dir, p *build.Progress, inUse *cacheEntries, config *run.Config) error {
	h, err := inUse.add(build.HDFS(ctx, c, p))
	if err != nil {
		return err
	}
	a, err := inUse.add(build.ClassArchive(ctx, c, p, h))
	if err != nil {
		return err
	}
	config.HDFSEntry, config.ClassArchive = h.Path, a.File(build.ClassArchiveFile)
	return nil
}

// addNative prepares domain sockets of the DataNodes.
func addNative(ctx context.Context, c cache.Dir, p *build.Progress, inUse *cacheEntries, config *run.Config) error {
	native, err := build.NativeLibrary(ctx, c, p)
	if native == nil || err != nil {
		return err
	}
	*inUse = append(*inUse, native)
	config.Native = native.Path
	return nil
}

// makeHostConfig configures a test bed whose only machine is the host.
func (b *testbedFlags) makeHostConfig(ctx context.Context, c cache.Dir, inUse *cacheEntries) (*run.Config, error) {
	if err := run.CheckHost(ctx); err != nil {
		return nil, err
	}
	p := newProgress()
	config := &run.Config{DeadAfter: *b.deadAfter, Host: true}
	if b.hdfs {
		if err := addHDFS(ctx, c, p, inUse, config); err != nil {
			return nil, err
		}
	}
	if b.booksMB > 0 {
		books, err := build.Books(ctx, c, p, b.booksMB)
		if err != nil {
			return nil, err
		}
		config.Books = books
	}
	return config, nil
}

func runVerb(ctx context.Context, args []string) (int, error) {
	f := newFlagSet("run")
	b := addTestbedFlags(f)
	command, err := parseWithCommand(f, args)
	if err == nil {
		err = b.check()
	}
	if err != nil {
		return 2, err
	}
	c, err := openCache()
	if err != nil {
		return 1, err
	}
	config, inUse, err := b.prepare(ctx, c)
	if err != nil {
		return 1, err
	}
	defer inUse.Close()
	config.Command = command
	return run.Run(config, c)
}

func buildVerb(ctx context.Context, args []string) (int, error) {
	f := newFlagSet("build")
	b := addTestbedFlags(f)
	b.hdfs = true
	if err := f.Parse(args); err != nil {
		return 2, errUsage
	}
	if err := b.check(); err != nil {
		return 2, err
	}
	c, err := openCache()
	if err != nil {
		return 1, err
	}
	_, inUse, err := b.prepare(ctx, c)
	if err != nil {
		return 1, err
	}
	inUse.Close()
	fmt.Fprintf(os.Stderr, "everything is in %s\n", c.Path())
	return 0, nil
}

func depsVerb(ctx context.Context, args []string) (int, error) {
	f := newFlagSet("deps")
	install := f.Bool("install", false, "install missing packages (root, Debian)")
	list := f.Bool("list", false, "list all packages, also the present ones")
	if err := f.Parse(args); err != nil {
		return 2, errUsage
	}
	if *list {
		for _, d := range build.Deps() {
			state := "missing"
			if d.Present() {
				state = "present"
			}
			fmt.Printf("%-8s %-9s %-26s %s\n", state, d.Group, d.Package, d.Why)
		}
	}
	if *install {
		if err := build.Install(ctx, newProgress()); err != nil {
			return 1, err
		}
	}
	if err := build.Require(); err != nil {
		return 1, err
	}
	fmt.Fprintln(os.Stderr, "nothing is missing")
	return 0, nil
}

func booksVerb(ctx context.Context, args []string) (int, error) {
	f := newFlagSet("books")
	mb := f.Int("mb", 32, "MiB of text")
	if err := f.Parse(args); err != nil {
		return 2, errUsage
	}
	c, err := openCache()
	if err != nil {
		return 1, err
	}
	books, err := build.Books(ctx, c, newProgress(), *mb)
	if err != nil {
		return 1, err
	}
	for _, b := range books {
		fmt.Println(b)
	}
	return 0, nil
}
