package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-run/drover/internal/fault"
)

// engineBaseline holds the times of runc and of containerd's ctr with the process of
// `drover bench criu` in a container of its own: what of a suspension's time is theirs, and what the container's.
type engineBaseline struct {
	ContainerDumpUS []int64 `json:"container_dump_us,omitempty"` // by criu, called as runc calls it

	RuncDumpUS    []int64 `json:"runc_dump_us,omitempty"`
	RuncRestoreUS []int64 `json:"runc_restore_us,omitempty"`
	CtrDumpUS     []int64 `json:"ctr_dump_us,omitempty"`
}

const (
	engineBenchID = "drover-bench-criu"
	// ctr's containers are in the cgroup /NAMESPACE/ID: with a namespace named like runc's
	// container, whose cgroup is /ID, neither would start after the other.
	ctrBenchNamespace = "drover-bench-ctr"

	holderInRoot    = "drover" // this binary in the container's root
	holderStartWait = time.Minute
)

// measureEngines measures so many rounds in dir.
func (r *engineBaseline) measureEngines(ctx context.Context, dir, self string, memory int64, rounds int) error {
	root := filepath.Join(dir, "rootfs")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	program, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(filepath.Join(root, holderInRoot), program, 0o755)
	}
	if err != nil {
		return err
	}
	args := []string{"/" + holderInRoot, "bench", "criu", holdMemoryCommand, strconv.FormatInt(memory, 10)}
	for i := range rounds {
		round := filepath.Join(dir, "engines-"+strconv.Itoa(i))
		if err := os.MkdirAll(round, 0o700); err != nil {
			return err
		}
		if err := r.measureRunc(ctx, dir, round, args); err != nil {
			return err
		}
		if err := r.measureCtr(ctx, root, round, args); err != nil {
			return err
		}
		if err := os.RemoveAll(round); err != nil {
			return err
		}
	}
	return nil
}

// measureRunc dumps a container of runc's default spec with criu alone, and another one with runc, which
// also restores it.
func (r *engineBaseline) measureRunc(ctx context.Context, bundle, round string, args []string) (err error) {
	image, work, state := filepath.Join(round, "runc"), filepath.Join(round, "runc-work"), filepath.Join(round, "state")
	if err := writeRuncBundle(ctx, bundle, args); err != nil {
		return err
	}
	log := filepath.Join(round, "runc.log")
	engine := engineProgram{name: "runc", global: []string{"--root", state, "--log", log}, logs: []string{log, filepath.Join(work, "dump.log"), filepath.Join(work, "restore.log")}}
	runc := func(args ...string) (time.Duration, error) { return engine.timed(ctx, args...) }
	start := func() error {
		if _, err := runc("run", "--detach", "--bundle", bundle, "--pid-file", filepath.Join(bundle, "pid"), engineBenchID); err != nil {
			return err
		}
		return awaitHolder(ctx, filepath.Join(bundle, "pid"))
	}
	remove := func() error {
		_, err := runc("delete", "--force", engineBenchID)
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if err := start(); err != nil {
		return err
	}
	alone, err := dumpContainer(ctx, bundle, filepath.Join(round, "container"))
	if err = errors.Join(err, remove()); err != nil {
		return err
	}
	if err := start(); err != nil {
		return err
	}
	dump, err := runc("checkpoint", "--image-path", image, "--work-path", work, engineBenchID)
	if err != nil {
		return err
	}
	restore, err := runc("restore", "--detach", "--bundle", bundle, "--image-path", image, "--work-path", work, engineBenchID)
	if err != nil {
		return err
	}
	r.ContainerDumpUS = append(r.ContainerDumpUS, alone.Microseconds())
	r.RuncDumpUS, r.RuncRestoreUS = append(r.RuncDumpUS, dump.Microseconds()), append(r.RuncRestoreUS, restore.Microseconds())
	return nil
}

// dumpContainer dumps runc's container without runc, with the options that runc passes to criu, but locks no
// network: what criu itself takes for a process because it is in a container.
func dumpContainer(ctx context.Context, bundle, image string) (time.Duration, error) {
	pid, err := os.ReadFile(filepath.Join(bundle, "pid"))
	if err != nil {
		return 0, err
	}
	text, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return 0, err
	}
	var spec struct {
		Linux struct{ MaskedPaths []string }
	}
	if err := json.Unmarshal(text, &spec); err != nil {
		return 0, err
	}
	if err := os.MkdirAll(image, 0o700); err != nil {
		return 0, err
	}
	process := strings.TrimSpace(string(pid))
	args := []string{
		"-t", process, "--root", filepath.Join(bundle, "rootfs"), "--freeze-cgroup", filepath.Join("/sys/fs/cgroup", engineBenchID),
		"--manage-cgroups=soft", "--empty-ns", "net", "--network-lock", "skip",
	}
	for _, masked := range spec.Linux.MaskedPaths {
		if st, err := os.Stat(filepath.Join("/proc", process, "root", masked)); err == nil && !st.IsDir() {
			args = append(args, "--external", "mnt["+masked+"]:/dev/null")
		}
	}
	return runCriu(ctx, image, "dump", args...)
}

// writeRuncBundle writes runc's default spec with a command.
func writeRuncBundle(ctx context.Context, bundle string, args []string) error {
	file := filepath.Join(bundle, "config.json")
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := (engineProgram{name: "runc", heard: true}).timed(ctx, "spec", "--bundle", bundle); err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var spec map[string]any
	if err := json.Unmarshal(text, &spec); err != nil {
		return err
	}
	process, ok := spec["process"].(map[string]any)
	if !ok {
		return fault.New(fault.Corrupt, "runc spec wrote no process")
	}
	process["terminal"], process["args"] = false, args
	if text, err = json.Marshal(spec); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// measureCtr dumps a container of ctr's default spec. ctr restores only from an image
// in containerd's store, which is other work, so that is not measured.
func (r *engineBaseline) measureCtr(ctx context.Context, root, round string, args []string) (err error) {
	work := filepath.Join(round, "ctr-work")
	engine := engineProgram{name: "ctr", global: []string{"--namespace", ctrBenchNamespace}, logs: []string{filepath.Join(work, "dump.log")}, heard: true}
	ctr := func(args ...string) (time.Duration, error) { return engine.timed(ctx, args...) }
	pid := filepath.Join(round, "pid")
	if _, err := ctr(append([]string{"run", "--detach", "--null-io", "--pid-file", pid, "--rootfs", root, engineBenchID}, args...)...); err != nil {
		return err
	}
	defer func() {
		_, _ = ctr("tasks", "delete", "--force", engineBenchID)
		_, derr := ctr("containers", "delete", engineBenchID)
		_, nerr := ctr("namespaces", "remove", ctrBenchNamespace)
		err = errors.Join(err, derr, nerr)
		_ = os.Remove(filepath.Join("/sys/fs/cgroup", ctrBenchNamespace)) // runc left it; it costs nothing
	}()
	if err := awaitHolder(ctx, pid); err != nil {
		return err
	}
	dump, err := ctr("tasks", "checkpoint", "--exit", "--image-path", filepath.Join(round, "ctr"), "--work-path", work, engineBenchID)
	if err != nil {
		return err
	}
	r.CtrDumpUS = append(r.CtrDumpUS, dump.Microseconds())
	return nil
}

// awaitHolder waits until the memory holder of a file with its number has filled its
// memory, which it shows by closing its standard output.
func awaitHolder(ctx context.Context, pidFile string) error {
	ctx, cancel := context.WithTimeout(ctx, holderStartWait)
	defer cancel()
	pid, err := os.ReadFile(pidFile)
	if err != nil {
		return err
	}
	process := filepath.Join("/proc", strings.TrimSpace(string(pid)))
	for {
		if _, err := os.Lstat(process); err != nil {
			return fault.New(fault.Unavailable, "the memory holder in a container has ended: %w", err)
		}
		if _, err := os.Readlink(filepath.Join(process, "fd/1")); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fault.New(fault.Unavailable, "the memory holder in a container does not fill its memory: %w", ctx.Err())
		}
	}
}

// engineProgram is runc or ctr.
type engineProgram struct {
	name   string
	global []string // arguments before the verb
	logs   []string // files in which it and criu say why they failed
	// heard captures what it prints. Never for what starts a container that stays: that
	// would have the pipe open, and criu refuses files of processes that it does not dump.
	heard bool
}

// timed runs a command and returns how long it took. Its error has what the command
// printed and the ends of its logs.
func (e engineProgram) timed(ctx context.Context, args ...string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, criuLimit)
	defer cancel()
	args = slices.Concat(e.global, args)
	cmd := exec.CommandContext(ctx, e.name, args...)
	var printed bytes.Buffer
	if e.heard {
		cmd.Stdout, cmd.Stderr = &printed, &printed
	}
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return 0, fault.New(fault.Unavailable, "%s %s: %w%s", e.name, strings.Join(args, " "), err, e.said(printed.String()))
	}
	return time.Since(began), nil
}

// saidLines is how many of the last lines of each log an error quotes.
const saidLines = 5

func (e engineProgram) said(printed string) string {
	var b strings.Builder
	quote := func(who, text string) {
		if text = strings.TrimSpace(text); text == "" {
			return
		}
		lines := strings.Split(text, "\n")
		fmt.Fprintf(&b, "\n%s:\n  %s", who, strings.Join(lines[max(0, len(lines)-saidLines):], "\n  "))
	}
	quote("it printed", printed)
	for _, file := range e.logs {
		text, err := os.ReadFile(file)
		if err == nil {
			quote(filepath.Base(file), string(text))
		} else if !errors.Is(err, fs.ErrNotExist) {
			quote(file, err.Error())
		}
	}
	return b.String()
}

// text describes the baseline in one line, as multiples of criu alone.
func (r *engineBaseline) text(criu *criuBaseline) string {
	if len(r.RuncDumpUS) == 0 || len(r.CtrDumpUS) == 0 || medianOf(criu.DumpUS) == 0 || medianOf(criu.RestoreUS) == 0 {
		return ""
	}
	times := func(us, base []int64) string {
		return fmt.Sprintf("%s, %.2f times", medianText(us), float64(medianOf(us))/float64(medianOf(base)))
	}
	alone := ""
	if len(r.ContainerDumpUS) > 0 { // not in the output of an earlier version
		alone = "criu dump " + times(r.ContainerDumpUS, criu.DumpUS) + "; "
	}
	return fmt.Sprintf("the same process in a container, and how many times as long as criu alone: %srunc checkpoint %s; ctr task checkpoint %s; runc restore %s",
		alone, times(r.RuncDumpUS, criu.DumpUS), times(r.CtrDumpUS, criu.DumpUS), times(r.RuncRestoreUS, criu.RestoreUS))
}
