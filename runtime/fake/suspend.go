package fake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
)

// dumps are the dumped programs, guarded by Engine.mu.
type dumps struct {
	next   int
	parked map[int]*container
}

// ShareDumps lets each engine restore the other's dumps. It must be called before
// anything runs in e.
func (e *Engine) ShareDumps(with *Engine) {
	e.mu, e.dumps = with.mu, with.dumps
}

// dumpFile is the file in a dump's folder.
const dumpFile = "dump.json"

type dumpRecord struct {
	ID    string `json:"id"`
	Dump  int    `json:"dump"`
	Proof string `json:"proof"`
}

func (r dumpRecord) proof() string { return fmt.Sprintf("whole dump %d of %s", r.Dump, r.ID) }

// Freeze implements runtime.Freezer.
func (d *Driver) Freeze(ctx context.Context, id string) error {
	return d.changeRunning(ctx, Freeze, id, func(b *container) { b.closeGate() })
}

// Thaw implements runtime.Freezer.
func (d *Driver) Thaw(ctx context.Context, id string) error {
	return d.changeRunning(ctx, Thaw, id, func(b *container) { b.openGate() })
}

func (d *Driver) changeRunning(ctx context.Context, v Verb, id string, do func(*container)) error {
	answer, err := d.e.beginCall(ctx, v)
	if err != nil {
		return err
	}
	d.e.mu.Lock()
	b, err := d.runningLocked(id, v)
	if err == nil {
		do(b)
	}
	d.e.mu.Unlock()
	return answer(err)
}

// Frozen implements runtime.Freezer.
func (d *Driver) Frozen(ctx context.Context, id string) (bool, error) {
	answer, err := d.e.beginCall(ctx, Frozen)
	if err != nil {
		return false, err
	}
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	b, err := d.runningLocked(id, Frozen)
	if err = answer(err); err != nil {
		return false, err
	}
	return b.frozen, nil
}

func (d *Driver) runningLocked(id string, v Verb) (*container, error) {
	b, err := d.e.findLocked(id)
	if err == nil && b.phase != runtime.PhaseRunning {
		err = fault.New(fault.Conflict, "container %s is %s: %s needs a running one", id, b.phase, v)
	}
	return b, err
}

// closeGate blocks the program at its gate and openGate releases it; the caller
// holds Engine.mu.
func (b *container) closeGate() {
	if !b.frozen {
		b.frozen, b.thawed = true, make(chan struct{})
	}
}

func (b *container) openGate() {
	if b.frozen {
		b.frozen = false
		close(b.thawed)
	}
}

// Checkpoint implements runtime.Checkpointer; see Dump.
func (d *Driver) Checkpoint(ctx context.Context, id, dir string) error {
	if err := d.Dump(ctx, id, dir); err != nil {
		return err
	}
	return d.Delete(ctx, id)
}

// Dump implements runtime.Dumper: it parks the program and writes its number into
// dir. In its place there is a container that was killed. Its verb is Checkpoint.
func (d *Driver) Dump(ctx context.Context, id, dir string) error {
	answer, err := d.e.beginCall(ctx, Checkpoint)
	if err != nil {
		return err
	}
	return answer(d.dump(id, dir))
}

func (d *Driver) dump(id, dir string) error {
	if r, err := readDump(dir); err == nil && r.ID == id {
		return nil // the last answer was lost
	}
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	b, err := d.runningLocked(id, Checkpoint)
	if err != nil {
		return err
	}
	if b.shared != nil {
		return fault.New(fault.Unsupported, "container %s is used again: it can be frozen and swapped, not dumped", id)
	}
	r := dumpRecord{ID: id, Dump: d.e.dumps.next + 1}
	r.Proof = r.proof()
	text, err := json.Marshal(r)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, dumpFile), text, 0o600)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	d.e.dumps.next = r.Dump
	d.e.dumps.parked[r.Dump] = b
	ended := &container{engine: d.e, spec: b.spec, fingerprint: b.fingerprint, phase: runtime.PhaseStopped, exitCode: 128 + int(syscall.SIGKILL), started: b.started, exited: time.Now(), done: make(chan struct{})}
	ended.closeDone()
	d.e.containers[id] = ended
	b.closeGate()
	b.closeDone()
	return nil
}

func readDump(dir string) (dumpRecord, error) {
	var r dumpRecord
	b, err := os.ReadFile(filepath.Join(dir, dumpFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, fault.New(fault.Corrupt, "%s is not a dump: %w", dir, err)
	}
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil || r.Proof != r.proof() {
		return r, fault.New(fault.Corrupt, "dump %s is damaged: %q %v", dir, r.Proof, err)
	}
	return r, nil
}

// DumpFormat implements runtime.Checkpointer.
func (d *Driver) DumpFormat() int { return 1 }

// Restore implements runtime.Checkpointer. A dump can be restored once, since there
// is only one program behind it.
func (d *Driver) Restore(ctx context.Context, s runtime.Spec, dir string) error {
	answer, err := d.e.beginCall(ctx, Restore)
	if err != nil {
		return err
	}
	return answer(d.restore(s, dir, false))
}

// RestoreStopped implements runtime.StoppedRestorer.
func (d *Driver) RestoreStopped(ctx context.Context, s runtime.Spec, dir string) error {
	answer, err := d.e.beginCall(ctx, Restore)
	if err != nil {
		return err
	}
	return answer(d.restore(s, dir, true))
}

// Continue implements runtime.StoppedRestorer.
func (d *Driver) Continue(ctx context.Context, id string) error {
	answer, err := d.e.beginCall(ctx, Continue)
	if err != nil {
		return err
	}
	d.e.mu.Lock()
	b, err := d.runningLocked(id, Continue)
	if err == nil {
		b.openGate()
	}
	d.e.mu.Unlock()
	return answer(err)
}

func (d *Driver) restore(s runtime.Spec, dir string, stopped bool) error {
	if err := s.Validate(); err != nil {
		return err
	}
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	if b, ok := d.e.containers[s.ID]; ok && b.phase == runtime.PhaseRunning {
		return nil
	}
	r, err := readDump(dir)
	if err != nil {
		return err
	}
	if strings.HasPrefix(s.Image, "sha256:") {
		if _, ok := d.e.images[s.Image]; !ok {
			return fault.New(fault.NotFound, "container %s: image %s is not here: import it first", s.ID, s.Image)
		}
	}
	b, ok := d.e.dumps.parked[r.Dump]
	if !ok {
		return fault.New(fault.Conflict, "dump %d of %s was restored already: a dump can be restored once", r.Dump, r.ID)
	}
	out, errw, err := openLogs(s.Log)
	if err != nil {
		return fault.New(fault.Invalid, "container %s: logs: %w", s.ID, err)
	}
	delete(d.e.dumps.parked, r.Dump)
	b.redirectLogs(out, errw)
	b.engine, b.spec, b.fingerprint, b.done = d.e, s, s.Fingerprint(), make(chan struct{})
	d.e.containers[s.ID] = b
	if b.phase == runtime.PhaseStopped { // killed while it was a dump: the engine is closing
		b.closeDone()
	}
	if !stopped {
		b.openGate()
	}
	return nil
}
