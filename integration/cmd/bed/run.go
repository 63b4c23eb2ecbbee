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

// bedFlags say what a bed holds.
type bedFlags struct {
	nodes      int
	size       build.Size
	booksMB    int
	hdfs, cold bool
	host       bool
	deadAfter  *time.Duration
}

func addBedFlags(f *flag.FlagSet) *bedFlags {
	b := &bedFlags{}
	f.IntVar(&b.nodes, "nodes", 3, "number of machines, 1 to 9")
	f.IntVar(&b.size.MemoryMB, "mem", 512, "memory of each machine in MB; 256 does for small things, 1024 for checkpoints of 100 MB")
	f.IntVar(&b.size.CPUs, "cpus", 1, "processors of each machine, 1 to 8; no more of all machines together than the host has, where times matter")
	f.BoolVar(&b.hdfs, "hdfs", false, "also run Apache HDFS, with a DataNode for each machine")
	f.BoolVar(&b.cold, "cold", false, "boot the machines instead of resuming a saved one (20 s instead of 3)")
	f.IntVar(&b.booksMB, "books", 0, "also prepare that many MiB of real text for jobs to read")
	f.BoolVar(&b.host, "host", false, "no virtual machines: this host is the only machine (needs unified cgroup v2, containerd, root)")
	b.deadAfter = deadAfterFlag(f)
	return b
}

func (b *bedFlags) check() error {
	if b.nodes < 1 || b.nodes > run.MaxMachines {
		return fmt.Errorf("bed: -nodes %d: 1 to %d machines are possible", b.nodes, run.MaxMachines)
	}
	if mb := b.size.MemoryMB; mb < 192 || mb > 16384 {
		return fmt.Errorf("bed: -mem %d: 192 to 16384 MB are possible", mb)
	}
	if n := b.size.CPUs; n < 1 || n > 8 {
		return fmt.Errorf("bed: -cpus %d: 1 to 8 are possible", n)
	}
	return checkDeadAfter(*b.deadAfter)
}

// entries holds cache entries in use.
type entries []*cache.Entry

func (e *entries) add(x *cache.Entry, err error) (*cache.Entry, error) {
	if err == nil {
		*e = append(*e, x)
	}
	return x, err
}

// Close gives all of them up.
func (e entries) Close() {
	for _, x := range e {
		x.Close()
	}
}

// prepare makes everything that a bed needs, or finds it in the cache. The entries must be closed after the bed.
func (b *bedFlags) prepare(ctx context.Context, c cache.Dir) (*run.Config, entries, error) {
	var held entries
	config, err := b.makeConfig(ctx, c, &held)
	if err != nil {
		held.Close()
		return nil, nil, err
	}
	return config, held, nil
}

func (b *bedFlags) makeConfig(ctx context.Context, c cache.Dir, held *entries) (*run.Config, error) {
	if b.host {
		return b.makeHostConfig(ctx, c, held)
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("bed: machines need root (bridge and tap devices); HDFS alone does not: bed hdfs -- CMD")
	}
	groups := []build.Group{build.ForMachines}
	if b.hdfs {
		groups = append(groups, build.ForHDFS)
	}
	if err := build.Need(groups...); err != nil {
		return nil, fmt.Errorf("%w\nwithout machines (-host): %v", err, run.CheckHost(ctx))
	}
	root := repoRoot()
	if root == "" {
		return nil, errors.New("bed: the machines' agent is compiled from this repository: run inside it")
	}
	p := newProgress()
	config := &run.Config{DeadAfter: *b.deadAfter, Machines: &run.Machines{Count: b.nodes, Size: b.size}}
	if b.hdfs {
		if err := addHDFS(ctx, c, p, held, config); err != nil {
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
	debian, err := held.add(build.Debian(ctx, c, p))
	if err != nil {
		return nil, err
	}
	images, err := held.add(build.Images(ctx, c, p, debian))
	if err != nil {
		return nil, err
	}
	boot, err := held.add(build.Boot(ctx, c, p, root, debian, images))
	if err != nil {
		return nil, err
	}
	config.Machines.Debian, config.Machines.Boot = debian.Path, boot.Path
	config.Images = map[string]string{"busybox": images.File(build.BusyboxImage), "python": images.File(build.PythonImage)}
	if !b.cold {
		saved, err := held.add(build.Saved(ctx, c, p, debian, boot, b.size))
		if err != nil {
			return nil, err
		}
		config.Machines.Saved = saved.Path
	}
	return config, nil
}

// addHDFS makes what HDFS needs.
func addHDFS(ctx context.Context, c cache.Dir, p *build.Progress, held *entries, config *run.Config) error {
	h, err := held.add(build.HDFS(ctx, c, p))
	if err != nil {
		return err
	}
	a, err := held.add(build.ClassArchive(ctx, c, p, h))
	if err != nil {
		return err
	}
	config.HDFSEntry, config.ClassArchive = h.Path, a.File(build.ClassArchiveFile)
	return nil
}

// makeHostConfig describes a bed whose only machine is the host.
func (b *bedFlags) makeHostConfig(ctx context.Context, c cache.Dir, held *entries) (*run.Config, error) {
	if err := run.CheckHost(ctx); err != nil {
		return nil, err
	}
	p := newProgress()
	config := &run.Config{DeadAfter: *b.deadAfter, Host: true}
	if b.hdfs {
		if err := addHDFS(ctx, c, p, held, config); err != nil {
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
	f := flags("run")
	b := addBedFlags(f)
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
	config, held, err := b.prepare(ctx, c)
	if err != nil {
		return 1, err
	}
	defer held.Close()
	config.Command = command
	return run.Run(config, c)
}

func buildVerb(ctx context.Context, args []string) (int, error) {
	f := flags("build")
	b := addBedFlags(f)
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
	_, held, err := b.prepare(ctx, c)
	if err != nil {
		return 1, err
	}
	held.Close()
	fmt.Fprintf(os.Stderr, "everything is in %s\n", c.Path())
	return 0, nil
}

func depsVerb(ctx context.Context, args []string) (int, error) {
	f := flags("deps")
	install := f.Bool("install", false, "install what is missing (root, Debian)")
	list := f.Bool("list", false, "list everything, also what is there")
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
	if err := build.Need(); err != nil {
		return 1, err
	}
	fmt.Fprintln(os.Stderr, "nothing is missing")
	return 0, nil
}

func booksVerb(ctx context.Context, args []string) (int, error) {
	f := flags("books")
	mb := f.Int("mb", 32, "how many MiB of text")
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
