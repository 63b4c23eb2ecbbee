package containerd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/cgroupkill"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/sleep"
	"github.com/drover-run/drover/runtime"
)

// An interrupted start can leave things that containerd forgets: its Create drops the shim from its
// list when the context ends, and nothing then controls what the shim still does. These functions
// therefore work on the machine, not through the engine:
//
//	<state>/io.containerd.runtime.v2.task/<namespace>/<id>   the bundle, with rootfs mounted in it; link work
//	<state>/runc/<namespace>/<id>                            the state of runc or crun; criu-root may be mounted in it
//	<state>/s/<sha256>                                       the shim's socket
//	processes of the shim, of runc or crun, and of the container in its cgroup

// withPlaces fills in the default locations.
func (c Config) withPlaces() Config {
	if c.engineState == "" {
		c.engineState = "/run/containerd"
	}
	if c.proc == "" {
		c.proc = "/proc"
	}
	if c.cgroupMount == "" {
		c.cgroupMount = "/sys/fs/cgroup"
	}
	return c
}

func (c Config) bundles() string {
	return filepath.Join(c.engineState, "io.containerd.runtime.v2.task", c.Namespace)
}
func (c Config) bundle(id string) string    { return filepath.Join(c.bundles(), id) }
func (c Config) runcStates() string         { return filepath.Join(c.engineState, "runc", c.Namespace) }
func (c Config) runcState(id string) string { return filepath.Join(c.runcStates(), id) }

// socket returns the path of a shim's socket, as containerd's shims compute it.
func (c Config) socket(id string) string {
	sum := sha256.Sum256([]byte(filepath.Join(c.Address, c.Namespace, id)))
	return filepath.Join(c.engineState, "s", fmt.Sprintf("%x", sum))
}

// forceClean removes the task of a container and everything on the machine that its starts have
// left; the container itself stays. It is safe to repeat. It ends when two passes in a row find
// nothing, since containerd may still be working on the interrupted start. The caller holds the
// container's lock.
func (d *Driver) forceClean(ctx context.Context, id string) error {
	if !runtime.ValidID(id) {
		return nil
	}
	had, err := d.removeTask(ctx, id)
	switch {
	case err != nil && !slow(err):
		return err
	case err == nil && had && d.cfg.noFolders(id):
		return nil // the engine removed it regularly; its shim is ending
	}
	left, err := d.cfg.leftOf(id, d.cfg.engineProcesses())
	if err != nil || len(left) == 0 {
		return err
	}
	const looks = 2
	pause := 20 * time.Millisecond
	for clean := 0; ; pause = min(2*pause, 200*time.Millisecond) {
		err := d.cfg.removeLeft(id)
		if err == nil {
			left, err = d.cfg.leftOf(id, d.cfg.engineProcesses())
		}
		if err == nil && len(left) == 0 {
			if clean++; clean == looks {
				break
			}
		} else {
			clean = 0
		}
		if !sleep.For(ctx, pause) {
			return fault.New(fault.Unavailable, "container %s: leftovers of its start cannot be removed: %s: %w", id, strings.Join(left, "; "), errors.Join(err, ctx.Err()))
		}
	}
	_, err = d.removeTask(ctx, id) // containerd may know the task by now
	return err
}

// slow reports whether an error means that a task does not exit or a shim does
// not answer, while the engine does.
func slow(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errdefs.IsDeadlineExceeded(err)
}

// noFolders reports whether the engine has removed its own folders of a
// container.
func (c Config) noFolders(id string) bool {
	for _, p := range []string{c.bundle(id), c.runcState(id)} {
		if _, err := os.Lstat(p); !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

// removeLeft makes one pass, in this order: processes, which make more leftovers
// and keep mounts busy; mounts; files.
func (c Config) removeLeft(id string) error {
	cgroup := c.cgroupOf(id)
	var errs []error
	for pid := range processesOf(id, c.engineProcesses()) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("process %d: %w", pid, err))
		}
	}
	errs = append(errs, c.killCgroup(cgroup))
	sockets := c.socketsOf(id)
	mounts, err := c.mountsOf(id)
	errs = append(errs, err)
	for _, m := range slices.Backward(mounts) { // in reverse order of mounting
		if err := unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", m, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err // never remove files below a remaining mount
	}
	if work, err := os.Readlink(filepath.Join(c.bundle(id), "work")); err == nil && filepath.Base(work) == id {
		errs = append(errs, os.RemoveAll(work))
	}
	for _, s := range sockets {
		if err := os.Remove(s); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, os.RemoveAll(c.runcState(id)), os.RemoveAll(c.bundle(id)))...)
}

// leftOf describes what the machine has of a container besides the engine's own
// records.
func (c Config) leftOf(id string, processes map[int]engineProcess) ([]string, error) {
	var left []string
	for pid, what := range processesOf(id, processes) {
		left = append(left, fmt.Sprintf("process %d (%s)", pid, what))
	}
	mounts, err := c.mountsOf(id)
	for _, m := range mounts {
		left = append(left, "mount "+m)
	}
	for _, p := range append([]string{c.bundle(id), c.runcState(id)}, c.socketsOf(id)...) {
		if _, err := os.Lstat(p); err == nil {
			left = append(left, p)
		}
	}
	slices.Sort(left)
	return left, err
}

// socketsOf returns the sockets of a container's shim: the one named in its
// bundle, and the one computed from its ID.
func (c Config) socketsOf(id string) []string {
	all := []string{c.socket(id)}
	if b, err := os.ReadFile(filepath.Join(c.bundle(id), "address")); err == nil {
		path := strings.TrimPrefix(strings.TrimSpace(string(b)), "unix://")
		if filepath.Dir(path) == filepath.Join(c.engineState, "s") && path != all[0] {
			all = append(all, path)
		}
	}
	return all
}

// mountsOf returns the mounts in a container's bundle and runc state, in order of
// mounting.
func (c Config) mountsOf(id string) ([]string, error) {
	all, err := c.mounts()
	return slices.DeleteFunc(all, func(m string) bool {
		return !strings.HasPrefix(m, c.bundle(id)+"/") && !strings.HasPrefix(m, c.runcState(id)+"/")
	}), err
}

// mounts returns the mount points of this process's namespace.
func (c Config) mounts() ([]string, error) {
	b, err := os.ReadFile(filepath.Join(c.proc, "self/mountinfo"))
	if err != nil {
		return nil, err
	}
	var all []string
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) > 4 {
			all = append(all, unescapeMount.Replace(f[4]))
		}
	}
	return all, nil
}

var unescapeMount = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// processesOf finds a container's processes of the shim, runc and crun by their command lines.
func processesOf(id string, processes map[int]engineProcess) map[int]string {
	found := map[int]string{}
	for pid, p := range processes {
		if p.id == id {
			found[pid] = p.what
		}
	}
	return found
}

// engineProcess is a process that containerd runs for a container.
type engineProcess struct{ id, what string }

// engineProcesses returns those of the driver's namespace. Such a process can exit
// at any time, so unreadable ones are skipped.
func (c Config) engineProcesses() map[int]engineProcess {
	found := map[int]engineProcess{}
	proc, err := os.Open(c.proc)
	if err != nil {
		return found
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1) // those that could be read
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join(c.proc, n, "cmdline"))
		if err != nil || len(b) == 0 { // it has ended, or is a thread of the kernel
			continue
		}
		args := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
		if p := c.engineProcess(args); p.id != "" && c.isOwn(n) {
			found[pid] = p
		}
	}
	return found
}

// isOwn reports whether a process is one of this user: a task may give its processes any command
// line. The owner of the folder does not say that, since a process can make it root's.
func (c Config) isOwn(pid string) bool {
	b, err := os.ReadFile(filepath.Join(c.proc, pid, "status"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if ids, ok := strings.CutPrefix(line, "Uid:"); ok {
			f := strings.Fields(ids)
			return len(f) > 1 && f[1] == strconv.Itoa(os.Geteuid())
		}
	}
	return false
}

// engineProcess parses a command line: a shim's contains its namespace and
// container, that of runc or crun its root, which contains the namespace, and last the container.
func (c Config) engineProcess(args []string) engineProcess {
	after := func(flag string) string {
		if i := slices.Index(args, flag); i >= 0 && i+1 < len(args) {
			return args[i+1]
		}
		return ""
	}
	id := ""
	name := filepath.Base(args[0])
	switch {
	case strings.HasPrefix(name, "containerd-shim") && after("-namespace") == c.Namespace:
		id = after("-id")
	case (name == "runc" || name == "crun") && after("--root") == c.runcStates() && slices.Contains(args, "create"):
		id = args[len(args)-1]
	}
	if !runtime.ValidID(id) {
		return engineProcess{}
	}
	return engineProcess{id, name}
}

// cgroupOf returns the cgroup of the container's processes according to the
// bundle; "" if unknown.
func (c Config) cgroupOf(id string) string { return c.linuxOf(id).CgroupsPath }

// linuxOf returns the part of a container's spec that is about namespaces, cgroup and
// masked paths, according to the bundle; empty if unknown.
func (c Config) linuxOf(id string) specs.Linux {
	b, err := os.ReadFile(filepath.Join(c.bundle(id), "config.json"))
	if err != nil {
		return specs.Linux{}
	}
	var spec specs.Spec
	if err := json.Unmarshal(b, &spec); err != nil || spec.Linux == nil {
		return specs.Linux{}
	}
	return *spec.Linux
}

// leafFolder returns the folder of a container's leaf, or "" if Drover did not make it:
// a leaf that it made has a parent.
func (c Config) leafFolder(leaf string) string {
	if leaf = filepath.Clean("/" + leaf); strings.Count(leaf, "/") < 2 {
		return ""
	}
	return filepath.Join(c.cgroupMount, leaf)
}

// thaw thaws a container's leaf and reports whether it was frozen.
func (c Config) thaw(leaf string) (bool, error) {
	dir := c.leafFolder(leaf)
	if dir == "" {
		return false, nil
	}
	file := filepath.Join(dir, "cgroup.freeze")
	if b, err := os.ReadFile(file); err != nil || string(bytes.TrimSpace(b)) != "1" {
		return false, nil // the leaf does not exist, or is not frozen
	}
	if err := os.WriteFile(file, []byte("0"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return true, nil
}

// killCgroup kills every process of a container's leaf. The kernel kills frozen processes too: if
// they were thawed first, a task that must not run would run for a moment.
func (c Config) killCgroup(leaf string) error {
	dir := c.leafFolder(leaf)
	if dir == "" {
		return nil
	}
	if b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err != nil || len(bytes.TrimSpace(b)) == 0 {
		return nil // the leaf does not exist or is empty
	}
	if err := cgroupkill.Kill(dir); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte("0"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Leftovers implements runtime.Sweeper. It returns the folders, mounts and
// processes of the driver's namespace that belong to no task of the engine.
func (d *Driver) Leftovers(ctx context.Context) ([]runtime.Leftover, error) {
	all, err := d.List(ctx)
	if err != nil {
		return nil, err
	}
	phases := map[string]runtime.Phase{}
	for _, s := range all {
		phases[s.ID] = s.Phase
	}
	return d.cfg.leftovers(phases)
}

// leftovers searches the machine; phases are those of the containers that the
// engine lists.
func (c Config) leftovers(phases map[string]runtime.Phase) ([]runtime.Leftover, error) {
	ids := map[string]bool{}
	for _, dir := range []string{c.bundles(), c.runcStates(), c.stateDir} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			ids[e.Name()] = true
		}
	}
	processes := c.engineProcesses()
	for _, p := range processes {
		ids[p.id] = true
	}
	mounts, err := c.mounts()
	if err != nil {
		return nil, err
	}
	for _, m := range mounts { // a mount can remain after its folder's name is gone
		for _, dir := range []string{c.bundles(), c.runcStates()} {
			if rest, ok := strings.CutPrefix(m, dir+"/"); ok {
				name, _, _ := strings.Cut(rest, "/")
				ids[name] = true
			}
		}
	}
	var found []runtime.Leftover
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		phase, listed := phases[id]
		if phase == runtime.PhaseRunning || phase == runtime.PhaseUnknown || !runtime.ValidID(id) {
			continue
		}
		parts, err := c.leftOf(id, processes)
		if err != nil {
			return nil, err
		}
		if own := filepath.Join(c.stateDir, id); !listed && c.stateDir != "" {
			if _, err := os.Lstat(own); err == nil {
				parts = append(parts, own)
			}
		}
		if len(parts) > 0 {
			found = append(found, runtime.Leftover{ID: id, Listed: listed, Parts: parts})
		}
	}
	return found, nil
}
