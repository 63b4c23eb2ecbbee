package node

import (
	"cmp"
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
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/hdfs"
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
)

// StoreFile is the daemon's own state, in its data folder.
const StoreFile = "node.db"

// daemon is one running node. It joins its parts, each of which owns what it
// decides by: attempts what is here and what is reported, peers who may call,
// sockets where, prober which levels work, exclusive the lease, programs, secrets,
// helpers, images and blobs what a task needs. None of its own fields changes after
// newDaemon, but for runCtx, which Run sets before it starts anything, and load,
// which is reportLoop's.
type daemon struct {
	cfg           Config
	log           *slog.Logger
	store         *store.Store
	clock         clock
	bootID        string
	programs      programStore
	quota         quota.Method
	emptyRoot     string // empty folder, the root of containers without an image
	blobs         *blob.Cache
	pastLogs      *pastlogs.Store // of attempts that are not here any more
	images        *imageStore
	containers    *containerLister
	recentTasks   recentTasks
	metrics       *metrics
	slots         chan struct{} // bounds concurrent container operations
	dumpSlots     chan struct{} // bounds concurrent dumps and restores, which take minutes: starts must not wait for them
	files         FileSystems
	httpClient    *http.Client // for helpers inside the daemon
	helpers       *helperRunner
	secrets       *secretSource
	requests      *requests.Server
	shuffle       *shuffle.Server
	sockets       *sockets
	peers         *peerGuard
	exclusive     *exclusiveGuard
	unallocatedIO *unallocatedIO
	load          machineLoad
	prober        *prober
	attempts      *attemptTable
	registration  string // of the session loop: the token of the registration that has no answer yet; "" if each has one
	dumpSource    *dumpSource
	closers       []func() error

	// runCtx is the context of attempts and requests; when it ends the daemon stops.
	runCtx context.Context
	wg     sync.WaitGroup // attempts and requests

	execInputs sync.WaitGroup // standard inputs of Exec; they end after their handlers
}

// newDaemon opens what a daemon needs; close releases it.
func newDaemon(cfg Config) (*daemon, error) {
	cfg, err := cfg.defaults()
	if err != nil {
		return nil, err
	}
	cfg.Info = proto.CloneOf(cfg.Info) // the listener's address is filled in below
	cfg.addDumpFormat()
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
	st.SetDisk(cfg.StoreDisk)
	d := &daemon{
		cfg: cfg, log: cfg.Log, store: st, clock: newClock(cfg.Now, cfg.SinceBoot), bootID: cmp.Or(cfg.BootID, bootID()),
		emptyRoot:  filepath.Join(cfg.Data, "empty"),
		containers: newContainerLister(cfg.Driver), slots: make(chan struct{}, cfg.parallel), dumpSlots: make(chan struct{}, cfg.parallel),
	}
	fail := func(err error) (*daemon, error) { return nil, errors.Join(err, st.Close()) }
	if err := d.findDaemonID(); err != nil { // a copy of another machine's folder changes what follows
		return fail(err)
	}
	id, err := st.Identity()
	if err != nil {
		return fail(err)
	}
	// The number increases across restarts too, so a coordinator that remembers the
	// last sequence accepts the next.
	d.attempts = newAttemptTable(id, uint64(d.clock.Now().UnixMilli()))
	if d.programs, err = installPrograms(&cfg); err != nil {
		return fail(err)
	}
	if d.exclusive, err = newExclusiveGuard(&cfg, d.programs.helper, d.attempts); err != nil {
		return fail(err)
	}
	if d.quota, err = probeQuota(&cfg); err != nil {
		return fail(err)
	}
	d.unallocatedIO = newUnallocatedIO(&d.cfg, d.attempts.allocatedIO)
	d.peers = newPeerGuard(&d.cfg)
	d.sockets = newSockets(&d.cfg, d.peers.connections)
	d.dumpSource = newDumpSource(d.attempts)
	d.closers = append(d.closers, d.sockets.close, d.containers.close, d.dumpSource.close)
	d.secrets = &secretSource{coordinator: cfg.Coordinator, dir: cfg.Secrets, node: cfg.Info.GetName(), identity: d.attempts.identity}
	d.prober = newProber(&d.cfg, d.programs.harness, d.emptyRoot, d.clock, d.unallocatedIO)
	d.load.containers, d.load.counts, d.load.data = d.containers, newKernelCounts(orDefault(cfg.KernelCounts, "/proc")), cfg.Data
	if d.blobs, err = blob.Open(filepath.Join(cfg.Data, "blobs"), cfg.blobLimit, cfg.Coordinator); err != nil {
		return fail(err)
	}
	d.pastLogs, err = pastlogs.Open(filepath.Join(cfg.Data, "pastlogs"), pastlogs.Options{MaxBytes: cfg.KeepLogBytes, MaxAge: cfg.KeepLogAge, MaxFile: 2 * cfg.maxLogBytes})
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
	d.shuffle = shuffle.NewServer(mapOutputs{d.attempts}, maxShuffleRequests, d.log, newShuffleMetrics(cfg.Registry))
	return d, nil
}

// findDaemonID takes over the daemon's id. Where the disk does not take it the daemon goes on, unless the folder is a copy:
// what it says is wanted of this machine would begin here too.
func (d *daemon) findDaemonID() error {
	id, copied, err := d.store.DaemonID(cmp.Or(d.cfg.machineID, machineID()))
	if err != nil && (copied || !errors.Is(err, store.ErrUnwritable)) {
		return err
	}
	if err != nil {
		d.log.Warn("cannot record to which machine the data folder belongs", "err", err)
	}
	if copied {
		d.log.Warn("the data folder is a copy of that of another machine, or was moved from there: this daemon counts as another one, and gets the node's name once the lease of that one has ended",
			"data", d.cfg.Data, "node", d.cfg.Info.GetName())
	}
	d.cfg.Info.DaemonId = id
	return nil
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

// inEngineSlot runs f while it holds one of the slots for container operations, for which it waits so long at most: then
// what is wanted of the attempt is to be looked at again.
func (d *daemon) inEngineSlot(ctx context.Context, wait time.Duration, f func() error) error {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return inSlot(waiting, d.slots, f)
}

// errNoSlot is the error of work that has not begun: no slot for it became free in time.
var errNoSlot = errors.New("no slot for it became free in time")

// inSlot runs f while it holds one of the slots. If ctx reaches its deadline before one is free, it returns errNoSlot.
func inSlot(ctx context.Context, slots chan struct{}, f func() error) error {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return errNoSlot
		}
		return ctx.Err()
	}
	defer func() { <-slots }()
	return f()
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
	listing, cancel := context.WithTimeout(ctx, d.cfg.adoptLimit)
	containers, listErr := d.containers.list(listing) // attempts ask again, and the lease does not wait
	cancel()
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
	groups, strays, err := d.adoptCgroups(ctx, known)
	if err != nil {
		return err
	}
	epoch := d.attempts.epoch()
	for id := range known {
		a := newAttempt(d, id)
		a.mayNeedOldHarness, a.adopted = true, true
		rec, recorded := records[id]
		if err := a.adopt(rec, recorded, groups[id]); err != nil {
			return fmt.Errorf("attempt %s: %w", id, err)
		}
		a.container.set(containers[id.String()])
		if listErr != nil {
			a.container.phase = task.ContainerUnknown
		}
		a.helpers.strays = strays[id]
		a.mail.wanted, a.mail.spec = wanted[id], wanted[id].GetSpec()
		a.orphaned = recorded && rec.Epoch != epoch || !recorded && wanted[id] == nil
		if a.orphaned {
			a.mail.wanted = nil
		}
		if a.outcome == nil { // another node may ask for the dump before the engine has told the loop of the container
			a.mail.dump = a.dumpToServe(a.suspension.level(a.mail.wanted))
		}
		d.launch(a)
	}
	d.attempts.setAdopted()
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
// daemon left in them. strays are those with helpers that did not die in time, as
// while their disk hangs: the others must not wait for them.
func (d *daemon) adoptCgroups(ctx context.Context, known map[store.ID]bool) (groups, strays map[store.ID]bool, err error) {
	groups, strays = map[store.ID]bool{}, map[store.ID]bool{}
	if d.cfg.Enforcer == nil {
		return groups, strays, nil
	}
	names, err := d.cfg.Enforcer.List()
	if err != nil {
		return nil, nil, err
	}
	killing, cancel := context.WithTimeout(ctx, helperKillLimit) // all of them together
	defer cancel()
	for _, n := range names {
		d.addKnown(known, n)
		if !known[store.ID(n)] {
			continue
		}
		groups[store.ID(n)] = true
		if err := d.cfg.Enforcer.KillHelpers(killing, n); err != nil {
			d.log.Warn("helpers of the attempt from before the restart are not gone", "attempt", n, "err", err)
			strays[store.ID(n)] = true
		}
	}
	return groups, strays, nil
}

// adopt restores the attempt's state from its record.
func (a *attempt) adopt(rec store.Record, recorded, cgroup bool) error {
	a.rec.Record, a.rec.exists, a.cgroup.exists = rec, recorded, cgroup
	end, err := rec.DecodeEnd()
	if err != nil {
		return err
	}
	if bounded := boundReport(end); bounded != end { // recorded by a daemon without these limits
		end = bounded
		b, err := proto.Marshal(end)
		if err != nil {
			return err
		}
		if err := a.rec.change(func(r *store.Record) { r.End = b }); err != nil {
			return err
		}
	}
	if end != nil {
		a.outcome = &outcome{end}
		a.mail.seen = end
	}
	if rec.Started { // it was prepared before, and must not be prepared again
		a.files.hasImage, a.files.hasFiles = true, true
		if end == nil {
			a.cgroup.exists = cgroup || a.d.cfg.Enforcer == nil // a checkpointed attempt has none after a move or a reboot
			a.cgroup.limits = readLimits(a.d.cfg.Enforcer, a.id)
			a.cgroup.read() // the engine may be silent, and the level is reported with what is occupied at it
		}
	}
	if rec.Dumped {
		a.cgroup.recoverUsage()
	}
	return nil
}

// launch registers the attempt and starts its loop; the caller must not modify
// the attempt afterwards.
func (d *daemon) launch(a *attempt) {
	d.attempts.add(a)
	a.startLoop()
	d.attempts.requestReport()
}

// newWanted returns an attempt that is wanted and not here yet.
func (d *daemon) newWanted(id store.ID, w *droverv1.WantedAttempt) *attempt {
	a := newAttempt(d, id)
	a.mail.wanted, a.mail.spec = w, w.GetSpec()
	a.mayNeedOldHarness = w.GetResumeFrom() != "" // it may need an older harness
	return a
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
	d.attempts.setRevision(w.GetTerm(), w.GetRevision())
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
		d.attempts.fullSetApplied()
		if len(w.GetKeepBlobs()) > 0 || len(w.GetPut()) == 0 {
			d.blobs.Prune(w.GetKeepBlobs())
		}
	}
	return nil
}

// setWanted passes the wanted state to the attempt, which it creates if needed.
// While an orphaned attempt with that ID is being removed, the state waits.
func (d *daemon) setWanted(id store.ID, w *droverv1.WantedAttempt) {
	a, later := d.attempts.want(id, w)
	if later {
		return
	}
	if a != nil {
		a.setWanted(w)
		return
	}
	d.launch(d.newWanted(id, w))
}

// removeWanted starts the removal of an attempt. An attempt that is not on this
// node is reported as gone.
func (d *daemon) removeWanted(id store.ID) {
	if a := d.attempts.unwant(id); a != nil {
		a.setWanted(nil)
		return
	}
	d.attempts.requestReport()
}

// removeUnlisted starts the removal of every attempt that a full set does not list.
func (d *daemon) removeUnlisted(put map[store.ID]*droverv1.WantedAttempt) {
	for _, a := range d.attempts.unlisted(put) {
		a.setWanted(nil)
	}
}

// enterEpoch takes over a new identity, and removes the attempts that the
// coordinator has given up. The lease of that epoch may be used only afterwards.
func (d *daemon) enterEpoch(id store.Identity) {
	d.removeOrphans(d.attempts.enterEpoch(id))
}

func (d *daemon) removeOrphans(orphans []*attempt) {
	for _, a := range orphans {
		d.log.Info("attempt of an older epoch is removed", "attempt", a.id)
		_, spec := a.mail.wantedAndSpec()
		d.exclusive.abandon(a.id, spec)
		a.setWanted(nil)
	}
}

// leaveName removes all attempts if the coordinator says that the node's name is another daemon's in a later epoch: they were
// lost with the epoch before, began again elsewhere, and can never count. The coordinator gives the name to another daemon
// only once the lease of this one has ended. Where nothing can be stored all goes on until the next registration.
func (d *daemon) leaveName(by wire.NodeOwner) {
	if !d.attempts.isOutdated(by) {
		return
	}
	if err := d.store.GiveUp(); err != nil {
		d.log.Warn("another daemon has the name of this node; what ran here cannot be removed yet", "err", err)
		return
	}
	orphans := d.attempts.giveUp()
	d.log.Warn("another daemon has the name of this node: what ran here was lost, and is removed", "attempts", len(orphans), "epoch", d.attempts.epoch(), "epoch_of_name", by.Epoch)
	d.removeOrphans(orphans)
}

// removeFinished removes an attempt of which nothing is left from the daemon. It
// returns false if the attempt has become wanted again.
func (d *daemon) removeFinished(a *attempt) bool {
	removed, next := d.attempts.remove(a, func(w *droverv1.WantedAttempt) *attempt { return d.newWanted(a.id, w) })
	if !removed {
		return false
	}
	if next != nil {
		next.startLoop()
	}
	d.attempts.requestReport()
	return true
}

// openFileSystems opens the file systems, the HTTP client and the request server.
func (d *daemon) openFileSystems() error {
	d.files = d.cfg.files
	if d.files == nil {
		set := fsys.New(d.cfg.FilesConfig, func(user string, w hdfs.WaitNotice) { d.requests.SetWaiting(user, w.String()) })
		d.closers = append(d.closers, set.Close)
		d.files = set
	}
	web, err := helper.HTTPClient(d.cfg.shuffleCA, d.cfg.Dial)
	if err != nil {
		return err
	}
	d.httpClient = web
	d.closers = append(d.closers, func() error { web.CloseIdleConnections(); return nil })
	d.helpers = &helperRunner{enforcer: d.cfg.Enforcer, argv: d.cfg.Helper, program: d.programs.helper, tools: helper.Tools{Files: d.files, HTTP: web}}
	d.requests = requests.NewServer(d.files, jobLogs{d.attempts, d.pastLogs}, d.attempts.requestReport, func(kind string, err error) {
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

// probeQuota finds out how disk quotas can be enforced here.
func probeQuota(cfg *Config) (quota.Method, error) {
	method, why, err := quota.Probe(filepath.Join(cfg.Data, "attempts"))
	if err != nil {
		return 0, fmt.Errorf("disk quota: %w", err)
	}
	if method != quota.Kernel {
		cfg.Log.Warn("the kernel enforces no disk quota: disk use is sampled once a second", "why", why)
	}
	return method, nil
}

// readLimits returns the limits in force for an adopted attempt, or nil.
func readLimits(e Enforcer, id store.ID) *droverv1.Limits {
	r, ok := e.(interface {
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
