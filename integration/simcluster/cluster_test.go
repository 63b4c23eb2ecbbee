package simcluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/internal/coordclient"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
)

// Times of a simulated cluster.
const (
	lease    = 5 * time.Second
	keepLogs = 2 * time.Second
	grace    = time.Second
	patience = 2 * time.Second // of clients of the coordinators: for a connection, and for an answer to a ping
)

// cluster is a simulated cluster inside a bubble of synctest.
type cluster struct {
	t        testing.TB
	began    time.Time
	dir      string
	net      *network
	world    *world
	servers  []*server
	machines []*machine
	client   droverv1connect.ClientServiceClient
	operator droverv1connect.OperatorServiceClient
	history  droverv1connect.HistoryServiceClient
	closers  []func()
	effects  map[uint64]bool // indices of the entries that made an event
	acked    uint64          // an index up to which the log is committed, at the end
	order    uint64          // of the events up to the end, as a hash: the same seed is to have the same

	plain     bool // the API of the coordinators is HTTP/1 without TLS, as on their local sockets, and so is raft
	scheduler string
	speculate bool
	ahead     time.Duration // how far a coordinator's clock may be ahead
	snapshots uint64        // how many entries of the log a snapshot comes after; 0: 128
	lost      lostOutputs
	election  time.Duration
	reports   time.Duration   // between two of a node; 0 is a fifth of the lease
	drained   map[string]bool // nodes that the plan drains
	lostDisk  bool            // a server has lost its disk
	wg        sync.WaitGroup  // what the user does
	quiet     chan struct{}   // has a value while awaitQuiet runs
	writes    writeTrigger    // of the stores of nodes
	restores  *restoration

	mu        sync.Mutex
	accepted  map[string]uint64 // job numbers by name
	suspended map[string]bool   // jobs whose tasks the user has suspended
	trace     strings.Builder
	bad       []string // violated properties
}

func newCluster(t testing.TB, seed uint64, dir string) *cluster {
	c := &cluster{t: t, began: time.Now(), dir: dir, net: newNetwork(seed), accepted: map[string]uint64{}, suspended: map[string]bool{}, drained: map[string]bool{}, effects: map[uint64]bool{}, lost: lostOutputs{reported: map[string]bool{}}, quiet: make(chan struct{}, 1)}
	c.world, c.restores = newWorld(c), newRestoration(c)
	return c
}

// log records what happens, for a failed simulation.
func (c *cluster) log(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	line := strings.ReplaceAll(fmt.Sprintf(format, args...), c.dir, "DIR")
	fmt.Fprintf(&c.trace, "%12s %04x %s\n", time.Since(c.began).Round(time.Microsecond), choices()>>48, line)
}

// historyHash returns a hash over everything that happened, and when.
func (c *cluster) historyHash() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := fnv.New64a()
	_, _ = io.WriteString(h, c.trace.String()) // never fails
	return h.Sum64()
}

// violated records that a property does not hold.
func (c *cluster) violated(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	c.log("VIOLATED %s", text)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bad = append(c.bad, text)
}

// logger returns the log of a party, which goes into the trace.
func (c *cluster) logger(party string, observe func(message string, attrs map[string]string)) *slog.Logger {
	return slog.New(&handler{c: c, party: party, observe: observe})
}

type handler struct {
	c       *cluster
	party   string
	attrs   []slog.Attr
	observe func(string, map[string]string)
}

func (h *handler) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

func (h *handler) Handle(_ context.Context, r slog.Record) error {
	all := map[string]string{}
	text := r.Message
	add := func(a slog.Attr) bool {
		all[a.Key] = a.Value.String()
		text += " " + a.Key + "=" + a.Value.String()
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	h.c.log("%s: %s", h.party, text)
	if h.observe != nil {
		h.observe(r.Message, all)
	}
	return nil
}

func (h *handler) WithAttrs(a []slog.Attr) slog.Handler {
	n := *h
	n.attrs = append(append([]slog.Attr(nil), h.attrs...), a...)
	return &n
}

func (h *handler) WithGroup(string) slog.Handler { return h }

// authority has the certificates of all simulations of this process, which have the same parties and begin at the
// same time.
var authority struct {
	sync.Mutex
	dir     string
	members map[string]*pki.Member // by name; nobody changes them, since no certificate is renewed or revoked
}

// issueAll issues the certificates of all parties with the same random bytes in every process, so that no seed's bytes
// are spent on them, and reads those of the members.
func issueAll(t *testing.T) {
	cryptotest.SetGlobalRandom(t, 0)
	c := &cluster{t: t}
	for i := range maxServers {
		c.member(pki.KindCoordinator, serverName(i))
	}
	for i := range maxMachines {
		c.member(pki.KindNode, machineName(i))
	}
	c.files(pki.KindUser, "root")
}

// files returns the files of a party's certificate, which is issued when it is asked for the first time.
func (c *cluster) files(kind pki.Kind, name string) pki.Files {
	authority.Lock()
	defer authority.Unlock()
	return c.filesLocked(kind, name)
}

func (c *cluster) filesLocked(kind pki.Kind, name string) pki.Files {
	if authority.dir == "" {
		dir, err := os.MkdirTemp("", "drover-sim-ca-")
		if err == nil {
			err = pki.CreateCA(dir, simulationStart)
		}
		if err != nil {
			c.t.Fatal(err)
		}
		authority.dir, authority.members = dir, map[string]*pki.Member{}
	}
	f := pki.Files{CA: filepath.Join(authority.dir, "ca.pem"), Cert: filepath.Join(authority.dir, name+".pem"), Key: filepath.Join(authority.dir, name+".key")}
	if _, err := os.Stat(f.Cert); err == nil {
		return f
	}
	if err := pki.IssueCert(authority.dir, pki.CertRequest{Kind: kind, Name: name, Hosts: []string{name}}, simulationStart); err != nil {
		c.t.Fatal(err)
	}
	return f
}

// member returns a member of the cluster, whose files are read when it is asked for the first time.
func (c *cluster) member(kind pki.Kind, name string) *pki.Member {
	authority.Lock()
	defer authority.Unlock()
	f := c.filesLocked(kind, name)
	if m := authority.members[name]; m != nil {
		return m
	}
	m, err := f.Open(kind)
	if err != nil {
		c.t.Fatal(err)
	}
	authority.members[name] = m
	return m
}

// server is a coordinator, and its runs.
type server struct {
	c      *cluster
	id     string
	member *pki.Member

	// Of these step.mu is held for moments, and never while virtual time passes: the plan and what a user does to a job
	// both end and start servers.
	dir    string // of its state; a crash moves it to a copy
	copies int
	disk   *unsyncedWrites
	h      *host // of the present run; nil while it does not run
	cancel context.CancelFunc
	done   chan struct{}
	runs   []chan struct{} // done of all runs
	lost   bool            // until it is restored, or joins one that is, nothing starts it
	step   stepCrash
	stall  stall
	torn   tornWrite
	full   atomic.Int64 // 1: writes of its log fail; 2: they are made, and fail
	filled atomic.Bool  // whether they ever did
	clock  atomic.Int64 // how far its clock is ahead, ns

	damaged atomic.Bool // a file of its disk is
	refused atomic.Bool // it has refused to start since
}

func (c *cluster) addServers(n int) {
	for i := range n {
		id := serverName(i)
		c.servers = append(c.servers, &server{c: c, id: id, dir: filepath.Join(c.dir, "state-"+id), member: c.member(pki.KindCoordinator, id)})
	}
	for _, s := range c.servers {
		s.start()
		synctest.Wait() // one after the other, so that they always begin in this order
	}
	h := c.net.host("user")
	client, base, retry := c.clientOf(h, pki.KindUser, "root")
	c.client = droverv1connect.NewClientServiceClient(client, base, retry)
	c.operator = droverv1connect.NewOperatorServiceClient(client, base, retry)
	c.history = droverv1connect.NewHistoryServiceClient(client, base, retry)
}

// start starts a run on the server's folder, if there is none.
func (s *server) start() {
	c := s.c
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	s.step.mu.Lock()
	if s.h != nil || s.lost {
		s.step.mu.Unlock()
		cancel()
		return
	}
	h := c.net.host(s.id)
	s.h, s.cancel, s.done, s.disk, s.runs = h, cancel, done, s.disk.reopened(), append(s.runs, done)
	dir, disk, full := s.dir, s.disk, diskFault(&s.full)
	s.step.mu.Unlock()
	cfg := coordinator.Config{Now: func() time.Time { return time.Now().Add(time.Duration(s.clock.Load())) }, Dir: dir, ID: s.id, APIAddress: c.apiAddress(s.id), Certificate: s.member, Operators: []string{"user/root"},
		Writing: func(path string, synced bool) { s.torn.writing(path); disk.writing(path, synced) }, Lease: lease, ReportInterval: c.reports, KeepLogs: keepLogs, CertificatesEvery: 10 * time.Minute, SnapshotEntries: cmp.Or(c.snapshots, 128), DiskReserve: -1, AuditLog: "none", Crash: s.crashHook(h, cancel), LogFault: func(written bool) error { return errors.Join(s.torn.fault(written), full(written)) }, Scheduler: c.scheduler, Election: c.election,
		Logger: c.logger(s.id, func(message string, attrs map[string]string) {
			switch {
			case message == "leading":
				c.world.leads(s.id, attrs["term"])
			case message == "dropped from a decision":
				c.checkDropped(s.id, attrs["why"])
			case strings.HasPrefix(message, "lost a node"):
				c.machine(attrs["node"]).lost(s.id)
			}
		})}
	if c.speculate {
		cfg.SchedulerParams = map[string]string{"speculate": "1.2"}
	}
	if c.plain {
		cfg.Local = h.listen("2")
	} else {
		cfg.Remote = h.listen("2")
	}
	if len(c.servers) > 1 {
		cfg.PeerListener, cfg.PeerAddress, cfg.PeerDial, cfg.Bootstrap = h.listen("1"), s.id+":1", h.dial, true
		for _, o := range c.servers {
			cfg.Servers = append(cfg.Servers, replica.Peer{ID: o.id, Address: o.id + ":1"})
		}
		if c.plain {
			cfg.RaftNetwork = newPlainRaft(h, cfg.PeerAddress)
		}
	}
	c.log("%s starts", s.id)
	go func() {
		defer close(done)
		err := coordinator.Run(ctx, cfg)
		c.log("%s ended: %v", s.id, err)
		full := s.filled.Load() && err != nil && strings.Contains(err.Error(), syscall.ENOSPC.Error()) // raft does not wrap it
		torn := err != nil && strings.Contains(err.Error(), errTorn.Error())
		refuses := (errors.Is(err, fault.Corrupt) || errors.Is(err, fault.Unsupported)) && s.damaged.Load() // Unsupported: in its version
		if refuses {
			s.refused.Store(true)
		}
		if ctx.Err() == nil && !errors.Is(err, replica.ErrCrashed) && !full && !torn && !refuses {
			c.violated("coordinator %s ended by itself with: %v", s.id, err)
		}
	}()
}

// crash ends the server's run: nothing that it says or writes after this instant
// counts. All goroutines are blocked when the image of its disk is taken, so no
// write is half done.
func (s *server) crash(silent bool) {
	if !s.isUp() {
		return
	}
	s.c.awaitQuiet()
	s.step.mu.Lock()
	s.copies++
	image := filepath.Join(s.c.dir, fmt.Sprintf("state-%s-%d", s.id, s.copies))
	h, cancel, dir, disk := s.h, s.cancel, s.dir, s.disk
	s.step.mu.Unlock()
	if err := copyFolder(dir, image); err != nil {
		s.c.t.Fatal(err)
	}
	if silent {
		if err := disk.losePower(filepath.Join(image, "raft")); err != nil {
			s.c.t.Fatal(err)
		}
	}
	s.c.log("crash of %s", s.id)
	s.c.net.kill(h, silent)
	cancel()
	s.step.mu.Lock()
	s.dir, s.h = image, nil
	s.step.mu.Unlock()
}

// isUp reports whether the server runs and has not fallen.
func (s *server) isUp() bool {
	s.step.mu.Lock()
	defer s.step.mu.Unlock()
	return s.h != nil && !s.step.fell
}

// folder returns the folder of the server's state.
func (s *server) folder() string {
	s.step.mu.Lock()
	defer s.step.mu.Unlock()
	return s.dir
}

// replaceFolder has the next run use another folder, and returns the one before.
func (s *server) replaceFolder(dir string) (before string) {
	s.step.mu.Lock()
	defer s.step.mu.Unlock()
	before, s.dir = s.dir, dir
	return before
}

// stop ends the server's run in an orderly way.
func (s *server) stop() {
	s.step.mu.Lock()
	if s.h != nil {
		s.cancel()
		s.h = nil
	}
	runs := s.runs
	s.step.mu.Unlock()
	for _, done := range runs {
		<-done
	}
}

func copyFolder(from, to string) error {
	return filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		return copyFile(path, filepath.Join(to, rel))
	})
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// apiAddress returns the URL of a coordinator's API.
func (c *cluster) apiAddress(id string) string {
	if c.plain {
		return "http://" + id + ":2"
	}
	return "https://" + id + ":2"
}

// clientOf returns an HTTP client of all coordinators.
func (c *cluster) clientOf(h *host, kind pki.Kind, name string) (*http.Client, string, connect.ClientOption) {
	var conf *tls.Config
	if !c.plain {
		var err error
		if conf, err = c.files(kind, name).ClientConfig(pki.KindCoordinator); err != nil {
			c.t.Fatal(err)
		}
	}
	var addresses []string
	for _, s := range c.servers {
		addresses = append(addresses, c.apiAddress(s.id))
	}
	t, err := coordclient.NewTransport(addresses, func(address string) (*http.Transport, string, error) {
		p := new(http.Protocols)
		p.SetHTTP1(c.plain)
		p.SetHTTP2(!c.plain)
		return &http.Transport{Protocols: p, TLSClientConfig: conf.Clone(), TLSHandshakeTimeout: patience, HTTP2: &http.HTTP2Config{SendPingTimeout: patience, PingTimeout: patience},
			DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
				ctx, cancel := context.WithTimeout(ctx, patience)
				defer cancel()
				to, err := h.dial(ctx, address)
				if err == nil && c.plain {
					to.(*conn).keepAlive()
				}
				return to, err
			}}, address, nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.closers = append(c.closers, t.CloseIdleConnections)
	return &http.Client{Transport: t}, coordclient.Base, connect.WithInterceptors(coordclient.NewRetrier(t))
}

// close ends everything that the cluster started.
func (c *cluster) close() {
	for _, m := range c.machines {
		m.stop()
	}
	for _, s := range c.servers {
		s.stop()
	}
	for _, f := range c.closers {
		f()
	}
	for _, m := range c.machines {
		m.engine.Close()
		close(m.off)
	}
	c.net.end()
	time.Sleep(time.Minute) // what is left ends by its own limits
}
