package fake

import (
	"context"
	"io"
	"maps"
	"slices"
	"sort"
	"strings"
	"syscall"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
)

// Driver is one connection to an Engine. It implements runtime.Driver and all
// optional abilities except HostPaths.
type Driver struct{ e *Engine }

var (
	_ runtime.Driver       = (*Driver)(nil)
	_ runtime.Images       = (*Driver)(nil)
	_ runtime.Execer       = (*Driver)(nil)
	_ runtime.Freezer      = (*Driver)(nil)
	_ runtime.Checkpointer = (*Driver)(nil)
	_ runtime.Dumper       = (*Driver)(nil)
	_ runtime.Preparer     = (*Driver)(nil)
	_ runtime.Sweeper      = (*Driver)(nil)
)

// Name implements runtime.Driver.
func (d *Driver) Name() string { return "fake" }

// Create implements runtime.Driver. An image given by digest must have been
// imported; a command that names no program fails at Start, as in a real engine.
func (d *Driver) Create(ctx context.Context, s runtime.Spec) error {
	answer, err := d.e.beginCall(ctx, Create)
	if err != nil {
		return err
	}
	return answer(d.create(s))
}

func (d *Driver) create(s runtime.Spec) error {
	if err := s.Validate(); err != nil {
		return err
	}
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	if b, ok := d.e.containers[s.ID]; ok {
		if b.fingerprint == s.Fingerprint() {
			return nil
		}
		return fault.New(fault.Exists, "container %s exists with another spec: delete it first", s.ID)
	}
	if strings.HasPrefix(s.Image, "sha256:") {
		if _, ok := d.e.images[s.Image]; !ok {
			return fault.New(fault.NotFound, "container %s: image %s is not here: import it first", s.ID, s.Image)
		}
	}
	d.e.containers[s.ID] = &container{spec: s, fingerprint: s.Fingerprint(), phase: runtime.PhaseCreated, procs: map[*proc]bool{}, done: make(chan struct{})}
	return nil
}

// Start implements runtime.Driver.
func (d *Driver) Start(ctx context.Context, id string) error {
	answer, err := d.e.beginCallFor(ctx, Start, id)
	if err != nil {
		return err
	}
	return answer(d.start(id))
}

// Prepare implements runtime.Preparer; there is nothing to do.
func (d *Driver) Prepare(ctx context.Context, id string) error {
	answer, err := d.e.beginCallFor(ctx, Prepare, id)
	if err != nil {
		return err
	}
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	_, err = d.e.findLocked(id)
	return answer(err)
}

// Leftovers implements runtime.Sweeper.
func (d *Driver) Leftovers(ctx context.Context) ([]runtime.Leftover, error) {
	answer, err := d.e.beginCall(ctx, Leftovers)
	if err != nil {
		return nil, err
	}
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	var all []runtime.Leftover
	for _, id := range slices.Sorted(maps.Keys(d.e.left)) {
		_, listed := d.e.containers[id]
		all = append(all, runtime.Leftover{ID: id, Listed: listed, Parts: []string{"bundle of " + id}})
	}
	return all, answer(nil)
}

func (d *Driver) start(id string) error {
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	b, err := d.e.findLocked(id)
	if err != nil {
		return err
	}
	if b.phase != runtime.PhaseCreated {
		return nil
	}
	if d.e.closed {
		return errDown(Start)
	}
	prog, ok := d.e.programs[b.spec.Args[0]]
	if !ok {
		return fault.New(fault.Invalid, "container %s: %s: no such program", id, b.spec.Args[0])
	}
	out, errw, err := openLogs(b.spec.Log)
	if err != nil {
		return fault.New(fault.Invalid, "container %s: logs: %w", id, err)
	}
	d.e.startLocked(b, prog, out, errw)
	return nil
}

// Wait implements runtime.Driver.
func (d *Driver) Wait(ctx context.Context, id string) (runtime.Status, error) {
	answer, err := d.e.beginCall(ctx, Wait)
	if err != nil {
		return runtime.Status{}, err
	}
	d.e.mu.Lock()
	b, err := d.e.findLocked(id)
	down := d.e.downCh
	var done chan struct{}
	if err == nil {
		done = b.done
	}
	d.e.mu.Unlock()
	if err != nil {
		return runtime.Status{}, answer(err)
	}
	select {
	case <-done:
	case <-down:
		return runtime.Status{}, errDown(Wait)
	case <-ctx.Done():
		return runtime.Status{}, ctx.Err()
	}
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	if b.phase != runtime.PhaseStopped || d.e.containers[id] != b {
		return runtime.Status{}, answer(fault.New(fault.NotFound, "container %s was deleted", id))
	}
	if err := answer(nil); err != nil {
		return runtime.Status{}, err
	}
	return b.status(), nil
}

// List implements runtime.Driver.
func (d *Driver) List(ctx context.Context) ([]runtime.Status, error) {
	answer, err := d.e.beginCall(ctx, List)
	if err != nil {
		return nil, err
	}
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	var all []runtime.Status
	for _, b := range d.e.containers {
		all = append(all, b.status())
	}
	sort.Slice(all, func(i, j int) bool { return all[i].ID < all[j].ID })
	if err := answer(nil); err != nil {
		return nil, err
	}
	return all, nil
}

// Kill implements runtime.Driver.
func (d *Driver) Kill(ctx context.Context, id string, sig syscall.Signal) error {
	answer, err := d.e.beginCall(ctx, Kill)
	if err != nil {
		return err
	}
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	if b, ok := d.e.containers[id]; ok {
		b.signal(sig)
	}
	return answer(nil)
}

// Delete implements runtime.Driver. It waits for the programs, so they must obey
// their context.
func (d *Driver) Delete(ctx context.Context, id string) error {
	answer, err := d.e.beginCall(ctx, Delete)
	if err != nil {
		return err
	}
	d.e.mu.Lock()
	delete(d.e.left, id)
	b, ok := d.e.containers[id]
	if !ok {
		d.e.mu.Unlock()
		return answer(nil)
	}
	running, done := b.phase == runtime.PhaseRunning, b.done
	b.signal(syscall.SIGKILL)
	d.e.mu.Unlock()
	if running {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	d.e.mu.Lock()
	if d.e.containers[id] == b {
		delete(d.e.containers, id)
		b.closeDone()
	}
	d.e.mu.Unlock()
	return answer(nil)
}

// Has implements runtime.Images.
func (d *Driver) Has(ctx context.Context, digest string) (bool, error) {
	answer, err := d.e.beginCall(ctx, Has)
	if err != nil {
		return false, err
	}
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	_, ok := d.e.images[digest]
	return ok, answer(nil)
}

// Import implements runtime.Images; it stores only the length.
func (d *Driver) Import(ctx context.Context, digest string, archive io.Reader) error {
	answer, err := d.e.beginCall(ctx, Import)
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, archive)
	if err != nil {
		return fault.New(fault.Invalid, "image %s: %w", digest, err)
	}
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	d.e.images[digest] = n
	return answer(nil)
}

// ReleaseImports implements runtime.Images; an interrupted import leaves nothing here.
func (d *Driver) ReleaseImports(ctx context.Context) error {
	answer, err := d.e.beginCall(ctx, ReleaseImports)
	if err != nil {
		return err
	}
	return answer(nil)
}

// Remove implements runtime.Images.
func (d *Driver) Remove(ctx context.Context, digest string) error {
	answer, err := d.e.beginCall(ctx, Remove)
	if err != nil {
		return err
	}
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	delete(d.e.images, digest)
	return answer(nil)
}

// ListImages implements runtime.Images; an image's size is that of its archive.
func (d *Driver) ListImages(ctx context.Context) ([]runtime.Image, error) {
	answer, err := d.e.beginCall(ctx, ListImages)
	if err != nil {
		return nil, err
	}
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	all := make([]runtime.Image, 0, len(d.e.images))
	for digest, n := range d.e.images {
		all = append(all, runtime.Image{Digest: digest, Bytes: n})
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Digest < all[j].Digest })
	if err := answer(nil); err != nil {
		return nil, err
	}
	return all, nil
}

// Exec implements runtime.Execer.
func (d *Driver) Exec(ctx context.Context, id string, x runtime.ExecSpec) (int, error) {
	answer, err := d.e.beginCall(ctx, Exec)
	if err != nil {
		return 0, err
	}
	d.e.mu.Lock()
	b, err := d.e.findLocked(id)
	if err == nil && b.phase != runtime.PhaseRunning {
		err = fault.New(fault.Conflict, "container %s is %s: exec needs a running one", id, b.phase)
	}
	if err == nil && len(x.Args) == 0 {
		err = fault.New(fault.Invalid, "exec in %s: no command", id)
	}
	if err != nil {
		d.e.mu.Unlock()
		return 0, answer(err)
	}
	prog, ok := d.e.programs[x.Args[0]]
	if !ok {
		d.e.mu.Unlock()
		return 0, answer(fault.New(fault.Invalid, "exec in %s: %s: no such program", id, x.Args[0]))
	}
	in := x.Stdin
	if in == nil {
		in = strings.NewReader("")
	}
	p, ps, pctx := d.e.procLocked(b, x.Args, append(append([]string{}, b.spec.Env...), x.Env...), in, x.Stdout, x.Stderr)
	d.e.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		d.e.mu.Lock()
		p.deliver(syscall.SIGKILL)
		d.e.mu.Unlock()
	})
	code := prog(pctx, ps)
	stop()
	d.e.mu.Lock()
	code = d.e.endLocked(b, p, code)
	d.e.mu.Unlock()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	return code, answer(nil)
}

// findLocked returns the container or NotFound.
func (e *Engine) findLocked(id string) (*container, error) {
	b, ok := e.containers[id]
	if !ok {
		return nil, fault.New(fault.NotFound, "container %s: not found", id)
	}
	return b, nil
}
