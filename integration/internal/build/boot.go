package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/drover-run/drover/integration/internal/cache"
	"github.com/drover-run/drover/integration/internal/guest"
	"github.com/drover-run/drover/integration/internal/qemu"
)

// agentFolders hold the sources of the machines' agent, relative to the repository.
var agentFolders = []string{"integration/cmd/agent", "integration/internal/agent"}

// Files of the boot entry.
const (
	BootInitrd = "initrd"
)

// Boot returns the entry with the initial RAM disk, which has the test bed's own files: agent,
// init, settings, and the image with which a machine is warmed up. root is the repository's root.
func Boot(ctx context.Context, c cache.Dir, p *Progress, root string, debian, images *cache.Entry) (*cache.Entry, error) {
	key, err := bootKey(root, debian, images)
	if err != nil {
		return nil, err
	}
	return c.Get("boot", key, func(dir string) error {
		return p.step("agent and initial RAM disk", func() error { return makeBoot(ctx, dir, root, debian, images) })
	})
}

func bootKey(root string, debian, images *cache.Entry) (cache.Key, error) {
	parts, err := cache.SourcesOf(guest.Files, nil)
	if err != nil {
		return "", err
	}
	for _, folder := range agentFolders {
		source, err := cache.SourcesOf(os.DirFS(filepath.Join(root, folder)), func(p string) bool {
			return strings.HasSuffix(p, ".go") && !strings.HasSuffix(p, "_test.go")
		})
		if err != nil {
			return "", fmt.Errorf("sources of the agent: %w", err)
		}
		parts = append(parts, source...)
	}
	return cache.KeyOf(append(parts, "1", filepath.Base(debian.Path), filepath.Base(images.Path))...), nil
}

func makeBoot(ctx context.Context, dir, root string, debian, images *cache.Entry) error {
	tree := filepath.Join(dir, "tree")
	own := filepath.Join(tree, "testbed")
	if err := os.CopyFS(own, guest.Files); err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w",
		"-o", filepath.Join(own, "agent"), "./"+agentFolders[0])
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if _, err := runCommand(build); err != nil {
		return err
	}
	script := strings.Join([]string{
		`set -e`,
		`cd "$T" && mkdir bin proc sys dev root`,
		`mv testbed/initrd-init.sh init && chmod 755 init testbed/init.sh`,
		`cp -r "$M" modules`,
		`cp "$(readlink -f /bin/busybox)" bin/busybox`,
		`for a in sh mount insmod switch_root mkdir sleep cp; do ln -s busybox bin/$a; done`,
		`cp "$W" testbed/warm.tar`,
		`find . | cpio -o -H newc --quiet >"../` + BootInitrd + `"`,
		`cd .. && rm -rf "$T"`,
	}, "\n")
	c := exec.CommandContext(ctx, "sh", "-c", script)
	c.Env = append(os.Environ(), "T="+tree, "M="+debian.File(debianMods), "W="+images.File(BusyboxImage))
	_, err := runCommand(c)
	return err
}

// Files of the saved entry: the RAM of a machine that waits for its identity, and its disks at that
// time.
const (
	SavedRAM  = "ram"
	SavedRoot = "root.img"
	SavedData = "data.img"
	SavedSwap = "swap.img"
)

// WarmOption tells the machine's init to do each slow operation once before it waits for its
// identity.
const WarmOption = "testbed.warm=1"

// savedMachine describes the machine whose RAM is saved; a resumed machine differs only in Tap and
// Incoming.
func savedMachine(dir string, debian, boot *cache.Entry, size Size) *qemu.Machine {
	return &qemu.Machine{Name: "saved", Dir: dir, Kernel: debian.File(DebianKernel), Initrd: boot.File(BootInitrd),
		Options: WarmOption, MemoryMB: size.MemoryMB, CPUs: size.CPUs}
}

const (
	bootLimit = 5 * time.Minute // until a machine's agent waits; 20 s on an idle host
	saveLimit = 2 * time.Minute
)

// Size is the size of a machine.
type Size struct {
	MemoryMB, CPUs int
}

// String returns the memory of a machine, and its processors if it has several, as part of an
// entry's name.
func (s Size) String() string {
	if s.CPUs == 1 {
		return strconv.Itoa(s.MemoryMB)
	}
	return fmt.Sprintf("%dx%d", s.MemoryMB, s.CPUs)
}

// Saved returns the entry with the saved RAM of a machine of this size. Making the entry takes
// about 25 s, resuming the machine one to three seconds.
func Saved(ctx context.Context, c cache.Dir, p *Progress, debian, boot *cache.Entry, size Size) (*cache.Entry, error) {
	version, err := qemu.Version(ctx)
	if err != nil {
		return nil, err
	}
	options, err := qemu.KernelOptions()
	if err != nil {
		return nil, err
	}
	key := cache.KeyOf("1", filepath.Base(boot.Path), version, options)
	return c.Get("saved"+size.String(), key, func(dir string) error {
		what := fmt.Sprintf("saved RAM of a booted machine with %d MB and %d CPUs", size.MemoryMB, size.CPUs)
		return p.step(what, func() error { return saveMachine(ctx, dir, debian, boot, size) })
	})
}

func saveMachine(ctx context.Context, dir string, debian, boot *cache.Entry, size Size) error {
	m := savedMachine(dir, debian, boot, size)
	copyRoot := exec.CommandContext(ctx, "cp", "--sparse=always", "--reflink=auto", debian.File(DebianDisk), filepath.Join(dir, SavedRoot))
	if _, err := runCommand(copyRoot); err != nil {
		return err
	}
	if err := MakeDisks(ctx, dir, ""); err != nil {
		return err
	}
	for _, d := range []string{SavedRoot, SavedData, SavedSwap} {
		m.Disks = append(m.Disks, qemu.Disk{Path: filepath.Join(dir, d)})
	}
	vm, err := m.Start()
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		vm.Wait()
		close(ended)
	}()
	defer func() {
		vm.Process.Kill()
		<-ended
	}()
	if err := AwaitConsole(ctx, filepath.Join(dir, m.Console()), "READY", bootLimit, ended); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, saveLimit)
	defer cancel()
	monitor, err := qemu.OpenMonitor(ctx, filepath.Join(dir, m.Monitor()))
	if err != nil {
		return err
	}
	defer monitor.Close()
	return monitor.Save(ctx, filepath.Join(dir, SavedRAM))
}

// Sizes of a machine's own disks.
const (
	dataDiskMB = 4096
	swapDiskMB = 1024
)

// MakeDisks makes an empty data disk (ext4 with project quotas) and a swap disk in dir, both
// sparse. Their names begin with prefix.
func MakeDisks(ctx context.Context, dir, prefix string) error {
	data, swap := filepath.Join(dir, prefix+SavedData), filepath.Join(dir, prefix+SavedSwap)
	for path, mb := range map[string]int64{data: dataDiskMB, swap: swapDiskMB} {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Truncate(mb<<20), f.Close()); err != nil {
			return err
		}
	}
	_, err := runCommand(exec.CommandContext(ctx, "/sbin/mke2fs", "-q", "-F", "-t", "ext4", "-m0", "-O", "quota,project",
		"-E", "quotatype=prjquota,lazy_itable_init=1,lazy_journal_init=1,discard", data))
	if err == nil {
		_, err = runCommand(exec.CommandContext(ctx, "/sbin/mkswap", swap))
	}
	return err
}

// AwaitConsole waits until a machine has printed TESTBED-word on its console. It fails early if the
// machine prints TESTBED-FAIL or ends.
func AwaitConsole(ctx context.Context, console, word string, limit time.Duration, ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		b, err := os.ReadFile(console)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		seen, why := scanConsole(string(b), word)
		if seen {
			return nil
		}
		if why != "" {
			return fmt.Errorf("a machine failed: %s", why)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("a machine did not report %s in %v; its console ends with:\n%s", word, limit, lastLines(string(b), 12))
		case <-ended:
			return fmt.Errorf("a machine ended; its console ends with:\n%s", lastLines(string(b), 12))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// scanConsole looks for TESTBED-word and for TESTBED-FAIL with its reason.
func scanConsole(console, word string) (seen bool, why string) {
	for _, line := range strings.Split(console, "\n") {
		line = strings.TrimSpace(line)
		if line == "TESTBED-"+word {
			return true, ""
		}
		if _, reason, ok := strings.Cut(line, "TESTBED-FAIL "); ok {
			return false, reason
		}
	}
	return false, ""
}

func lastLines(s string, n int) string {
	t := tailBuffer{b: []byte(s)}
	return t.lines(n)
}
