package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/quota"
	"github.com/drover-run/drover/node/blob"
	"github.com/drover-run/drover/node/fsys"
	"github.com/drover-run/drover/node/helper"
	"github.com/drover-run/drover/node/leash"
	"github.com/drover-run/drover/node/order"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/task"
)

// daemon is one running node.
type daemon struct {
	cfg        Config
	log        *slog.Logger
	store      *store.Store
	clock      clock
	boot       string
	harness    string // path of the program inside its folder
	helper     string // likewise; "" without one
	quota      quota.Method
	emptyRoot  string // folder that is the root of containers without an image
	blobs      *blob.Cache
	images     *images
	containers *listing
	metrics    *metrics
	slots      chan struct{} // bounds container work
	files      FileSystems
	web        *http.Client // of helpers inside the daemon
	orders     *order.Desk
	lease      lease
	spare      spareIO
	leash      *leash.Holder // nil where nobody else can freeze
	closers    []func() error

	// run is the context of attempts and orders: when it ends the daemon leaves.
	run context.Context
	wg  sync.WaitGroup // attempts and orders

	inputs sync.WaitGroup // standard inputs of Exec; they end after their handlers

	report chan struct{} // something is to be reported; holds one
	probed chan struct{} // another set of levels is to be told; holds one

	mu       sync.Mutex
	levels   *probeResult // of a probe that is over; nil: as Config.Info says
	sequence uint64       // of the last report
	id       store.Identity
	attempts map[store.ID]*attempt
	dirty    map[store.ID]bool                    // changed since it was last reported
	gone     map[store.ID]bool                    // removed, not yet reported
	again    map[store.ID]*droverv1.WantedAttempt // wanted anew while the old one is removed
}

// newDaemon opens what a daemon needs; close ends it.
func newDaemon(cfg Config) (*daemon, error) {
	cfg, err := cfg.defaults()
	if err != nil {
		return nil, err
	}
	cfg.Info = proto.CloneOf(cfg.Info) // the listener's address is filled in
	if err := makeFolders(cfg.Data); err != nil {
		return nil, err
	}
	st, err := store.Open(filepath.Join(cfg.Data, "node.db"))
	if err != nil {
		return nil, err
	}
	d := &daemon{
		cfg: cfg, log: cfg.Log, store: st, clock: realClock{}, boot: bootID(),
		emptyRoot:  filepath.Join(cfg.Data, "empty"),
		containers: &listing{driver: cfg.Driver}, slots: make(chan struct{}, cfg.Parallel),
		report: make(chan struct{}, 1), probed: make(chan struct{}, 1),
		// Rising also across restarts, so that a coordinator that remembers the
		// last one takes the next for new.
		sequence: uint64(time.Now().UnixMilli()),
		lease:    lease{now: leash.SinceBoot},
		attempts: map[store.ID]*attempt{}, dirty: map[store.ID]bool{},
		gone: map[store.ID]bool{}, again: map[store.ID]*droverv1.WantedAttempt{},
	}
	d.spare.d = d
	fail := func(err error) (*daemon, error) { return nil, errors.Join(err, st.Close()) }
	if d.id, err = st.Identity(); err != nil {
		return fail(err)
	}
	if d.harness, err = keepProgram(cfg.Data, cfg.Harness); err != nil {
		return fail(err)
	}
	if len(cfg.Helper) > 0 {
		if d.helper, err = keepProgram(cfg.Data, cfg.Helper[0]); err != nil {
			return fail(err)
		}
	}
	if err := d.openLeash(); err != nil {
		return fail(err)
	}
	if d.quota, err = d.probeQuota(); err != nil {
		return fail(err)
	}
	if d.blobs, err = blob.Open(filepath.Join(cfg.Data, "blobs"), cfg.BlobLimit, cfg.Coordinator); err != nil {
		return fail(err)
	}
	if err := d.openFiles(); err != nil {
		return fail(err)
	}
	d.images = &images{driver: cfg.Driver, blobs: d.blobs, now: d.clock.Now, used: map[string]time.Time{}}
	d.metrics = newMetrics(cfg.Registry, d)
	return d, nil
}

// makeFolders makes the daemon's folders. Tenants pass through to their own
// attempt's folder and read nothing on the way.
func makeFolders(data string) error {
	for _, dir := range []string{data, filepath.Join(data, "attempts"), filepath.Join(data, "empty")} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return err
		}
	}
	return os.MkdirAll(filepath.Join(data, "images"), 0o700)
}

// epoch is the node's present epoch.
func (d *daemon) epoch() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.id.Epoch
}

func (d *daemon) identity() store.Identity {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.id
}

// slot runs f while it holds one of the places for container work.
func (d *daemon) slot(ctx context.Context, f func() error) error {
	select {
	case d.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-d.slots }()
	return f()
}

// changed marks an attempt for the next report; atOnce has that sent now.
func (d *daemon) changed(id store.ID, atOnce bool) {
	d.mu.Lock()
	d.dirty[id] = true
	d.mu.Unlock()
	if atOnce {
		d.poke()
	}
}

func (d *daemon) poke() {
	select {
	case d.report <- struct{}{}:
	default:
	}
}

// adopt finds what an earlier daemon left: records, wanted attempts,
// containers, cgroups and folders. What has a record goes on from where it is,
// the rest is removed.
func (d *daemon) adopt(ctx context.Context) error {
	records, err := d.store.Records()
	if err != nil {
		return err
	}
	wanted, err := d.store.Wanted()
	if err != nil {
		return err
	}
	known := map[store.ID]bool{}
	for id := range records {
		known[id] = true
	}
	for id := range wanted {
		known[id] = true
	}
	containers, listErr := d.containers.get(ctx)
	if listErr != nil {
		d.log.Warn("the container engine does not answer yet", "err", listErr)
	}
	for id := range containers {
		d.know(known, id)
	}
	folders, err := os.ReadDir(filepath.Join(d.cfg.Data, "attempts"))
	if err != nil {
		return err
	}
	for _, f := range folders {
		d.know(known, f.Name())
	}
	dumps, err := os.ReadDir(filepath.Join(d.cfg.Data, "images"))
	if err != nil {
		return err
	}
	for _, f := range dumps {
		d.know(known, f.Name())
	}
	groups, err := d.listCgroups(ctx, known)
	if err != nil {
		return err
	}
	for id := range known {
		a := newAttempt(d, id)
		a.adopted = true
		rec, recorded := records[id]
		if err := a.adopt(rec, recorded, groups[id]); err != nil {
			return fmt.Errorf("attempt %s: %w", id, err)
		}
		a.setStatus(containers[id.String()])
		if listErr != nil {
			a.container = task.ContainerUnknown
		}
		a.adoptLevel(ctx)
		a.wanted, a.spec = wanted[id], wanted[id].GetSpec()
		a.silent = recorded && rec.Epoch != d.id.Epoch || !recorded && wanted[id] == nil
		if a.silent {
			a.wanted = nil
		}
		d.launch(a)
	}
	d.log.Info("adopted", "attempts", len(known), "containers", len(containers))
	return nil
}

// know adds what looks like an attempt; a stranger is left alone.
func (d *daemon) know(known map[store.ID]bool, name string) {
	if _, err := store.ParseID(name); err != nil {
		d.log.Warn("not an attempt, left alone", "name", name)
		return
	}
	known[store.ID(name)] = true
}

// listCgroups finds the cgroups and ends the helpers that a dead daemon left
// in them.
func (d *daemon) listCgroups(ctx context.Context, known map[store.ID]bool) (map[store.ID]bool, error) {
	groups := map[store.ID]bool{}
	if d.cfg.Enforcer == nil {
		return groups, nil
	}
	names, err := d.cfg.Enforcer.List()
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		d.know(known, n)
		if !known[store.ID(n)] {
			continue
		}
		groups[store.ID(n)] = true
		if err := d.cfg.Enforcer.KillHelpers(ctx, n); err != nil {
			return nil, err
		}
	}
	return groups, nil
}

// adopt takes over what the store knows of the attempt.
func (a *attempt) adopt(rec store.Record, recorded, cgroup bool) error {
	a.rec, a.recorded, a.cgroup = rec, recorded, cgroup
	end, err := rec.Ended()
	if err != nil {
		return err
	}
	if end != nil {
		a.result = &outcome{end}
		a.seen = end
	}
	if rec.Started { // it was prepared then, and shall not be prepared again
		a.image, a.files, a.cgroup = true, true, true
		a.limits = a.d.readLimits(a.id)
	}
	return nil
}

// launch starts the loop of an attempt; the caller adds nothing to it after.
func (d *daemon) launch(a *attempt) {
	d.mu.Lock()
	d.attempts[a.id] = a
	if !a.silent {
		d.dirty[a.id] = true
	}
	d.mu.Unlock()
	d.wg.Go(func() { a.loop(d.run) })
	d.poke()
}

// apply makes a message of the coordinator durable, then acts on it.
func (d *daemon) apply(w *droverv1.Wanted) error {
	change, err := d.store.Apply(w)
	if err != nil {
		return err
	}
	if change.Stale {
		d.log.Debug("an old revision", "revision", w.GetRevision())
		return nil
	}
	d.mu.Lock()
	d.id.Term, d.id.Revision = w.GetTerm(), w.GetRevision()
	d.mu.Unlock()
	ids := make([]store.ID, 0, len(change.Put))
	for id := range change.Put {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		d.want(id, change.Put[id])
	}
	for _, k := range w.GetRemove() {
		d.unwant(store.IDOf(k))
	}
	if w.GetFull() {
		d.unwantOthers(change.Put)
		if len(w.GetKeepBlobs()) > 0 || len(w.GetPut()) == 0 {
			d.blobs.Keep(w.GetKeepBlobs())
		}
	}
	return nil
}

func (d *daemon) want(id store.ID, w *droverv1.WantedAttempt) {
	d.mu.Lock()
	delete(d.gone, id)
	a := d.attempts[id]
	if a != nil && a.silent {
		d.again[id] = w
		d.mu.Unlock()
		return
	}
	d.mu.Unlock()
	if a != nil {
		a.want(w)
		return
	}
	a = newAttempt(d, id)
	a.wanted, a.spec = w, w.GetSpec()
	a.adopted = w.GetResumeFrom() != "" // it may need an older harness
	d.launch(a)
}

// unwant lets an attempt go; one that is not here is gone already, and the
// coordinator hears so.
func (d *daemon) unwant(id store.ID) {
	d.mu.Lock()
	delete(d.again, id)
	a := d.attempts[id]
	if a == nil {
		d.gone[id] = true
	}
	d.mu.Unlock()
	if a != nil {
		a.want(nil)
		return
	}
	d.poke()
}

// unwantOthers lets go of every attempt that a full set does not name.
func (d *daemon) unwantOthers(put map[store.ID]*droverv1.WantedAttempt) {
	d.mu.Lock()
	var others []*attempt
	for id, a := range d.attempts {
		if put[id] == nil {
			others = append(others, a)
		}
	}
	d.mu.Unlock()
	for _, a := range others {
		a.want(nil)
	}
}

// newEpoch removes all that ran under another epoch: the coordinator has given
// it up, and whatever it still brings about is not reported.
func (d *daemon) newEpoch(id store.Identity) {
	d.mu.Lock()
	old := d.id
	d.id = id
	var dead []*attempt
	if old.Epoch != id.Epoch || old.Node != id.Node {
		for aid, a := range d.attempts {
			if !a.silent {
				dead = append(dead, a)
				a.silent = true
				delete(d.dirty, aid)
			}
		}
		clear(d.gone)
	}
	d.mu.Unlock()
	for _, a := range dead {
		d.log.Info("of an older epoch: removed", "attempt", a.id)
		a.want(nil)
	}
}

// finished takes an attempt out of the daemon once nothing of it is left. It
// says false when the attempt is wanted again after all.
func (d *daemon) finished(a *attempt) bool {
	d.mu.Lock()
	a.mu.Lock()
	wanted := a.wanted
	a.mu.Unlock()
	if wanted != nil {
		d.mu.Unlock()
		return false
	}
	delete(d.attempts, a.id)
	delete(d.dirty, a.id)
	if !a.silent {
		d.gone[a.id] = true
	}
	next := d.again[a.id]
	delete(d.again, a.id)
	d.mu.Unlock()
	if next != nil {
		d.want(a.id, next)
	}
	d.poke()
	return true
}

// probeQuota finds out how disk space is bounded here.
func (d *daemon) probeQuota() (quota.Method, error) {
	method, why, err := quota.Probe(filepath.Join(d.cfg.Data, "attempts"))
	if err != nil {
		return 0, fmt.Errorf("disk quota: %w", err)
	}
	if method != quota.Kernel {
		d.log.Warn("disk use is counted once a second, the kernel bounds nothing", "why", why)
	}
	return method, nil
}

// openFiles makes what orders and helpers inside the daemon work with.
func (d *daemon) openFiles() error {
	d.files = d.cfg.Files
	if d.files == nil {
		set := fsys.New(d.cfg.FilesConfig, func(user string, w hdfs.Waiting) { d.orders.Waiting(user, w.String()) })
		d.closers = append(d.closers, set.Close)
		d.files = set
	}
	web, err := helper.HTTPClient(d.cfg.ShuffleCA)
	if err != nil {
		return err
	}
	d.web = web
	d.closers = append(d.closers, func() error { web.CloseIdleConnections(); return nil })
	d.orders = order.NewDesk(d.files, d.poke, func(kind string, err error) {
		d.metrics.orders.WithLabelValues(kind, result(err)).Inc()
	})
	return nil
}

// close gives back what newDaemon opened, after the context of run has ended.
func (d *daemon) close() error {
	d.wg.Wait()
	d.inputs.Wait()
	if d.orders != nil {
		d.orders.Wait()
	}
	var err error
	for _, c := range d.closers {
		err = errors.Join(err, c())
	}
	return errors.Join(err, d.store.Close())
}

// readLimits reads the limits that an adopted attempt runs under, or nil.
func (d *daemon) readLimits(id store.ID) *droverv1.Limits {
	r, ok := d.cfg.Enforcer.(interface {
		Limits(id string) (*droverv1.Limits, error)
	})
	if !ok {
		return nil
	}
	l, err := r.Limits(id.String())
	if err != nil {
		return nil
	}
	return l
}
