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
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/internal/pki/pkimetrics"
	"github.com/drover-run/drover/internal/quota"
	"github.com/drover-run/drover/node/blob"
	"github.com/drover-run/drover/node/fsys"
	"github.com/drover-run/drover/node/helper"
	"github.com/drover-run/drover/node/pastlogs"
	"github.com/drover-run/drover/node/requests"
	"github.com/drover-run/drover/node/shuffle"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/task"
	"github.com/drover-run/drover/node/watchdog"
)

// StoreFile is the daemon's own state, in its data folder.
const StoreFile = "node.db"

// daemon is one running node.
type daemon struct {
	cfg           Config
	log           *slog.Logger
	store         *store.Store
	clock         clock
	bootID        string
	harnessPath   string // the harness inside the content-addressed program folder
	helperPath    string // the helper program, stored like harnessPath; "" without one
	quota         quota.Method
	emptyRoot     string // empty folder, the root of containers without an image
	blobs         *blob.Cache
	pastLogs      *pastlogs.Store // of attempts that are not here any more
	images        *imageStore
	containers    *containerLister
	recentTasks   recentTasks
	metrics       *metrics
	slots         chan struct{} // bounds concurrent container operations
	files         FileSystems
	httpClient    *http.Client // for helpers inside the daemon
	requests      *requests.Server
	shuffle       *shuffle.Server
	shuffleSocket string // the address for tenants' helpers; empty where there are none
	lease         lease
	unallocatedIO unallocatedIO
	load          machineLoad
	watchdog      *watchdog.Client // nil where no other process can freeze a task
	closers       []func() error
	connections   *pki.Connections

	// runCtx is the context of attempts and requests; when it ends the daemon stops.
	runCtx context.Context
	wg     sync.WaitGroup // attempts and requests

	execInputs sync.WaitGroup // standard inputs of Exec; they end after their handlers

	reportNow    chan struct{} // something must be reported; capacity 1
	levelsProbed chan struct{} // the probed levels must be registered; capacity 1

	mu           sync.Mutex   // taken before attempt.mu
	probedLevels *probeResult // nil until a probe has ended: Config.Info applies
	sequence     uint64       // of the last report
	id           store.Identity
	attempts     map[store.ID]*attempt
	dirty        map[store.ID]bool                    // changed since the last report
	gone         map[store.ID]bool                    // removed but not yet reported
	wantedAgain  map[store.ID]*droverv1.WantedAttempt // wanted again while the old attempt is being removed
}

// newDaemon opens what a daemon needs; close releases it.
func newDaemon(cfg Config) (*daemon, error) {
	cfg, err := cfg.defaults()
	if err != nil {
		return nil, err
	}
	cfg.Info = proto.CloneOf(cfg.Info) // the listener's address is filled in below
	if err := makeFolders(cfg.Data); err != nil {
		return nil, err
	}
	st, err := store.Open(filepath.Join(cfg.Data, StoreFile))
	if err != nil {
		return nil, err
	}
	if cfg.NoSync {
		st.SkipSync()
	}
	d := &daemon{
		cfg: cfg, log: cfg.Log, store: st, clock: newClock(cfg.SinceBoot), bootID: bootID(),
		emptyRoot:  filepath.Join(cfg.Data, "empty"),
		containers: &containerLister{driver: cfg.Driver}, slots: make(chan struct{}, cfg.Parallel),
		reportNow: make(chan struct{}, 1), levelsProbed: make(chan struct{}, 1),
		// Increases across restarts too, so a coordinator that remembers the last
		// sequence accepts the next.
		sequence:    uint64(time.Now().UnixMilli()),
		lease:       lease{now: watchdog.SinceBoot},
		connections: pki.NewConnections(maxConnections),
		attempts:    map[store.ID]*attempt{}, dirty: map[store.ID]bool{},
		gone: map[store.ID]bool{}, wantedAgain: map[store.ID]*droverv1.WantedAttempt{},
	}
	d.unallocatedIO.d = d
	if cfg.SinceBoot != nil {
		d.lease.now = cfg.SinceBoot
	}
	fail := func(err error) (*daemon, error) { return nil, errors.Join(err, st.Close()) }
	if d.id, err = st.Identity(); err != nil {
		return fail(err)
	}
	if d.harnessPath, err = installProgram(cfg.Data, cfg.Harness, cfg.NoSync); err != nil {
		return fail(err)
	}
	if len(cfg.Helper) > 0 {
		if d.helperPath, err = installProgram(cfg.Data, cfg.Helper[0], cfg.NoSync); err != nil {
			return fail(err)
		}
	}
	if err := d.openWatchdog(); err != nil {
		return fail(err)
	}
	if d.quota, err = d.probeQuota(); err != nil {
		return fail(err)
	}
	if d.blobs, err = blob.Open(filepath.Join(cfg.Data, "blobs"), cfg.BlobLimit, cfg.Coordinator); err != nil {
		return fail(err)
	}
	d.pastLogs, err = pastlogs.Open(filepath.Join(cfg.Data, "pastlogs"), pastlogs.Options{MaxBytes: cfg.KeepLogBytes, MaxAge: cfg.KeepLogAge, MaxFile: 2 * cfg.MaxLogBytes})
	if err != nil {
		return fail(err)
	}
	if err := d.openFileSystems(); err != nil {
		return fail(err)
	}
	d.images = &imageStore{driver: cfg.Driver, blobs: d.blobs, now: d.clock.Now, lastUsed: map[string]time.Time{}}
	d.metrics = newMetrics(cfg.Registry, d)
	if cfg.Certificate != nil {
		cfg.Registry.MustRegister(pkimetrics.Expiry(cfg.Certificate))
	}
	d.shuffle = shuffle.NewServer(mapOutputs{d}, maxShuffleRequests, d.log, cfg.Registry)
	return d, nil
}

// makeFolders makes the daemon's folders. Tenants may traverse them to reach
// their attempt's folder but cannot list them.
func makeFolders(data string) error {
	for _, dir := range []string{data, filepath.Join(data, "attempts"), filepath.Join(data, "empty")} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return err
		}
	}
	return os.MkdirAll(filepath.Join(data, "images"), 0o700)
}

// epoch returns the node's current epoch.
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

// inSlot runs f while it holds one of the slots for container operations.
func (d *daemon) inSlot(ctx context.Context, f func() error) error {
	select {
	case d.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-d.slots }()
	return f()
}

// markChanged marks an attempt for the next report; atOnce sends it now.
func (d *daemon) markChanged(id store.ID, atOnce bool) {
	d.mu.Lock()
	d.dirty[id] = true
	d.mu.Unlock()
	if atOnce {
		d.requestReport()
	}
}

// requestReport makes reportLoop send a report soon; it never blocks.
func (d *daemon) requestReport() {
	select {
	case d.reportNow <- struct{}{}:
	default:
	}
}

// adopt finds what an earlier daemon left: records, wanted attempts,
// containers, cgroups and folders. Attempts with a record continue from where
// they are; the others are removed.
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
	containers, listErr := d.containers.list(ctx)
	if listErr != nil {
		d.log.Warn("the container engine is not answering yet", "err", listErr)
	}
	for id := range containers {
		d.addKnown(known, id)
	}
	folders, err := os.ReadDir(filepath.Join(d.cfg.Data, "attempts"))
	if err != nil {
		return err
	}
	for _, f := range folders {
		d.addKnown(known, f.Name())
	}
	dumps, err := os.ReadDir(filepath.Join(d.cfg.Data, "images"))
	if err != nil {
		return err
	}
	for _, f := range dumps {
		d.addKnown(known, f.Name())
	}
	groups, err := d.adoptCgroups(ctx, known)
	if err != nil {
		return err
	}
	for id := range known {
		a := newAttempt(d, id)
		a.mayNeedOldHarness, a.adopted = true, true
		rec, recorded := records[id]
		if err := a.adopt(rec, recorded, groups[id]); err != nil {
			return fmt.Errorf("attempt %s: %w", id, err)
		}
		a.setStatus(containers[id.String()])
		if listErr != nil {
			a.container = task.ContainerUnknown
		}
		a.recoverLevel(ctx)
		a.wanted, a.spec = wanted[id], wanted[id].GetSpec()
		a.orphaned = recorded && rec.Epoch != d.id.Epoch || !recorded && wanted[id] == nil
		if a.orphaned {
			a.wanted = nil
		}
		d.launch(a)
	}
	d.log.Info("adopted", "attempts", len(known), "containers", len(containers))
	return nil
}

// addKnown adds name to known if it is an attempt id; other names are ignored.
func (d *daemon) addKnown(known map[store.ID]bool, name string) {
	if _, err := store.ParseID(name); err != nil {
		d.log.Warn("name is not an attempt id, ignored", "name", name)
		return
	}
	known[store.ID(name)] = true
}

// adoptCgroups lists the attempts' cgroups and kills the helpers that a dead
// daemon left in them.
func (d *daemon) adoptCgroups(ctx context.Context, known map[store.ID]bool) (map[store.ID]bool, error) {
	groups := map[store.ID]bool{}
	if d.cfg.Enforcer == nil {
		return groups, nil
	}
	names, err := d.cfg.Enforcer.List()
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		d.addKnown(known, n)
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

// adopt restores the attempt's state from its record.
func (a *attempt) adopt(rec store.Record, recorded, cgroup bool) error {
	a.rec, a.recorded, a.hasCgroup = rec, recorded, cgroup
	end, err := rec.DecodeEnd()
	if err != nil {
		return err
	}
	if bounded := boundReport(end); bounded != end { // recorded by a daemon without these limits
		end = bounded
		if rec.End, err = proto.Marshal(end); err != nil {
			return err
		}
		if err := a.d.store.PutRecord(a.id, rec); err != nil {
			return err
		}
		a.rec = rec
	}
	if end != nil {
		a.outcome = &outcome{end}
		a.seen = end
	}
	if rec.Started { // it was prepared before, and must not be prepared again
		a.hasImage, a.hasFiles = true, true
		if end == nil {
			a.hasCgroup = true
			a.appliedLimits = a.d.readLimits(a.id)
		}
	}
	return nil
}

// launch registers the attempt and starts its loop; the caller must not modify
// the attempt afterwards.
func (d *daemon) launch(a *attempt) {
	d.mu.Lock()
	d.attempts[a.id] = a
	if !a.orphaned {
		d.dirty[a.id] = true
	}
	d.mu.Unlock()
	a.startLoop()
	d.requestReport()
}

// applyWanted stores a message of the coordinator and then acts on it.
func (d *daemon) applyWanted(w *droverv1.Wanted) error {
	change, err := d.store.Apply(w)
	if err != nil {
		return err
	}
	if change.Stale {
		d.log.Debug("outdated revision ignored", "revision", w.GetRevision())
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
		d.setWanted(id, change.Put[id])
	}
	for _, k := range w.GetRemove() {
		d.removeWanted(store.IDOf(k))
	}
	if w.GetFull() {
		d.removeUnlisted(change.Put)
		if len(w.GetKeepBlobs()) > 0 || len(w.GetPut()) == 0 {
			d.blobs.Prune(w.GetKeepBlobs())
		}
	}
	return nil
}

// setWanted passes the wanted state to the attempt, which it creates if needed.
// While an orphaned attempt with that ID is being removed, the state waits in
// wantedAgain.
func (d *daemon) setWanted(id store.ID, w *droverv1.WantedAttempt) {
	d.mu.Lock()
	delete(d.gone, id)
	a := d.attempts[id]
	if a != nil && a.orphaned {
		d.wantedAgain[id] = w
		d.mu.Unlock()
		return
	}
	d.mu.Unlock()
	if a != nil {
		a.setWanted(w)
		return
	}
	a = newAttempt(d, id)
	a.wanted, a.spec = w, w.GetSpec()
	a.mayNeedOldHarness = w.GetResumeFrom() != "" // it may need an older harness
	d.launch(a)
}

// removeWanted starts the removal of an attempt. An attempt that is not on this
// node is reported as gone.
func (d *daemon) removeWanted(id store.ID) {
	d.mu.Lock()
	delete(d.wantedAgain, id)
	a := d.attempts[id]
	if a == nil {
		d.gone[id] = true
	}
	d.mu.Unlock()
	if a != nil {
		a.setWanted(nil)
		return
	}
	d.requestReport()
}

// removeUnlisted starts the removal of every attempt that a full set does not list.
func (d *daemon) removeUnlisted(put map[store.ID]*droverv1.WantedAttempt) {
	d.mu.Lock()
	var others []*attempt
	for id, a := range d.attempts {
		if put[id] == nil {
			others = append(others, a)
		}
	}
	d.mu.Unlock()
	for _, a := range others {
		a.setWanted(nil)
	}
}

// enterEpoch takes over a new identity. If the epoch or the node's number
// changed, it removes all attempts: the coordinator has given them up, and they
// are not reported any more. Where the coordinator was restored they stay: what the first full set
// does not list is frozen (store.Apply).
func (d *daemon) enterEpoch(id store.Identity) {
	d.mu.Lock()
	old := d.id
	d.id = id
	var dead []*attempt
	if old.ClusterEpoch != id.ClusterEpoch && old.Cluster != "" {
		clear(d.gone) // reported to the coordinator that was restored; this one did not ask
	} else if old.Epoch != id.Epoch || old.Node != id.Node {
		for aid, a := range d.attempts {
			if !a.orphaned {
				dead = append(dead, a)
				a.orphaned = true
				delete(d.dirty, aid)
			}
		}
		clear(d.gone)
	}
	d.mu.Unlock()
	for _, a := range dead {
		d.log.Info("attempt of an older epoch is removed", "attempt", a.id)
		a.setWanted(nil)
	}
}

// removeFinished removes an attempt of which nothing is left from the daemon. It
// returns false if the attempt has become wanted again.
func (d *daemon) removeFinished(a *attempt) bool {
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
	if !a.orphaned {
		d.gone[a.id] = true
	}
	next := d.wantedAgain[a.id]
	delete(d.wantedAgain, a.id)
	d.mu.Unlock()
	if next != nil {
		d.setWanted(a.id, next)
	}
	d.requestReport()
	return true
}

// probeQuota finds out how disk quotas can be enforced here.
func (d *daemon) probeQuota() (quota.Method, error) {
	method, why, err := quota.Probe(filepath.Join(d.cfg.Data, "attempts"))
	if err != nil {
		return 0, fmt.Errorf("disk quota: %w", err)
	}
	if method != quota.Kernel {
		d.log.Warn("the kernel enforces no disk quota: disk use is sampled once a second", "why", why)
	}
	return method, nil
}

// openFileSystems opens the file systems, the HTTP client and the request server.
func (d *daemon) openFileSystems() error {
	d.files = d.cfg.Files
	if d.files == nil {
		set := fsys.New(d.cfg.FilesConfig, func(user string, w hdfs.WaitNotice) { d.requests.SetWaiting(user, w.String()) })
		d.closers = append(d.closers, set.Close)
		d.files = set
	}
	web, err := helper.HTTPClient(d.cfg.ShuffleCA)
	if err != nil {
		return err
	}
	d.httpClient = web
	d.closers = append(d.closers, func() error { web.CloseIdleConnections(); return nil })
	d.requests = requests.NewServer(d.files, jobLogs{d}, d.requestReport, func(kind string, err error) {
		d.metrics.requests.WithLabelValues(kind, resultLabel(err)).Inc()
	})
	return nil
}

// close releases what newDaemon opened, after runCtx has ended.
func (d *daemon) close() error {
	d.wg.Wait()
	d.execInputs.Wait()
	if d.requests != nil {
		d.requests.Wait()
	}
	var err error
	for _, c := range d.closers {
		err = errors.Join(err, c())
	}
	return errors.Join(err, d.store.Close())
}

// readLimits returns the limits in force for an adopted attempt, or nil.
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
