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
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

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
)

// StoreFile is the daemon's own state, in its data folder.
const StoreFile = "node.db"

// daemon is one running node. Its parts own its state: attempts owns which attempts are here and
// what is reported, peers who may call, sockets the addresses, prober which levels work, exclusive
// the lease; programs, secrets, helpers, images and blobs own what tasks need. No field of the
// daemon itself changes after newDaemon, except runCtx, which Run sets before it starts anything,
// and load and registration, which belong to one goroutine each.
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
	if err := d.findDaemonID(); err != nil { // first, because a copy of another machine's folder changes the rest
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

// findDaemonID takes over the daemon's id. If the id cannot be stored, the daemon continues, unless
// the folder is a copy: the attempts that are wanted of the other machine would start here too.
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

// inEngineSlot runs f in one of the slots for container operations. It waits for a slot no longer
// than wait, after which the caller must look at the wanted state again.
func (d *daemon) inEngineSlot(ctx context.Context, wait time.Duration, f func() error) error {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return inSlot(waiting, d.slots, f)
}

// errNoSlot means that work did not begin because no slot became free in time.
var errNoSlot = errors.New("no slot for it became free in time")

// inSlot runs f in one of the slots. If ctx reaches its deadline before a slot is free, it returns
// errNoSlot.
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

// warnOnce returns a function that logs the first warning and drops the others: each task's helper
// is a process of its own and finds the same fault of the machine.
func (d *daemon) warnOnce() func(text string) {
	var once sync.Once
	return func(text string) { once.Do(func() { d.cfg.Log.Warn(text) }) }
}

// openFileSystems opens the file systems, the HTTP client and the request server.
func (d *daemon) openFileSystems() error {
	warn := d.warnOnce()
	d.files = d.cfg.files
	if d.files == nil {
		set := fsys.New(d.cfg.FilesConfig, func(user string, w hdfs.WaitNotice) { d.requests.SetWaiting(user, w.String()) }, warn)
		d.closers = append(d.closers, set.Close)
		d.files = set
	}
	web, err := helper.HTTPClient(d.cfg.shuffleCA, d.cfg.Dial)
	if err != nil {
		return err
	}
	d.httpClient = web
	d.closers = append(d.closers, func() error { web.CloseIdleConnections(); return nil })
	d.helpers = &helperRunner{enforcer: d.cfg.Enforcer, argv: d.cfg.Helper, program: d.programs.helper, warn: warn, tools: helper.Tools{Files: d.files, HTTP: web}}
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
