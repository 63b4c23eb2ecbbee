package coordinator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/internal/coordclient"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/jobspec"
)

// electionForTests is long enough for a loaded machine, short enough to fail over
// often.
const electionForTests = 700 * time.Millisecond

// serversLimit bounds a wait for several coordinators, on any machine.
const serversLimit = 90 * time.Second

// testServers is a cluster of real coordinators over TLS, with folders of their
// own, and simulated nodes. The harness of one coordinator gives it a client.
type testServers struct {
	*testCluster
	net      *coordtest.Network
	ids      []string
	running  map[string]*testServer
	change   func(*Config)
	files    func(pki.CertRequest) pki.Files
	operator droverv1connect.OperatorServiceClient
}

// testServer is one run of a coordinator.
type testServer struct {
	cancel context.CancelFunc
	done   chan error
}

// newTestServers prepares n coordinators and starts them as a new cluster.
func newTestServers(t testing.TB, n int, change func(*Config)) *testServers {
	t.Helper()
	s := prepareServers(t, n, change)
	for _, id := range s.ids {
		s.start(id, func(c *Config) { c.Bootstrap, c.Servers = true, s.peers(s.ids...) })
	}
	s.awaitVoters(s.ids...) // a test may stop one at once
	return s
}

func prepareServers(t testing.TB, n int, change func(*Config)) *testServers {
	t.Helper()
	dir := t.TempDir()
	if err := pki.CreateCA(dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	s := &testServers{testCluster: &testCluster{t: t, ctx: t.Context(), dir: dir, fs: coordtest.NewFS(), patience: serversLimit}, net: coordtest.NewNetwork(), running: map[string]*testServer{}, change: change}
	s.files = func(r pki.CertRequest) pki.Files {
		t.Helper()
		if err := pki.IssueCert(dir, r, time.Now()); err != nil {
			t.Fatal(err)
		}
		return pki.Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, r.Name+".pem"), Key: filepath.Join(dir, r.Name+".key")}
	}
	for i := range n {
		s.ids = append(s.ids, fmt.Sprint("c", i+1))
		s.files(pki.CertRequest{Kind: pki.KindCoordinator, Name: s.ids[i], Hosts: []string{s.ids[i]}})
	}
	h, base, retry := s.as("user/root")
	s.client, s.operator = droverv1connect.NewClientServiceClient(h, base, retry), droverv1connect.NewOperatorServiceClient(h, base, retry)
	t.Cleanup(func() {
		s.net.Mend()
		for id := range s.running {
			s.stop(id)
		}
	})
	return s
}

// peers returns the peer addresses of servers.
func (s *testServers) peers(ids ...string) (out []replica.Peer) {
	for _, id := range ids {
		out = append(out, replica.Peer{ID: id, Address: id + ":1"})
	}
	return out
}

// config returns the configuration of a coordinator on its folder, with open listeners.
func (s *testServers) config(id string, with func(*Config)) Config {
	s.t.Helper()
	api, err := s.net.Listen(id + ":2")
	if err != nil {
		s.t.Fatal(err)
	}
	raft, err := s.net.Listen(id + ":1")
	if err != nil {
		s.t.Fatal(err)
	}
	own, err := pki.Files{CA: filepath.Join(s.dir, "ca.pem"), Cert: filepath.Join(s.dir, id+".pem"), Key: filepath.Join(s.dir, id+".key")}.Open(pki.KindCoordinator)
	if err != nil {
		s.t.Fatal(err)
	}
	cfg := Config{Dir: s.folder(id), ID: id, Remote: api, PeerListener: raft, PeerAddress: id + ":1", APIAddress: "https://" + id + ":2", Certificate: own, Operators: []string{"user/root"},
		PeerDial: s.net.Dialer(id), Election: electionForTests, NoSync: true, ReportInterval: 50 * time.Millisecond, Lease: 5 * time.Minute, CertificatesEvery: time.Second}
	if testing.Verbose() {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo})).With("server", id)
	}
	if s.change != nil {
		s.change(&cfg)
	}
	if with != nil {
		with(&cfg)
	}
	return cfg
}

// start starts a coordinator on its folder.
func (s *testServers) start(id string, with func(*Config)) {
	s.t.Helper()
	cfg := s.config(id, with)
	ctx, cancel := context.WithCancel(context.Background())
	r := &testServer{cancel: cancel, done: make(chan error, 1)}
	s.running[id] = r
	go func() { r.done <- Run(ctx, cfg) }()
}

func (s *testServers) folder(id string) string { return filepath.Join(s.dir, "state-"+id) }

// stop ends a coordinator, and returns why it ended.
func (s *testServers) stop(id string) error {
	s.t.Helper()
	r := s.running[id]
	if r == nil {
		return nil
	}
	delete(s.running, id)
	r.cancel()
	select {
	case err := <-r.done:
		return err
	case <-time.After(serversLimit):
		var b strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&b, 1)
		s.t.Errorf("coordinator %s does not stop:\n%s", id, &b)
		return nil
	}
}

// kill ends a coordinator whose last words nobody hears.
func (s *testServers) kill(id string) {
	s.t.Helper()
	s.net.Isolate(id, append([]string{"user", "n1", "n2", "n3"}, s.ids...)...)
	if err := s.stop(id); err != nil {
		s.t.Errorf("coordinator %s ended with: %v", id, err)
	}
	s.net.Mend()
}

// as returns a client of all servers with the certificate of a name. Its party on
// the network is "user" or the node's name.
func (s *testServers) as(name string) (*http.Client, string, connect.ClientOption) {
	kind, short, _ := strings.Cut(name, "/")
	conf, err := s.files(pki.CertRequest{Kind: pki.Kind(kind), Name: short, Hosts: []string{short}}).ClientConfig(pki.KindCoordinator)
	if err != nil {
		s.t.Fatal(err)
	}
	party := "user"
	if kind == "node" {
		party = short
	}
	var addresses []string
	for _, id := range s.ids {
		addresses = append(addresses, "https://"+id+":2")
	}
	t := s.transport(party, conf, addresses...)
	return &http.Client{Transport: t}, coordclient.Base, connect.WithInterceptors(coordclient.NewRetrier(t))
}

func (s *testServers) transport(party string, conf *tls.Config, addresses ...string) *coordclient.Transport {
	dial := s.net.Dialer(party)
	t, err := coordclient.NewTransport(addresses, func(address string) (*http.Transport, string, error) {
		p := new(http.Protocols)
		p.SetHTTP2(true)
		return &http.Transport{Protocols: p, TLSClientConfig: conf.Clone(), TLSHandshakeTimeout: 2 * time.Second, HTTP2: &http.HTTP2Config{SendPingTimeout: time.Second, PingTimeout: time.Second},
			DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
				ctx, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				return dial(ctx, address)
			}}, address, nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(t.CloseIdleConnections)
	return t
}

// only returns a client of one server, which follows nobody.
func (s *testServers) only(id string) (*http.Client, string) {
	conf, err := pki.Files{CA: filepath.Join(s.dir, "ca.pem"), Cert: filepath.Join(s.dir, "root.pem"), Key: filepath.Join(s.dir, "root.key")}.ClientConfig(pki.KindCoordinator)
	if err != nil {
		s.t.Fatal(err)
	}
	return &http.Client{Transport: s.transport("user", conf, "https://"+id+":2")}, coordclient.Base
}

// addNode adds a simulated node that finds the leader by itself.
func (s *testServers) addNode(name string, how coordtest.Behaviour) *coordtest.Node {
	n := coordtest.New(droverv1connect.NewNodeServiceClient(s.as("node/"+name)), coordtest.Info(name), s.fs, how)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.Run(ctx)
	}()
	s.t.Cleanup(func() { cancel(); <-done })
	s.nodes = append(s.nodes, n)
	return n
}

// submit submits a job, which must be accepted, and returns its number. A leader that is lost or steps down
// meanwhile may have got the call: the job's name is its key, so that it can be repeated.
func (s *testServers) submit(j *jobspec.Job) (id uint64) {
	s.t.Helper()
	s.waitUntil("job "+j.Name+" is accepted", func() (ok bool) {
		var err error
		if id, err = s.trySubmit(j, j.Name); errors.Is(err, fault.Invalid) {
			s.t.Fatalf("submit %s: %v", j.Name, err)
		}
		return err == nil
	})
	return id
}

// servers returns the list of servers, nil while nobody leads.
func (s *testServers) servers() *droverv1.ListServersResponse {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit/2)
	defer cancel()
	res, err := s.operator.ListServers(ctx, connect.NewRequest(&droverv1.ListServersRequest{}))
	if err != nil {
		return nil
	}
	return res.Msg
}

// awaitLeader waits until a server leads that answers, and returns its name.
func (s *testServers) awaitLeader() (id string) {
	s.t.Helper()
	s.waitUntil("a coordinator leads", func() bool {
		for _, x := range s.servers().GetServers() {
			if x.Leader {
				id = x.Id
				return true
			}
		}
		return false
	})
	return id
}

// awaitVoters waits until the cluster has these voters and all of them answer.
func (s *testServers) awaitVoters(ids ...string) {
	s.t.Helper()
	s.waitUntil("these vote: "+strings.Join(ids, ", "), func() bool {
		n := 0
		for _, x := range s.servers().GetServers() {
			if !x.Voter || x.Error != "" || x.AppliedIndex == 0 { // one with an empty disk is still listed until it has entered
				return false
			}
			n++
		}
		return n == len(ids)
	})
}

func TestThreeCoordinatorsSurviveTheLossOfTheLeader(t *testing.T) {
	t.Parallel()
	s := newTestServers(t, 3, nil)
	s.addNode("n1", coordtest.Succeed)
	s.waitForNodes()
	s.submit(groupJob("before", 3))
	s.waitForEnd("before", succeeded)
	leader := s.awaitLeader()
	s.kill(leader)
	s.submit(groupJob("after", 3))
	s.waitForEnd("after", succeeded)
	s.waitForEnd("before", succeeded)
	if next := s.awaitLeader(); next == leader {
		t.Errorf("the dead %s leads", leader)
	}
	s.start(leader, nil)
	s.awaitVoters(s.ids...)
	for _, id := range s.ids {
		c := droverv1connect.NewClientServiceClient(s.only(id))
		s.waitUntil(id+" has the jobs", func() bool {
			req := connect.NewRequest(&droverv1.ListJobsRequest{All: true})
			req.Header().Set("Drover-Stale", "1")
			res, err := c.ListJobs(t.Context(), req)
			return err == nil && len(res.Msg.Jobs) == 2
		})
	}
}
