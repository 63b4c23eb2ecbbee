package coordinator

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/peer"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/jobspec"
)

// upload stores a file and returns its digest.
func (s *testServers) upload(text string) (digest string) {
	s.t.Helper()
	s.waitUntil("the file is stored", func() (ok bool) {
		if digest, ok = putFile(s.ctx, s.client, text); !ok {
			s.servers() // a call that finds the leader, which an upload does not look for
		}
		return ok
	})
	return digest
}

// putFile uploads a file once, returns its digest, and reports whether it was stored.
func putFile(ctx context.Context, c droverv1connect.ClientServiceClient, text string) (digest string, ok bool) {
	sum := sha256.Sum256([]byte(text))
	digest = "sha256:" + hex.EncodeToString(sum[:])
	st := c.PutBlob(ctx)
	if err := st.Send(&droverv1.PutBlobRequest{Digest: digest, Size: int64(len(text)), Data: []byte(text)}); err != nil {
		_, _ = st.CloseAndReceive()
		return digest, false
	}
	_, err := st.CloseAndReceive()
	return digest, err == nil
}

// hasFile reports whether a server has the file on its disk.
func (s *testServers) hasFile(id, digest string) bool {
	h := strings.TrimPrefix(digest, "sha256:")
	_, err := os.Stat(s.folder(id) + "/blobs/sha256/" + h[:2] + "/" + h)
	return err == nil
}

func jobWithFile(name, digest string, size int64) *jobspec.Job {
	j := groupJob(name, 1)
	j.Stages[0].Files = []jobspec.File{{Name: "f", Source: "f", Digest: digest, Size: size}}
	return j
}

func TestFilesSurviveTheLossOfAServerWithItsDisk(t *testing.T) {
	t.Parallel()
	s := newTestServers(t, 3, nil)
	s.addNode("n1", coordtest.Hang)
	s.waitForNodes()
	const text = "what the job needs"
	digest := s.upload(text)
	have := 0
	for _, id := range s.ids {
		if s.hasFile(id, digest) {
			have++
		}
	}
	if have < 2 {
		t.Errorf("%d servers have an acknowledged file, want a majority", have)
	}
	s.submit(jobWithFile("j", digest, int64(len(text))))
	lost := s.awaitLeader()
	s.kill(lost)
	if err := os.RemoveAll(s.folder(lost)); err != nil {
		t.Fatal(err)
	}
	n1 := droverv1connect.NewNodeServiceClient(s.as("node/n1"))
	read := func() string {
		st, err := n1.GetBlob(t.Context(), connect.NewRequest(&droverv1.GetBlobRequest{Digest: digest}))
		if err != nil {
			return ""
		}
		defer st.Close()
		got := ""
		for st.Receive() {
			got += string(st.Msg().Data)
		}
		return got
	}
	s.waitUntil("the next leader has the file", func() bool { return read() == text })
	s.waitUntil("the next leader has the job", func() bool { return s.job("j") != nil })

	// The lost server comes back with an empty disk, and gets log and file before it votes.
	s.start(lost, func(c *Config) { c.Bootstrap, c.Servers = true, s.peers(s.ids...) })
	s.awaitVoters(s.ids...)
	if !s.hasFile(lost, digest) {
		t.Errorf("%s votes without the file", lost)
	}
	s.waitUntil("the job is there once "+lost+" votes again", func() bool { return s.job("j") != nil })

	// A file that a leader's disk lost is fetched from the others.
	leader := s.awaitLeader()
	if err := os.RemoveAll(s.folder(leader) + "/blobs/sha256"); err != nil {
		t.Fatal(err)
	}
	s.waitUntil("it is sent again", func() bool { return read() == text })
}

// startOpening starts a coordinator that goes no further than to open its log. stop stops it.
func (s *testServers) startOpening(id string) (stop func()) {
	s.t.Helper()
	cfg := s.config(id, nil)
	if err := cfg.setDefaults(); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := newCore(ctx, cfg)
	if err := c.openStores(); err != nil {
		s.t.Fatal(err)
	}
	openPeerPort(ctx, c)
	stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(c.peers.close(), c.auditor.close(), c.past.Close(), c.history.Close(), cfg.Remote.Close()); err != nil {
			s.t.Errorf("%s, which opens its log: %v", id, err)
		}
	})
	s.t.Cleanup(stop)
	return stop
}

// After a loss of power two servers are still opening their logs when the third one, which has lost its disk,
// asks whether it may begin a new cluster. It would vote for a log that lacks acknowledged entries.
func TestServersThatOpenTheirLogsAreNotEmpty(t *testing.T) {
	t.Parallel()
	s := newTestServers(t, 3, nil)
	s.submit(groupJob("j", 1))
	for _, id := range s.ids {
		s.kill(id)
	}
	if err := os.RemoveAll(s.folder("c3")); err != nil {
		t.Fatal(err)
	}
	stop1, stop2 := s.startOpening("c1"), s.startOpening("c2")
	var mu sync.Mutex
	var log bytes.Buffer
	s.start("c3", func(c *Config) {
		c.Bootstrap, c.Servers = true, s.peers(s.ids...)
		c.Logger = slog.New(slog.NewTextHandler(lockedWriter{&mu, &log}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	other := newDistantCoordinator(t, s, "c4", nil)
	s.waitUntil("it waits for the two", func() bool {
		res, err := other.Client("c3:1").Describe(t.Context(), connect.NewRequest(&droverv1.DescribeRequest{}))
		if err == nil && len(res.Msg.Servers) > 0 {
			t.Fatalf("it has begun a cluster of %v", res.Msg.Servers)
		}
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(log.String(), `c1\" is opening its log; c2:1 does not answer: coordinator \"c2\" is opening its log`)
	})
	stop1()
	stop2()
	s.start("c1", nil)
	s.start("c2", nil)
	s.awaitVoters(s.ids...)
	if s.job("j") == nil {
		t.Error("the job is lost")
	}
}

// An operator who adds a server again while it opens its log does not take its vote: it has forgotten nothing.
func TestAServerThatOpensItsLogKeepsItsVote(t *testing.T) {
	t.Parallel()
	s := newTestServers(t, 3, nil)
	leader := s.awaitLeader()
	id := s.ids[(slices.Index(s.ids, leader)+1)%3]
	s.kill(id)
	stop := s.startOpening(id)
	opening := fmt.Sprintf("coordinator %q is opening its log", id)
	s.waitUntil("it says that it is opening its log", func() bool {
		c := droverv1connect.NewOperatorServiceClient(s.only(s.awaitLeader()))
		_, err := c.AddServer(t.Context(), connect.NewRequest(&droverv1.AddServerRequest{Id: id, Address: id + ":1"}))
		if err == nil {
			t.Fatal("it was added")
		}
		return strings.Contains(err.Error(), opening)
	})
	stop()
	s.start(id, nil)
	s.awaitVoters(s.ids...)
}

// The image of a machine is put back, with an old copy of a server's folder: the others know that it lacks what it has
// acknowledged, so it does not start, and is of use again with an empty folder.
func TestAServerOnAnOldCopyOfItsFolderDoesNotStart(t *testing.T) {
	t.Parallel()
	s := newTestServers(t, 3, nil)
	s.submit(groupJob("before", 1))
	id := s.ids[(slices.Index(s.ids, s.awaitLeader())+1)%3]
	s.kill(id)
	old := s.folder(id) + "-old"
	if err := os.CopyFS(old, os.DirFS(s.folder(id))); err != nil {
		t.Fatal(err)
	}
	s.start(id, nil)
	s.awaitVoters(s.ids...)
	for i := range 3 {
		s.submit(groupJob(fmt.Sprint("after", i), 1))
	}
	s.waitUntil("it has all", func() bool {
		least, most := uint64(math.MaxUint64), uint64(0)
		for _, x := range s.servers().GetServers() {
			least, most = min(least, x.GetAppliedIndex()), max(most, x.GetAppliedIndex())
		}
		return least == most
	})
	s.kill(id)
	if err := errors.Join(os.RemoveAll(s.folder(id)), os.Rename(old, s.folder(id))); err != nil {
		t.Fatal(err)
	}
	s.start(id, nil)
	select {
	case err := <-s.running[id].done:
		if !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "old copy") || !strings.Contains(err.Error(), s.folder(id)) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(serversLimit):
		t.Error("it has started")
	}
	s.running[id].cancel()
	delete(s.running, id)
	if err := os.RemoveAll(s.folder(id)); err != nil {
		t.Fatal(err)
	}
	s.start(id, func(c *Config) { c.Servers = s.peers(s.ids...) })
	s.awaitVoters(s.ids...)
}

// A server that was added gets a snapshot from before, which does not list it: it is no
// removal, and the server stays.
func TestMembershipEndsOnlyOnceItBegan(t *testing.T) {
	without, with := []raft.Server{{ID: "c1"}}, []raft.Server{{ID: "c1"}, {ID: "c3"}}
	var m membership
	for i, step := range []struct {
		servers []raft.Server
		ends    bool
	}{{nil, false}, {without, false}, {with, false}, {with, false}, {without, true}, {without, true}, {with, false}} {
		if got := m.ends(step.servers, "c3"); got != step.ends {
			t.Errorf("step %d: ends: %v, want %v", i, got, step.ends)
		}
	}
}

func TestClusterGrowsFromOneAndShrinks(t *testing.T) {
	t.Parallel()
	s := prepareServers(t, 3, func(c *Config) { c.SnapshotEntries = 8 })
	s.start("c1", nil)
	s.awaitLeader()
	s.addNode("n1", coordtest.Succeed)
	s.waitForNodes()
	for i := range 10 { // the log is cut: who joins needs a snapshot
		s.submit(groupJob(fmt.Sprint("j", i), 1))
		s.waitForEnd(fmt.Sprint("j", i), succeeded)
	}
	digest := s.upload("from before the others came")
	s.start("c2", func(c *Config) { c.Join = []string{"c1:1"} })
	s.start("c3", func(c *Config) { c.Join = []string{"c2:1", "c1:1"} })
	s.awaitVoters("c1", "c2", "c3")
	for _, id := range s.ids {
		if !s.hasFile(id, digest) {
			t.Errorf("%s votes without the file", id)
		}
	}
	if _, err := s.operator.RemoveServer(t.Context(), connect.NewRequest(&droverv1.RemoveServerRequest{Id: "c1"})); err != nil { // the leader
		t.Fatal(err)
	}
	s.awaitVoters("c2", "c3")
	r := s.running["c1"]
	select {
	case err := <-r.done:
		if err == nil || !strings.Contains(err.Error(), "was removed from the cluster") {
			t.Errorf("the removed server ended with %v", err)
		}
	case <-time.After(serversLimit):
		t.Error("the removed server goes on")
	}
	r.cancel()
	delete(s.running, "c1")
	s.submit(groupJob("last", 1))
	s.waitForEnd("last", succeeded)
	s.waitForEnd("j0", succeeded)

	// The two that are left need each other.
	leader := s.awaitLeader()
	for _, id := range []string{"c2", "c3"} {
		if id != leader {
			s.kill(id)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if _, err := s.operator.RemoveServer(ctx, connect.NewRequest(&droverv1.RemoveServerRequest{Id: leader})); err == nil {
				t.Error("the last server that answers was removed")
			}
		}
	}
}

// lead has a server lead.
func (s *testServers) lead(id string) {
	s.t.Helper()
	s.waitUntil(id+" leads", func() bool {
		ctx, cancel := context.WithTimeout(s.ctx, waitLimit)
		defer cancel()
		res, err := s.operator.TransferLeadership(ctx, connect.NewRequest(&droverv1.TransferLeadershipRequest{Id: id}))
		return err == nil && res.Msg.Leader == id
	})
}

// dropsBefore reports whether the log of a server has dropped the entry of an index. It stops the server, and starts it again.
func (s *testServers) dropsBefore(id string, index uint64) bool {
	s.t.Helper()
	s.kill(id)
	d, err := replica.Inspect(filepath.Join(s.folder(id), "raft"))
	if err != nil || len(d.What) > 0 {
		s.t.Fatal(d, err)
	}
	s.start(id, nil)
	s.awaitLeader()
	return d.First > index
}

// TestAServerThatWasAwayForLongLeadsWithTheSameJobs: while one of three servers is stopped, so much is written that the
// others have dropped the entries that it lacks. Back again it gets a snapshot in their place, which replaces the facts
// that it had, and the files. It then leads with the same jobs as each of the others, and goes on without any one of them.
func TestAServerThatWasAwayForLongLeadsWithTheSameJobs(t *testing.T) {
	t.Parallel()
	s := newTestServers(t, 3, func(c *Config) { c.SnapshotEntries = 8 })
	s.addNode("n1", coordtest.Succeed)
	s.waitForNodes()
	jobs := 0
	runJobs := func(n int) {
		for range n {
			name := fmt.Sprint("j", jobs)
			jobs++
			s.submit(groupJob(name, 2))
			s.waitForEnd(name, succeeded)
		}
	}
	runJobs(2)
	const away = "c3"
	s.lead(away) // it is lost while it leads
	s.kill(away)
	had, err := replica.Inspect(filepath.Join(s.folder(away), "raft"))
	if err != nil || len(had.What) > 0 {
		t.Fatal(had, err)
	}
	digest := s.upload("from when it was away")
	runJobs(8)
	for _, id := range []string{"c1", "c2"} {
		s.waitUntil(id+" drops what "+away+" lacks", func() bool {
			runJobs(1)
			return s.dropsBefore(id, had.Kept()+1)
		})
	}
	s.start(away, nil)
	s.awaitVoters(s.ids...)
	s.waitUntil("it has the file", func() bool { return s.hasFile(away, digest) })

	history := droverv1connect.NewHistoryServiceClient(s.as("user/root"))
	var want []*droverv1.JobSummary
	for _, id := range []string{"c1", "c2", away} {
		s.lead(id)
		res, err := s.client.ListJobs(t.Context(), connect.NewRequest(&droverv1.ListJobsRequest{All: true}))
		past, perr := history.ListPastJobs(t.Context(), connect.NewRequest(&droverv1.ListPastJobsRequest{}))
		if err := errors.Join(err, perr); err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = res.Msg.Jobs
		}
		if len(want) != jobs || !slices.EqualFunc(res.Msg.Jobs, want, func(a, b *droverv1.JobSummary) bool { return proto.Equal(a, b) }) {
			t.Errorf("of %d jobs %s lists\n%v\nand c1\n%v", jobs, id, res.Msg.Jobs, want)
		}
		if n := len(past.Msg.Jobs); n != jobs {
			t.Errorf("of %d jobs %s has %d in its history", jobs, id, n)
		}
	}
	for _, id := range []string{"c1", "c2"} {
		s.kill(id)
		runJobs(1)
		s.start(id, nil)
		s.awaitVoters(s.ids...)
	}
}

func TestTransferMovesTheLeadWithJobsRunning(t *testing.T) {
	t.Parallel()
	s := newTestServers(t, 3, nil)
	n1 := s.addNode("n1", coordtest.Hang)
	s.waitForNodes()
	s.submit(groupJob("long", 3))
	s.waitUntil("its tasks run", func() bool { return len(n1.Wanted()) == 3 })
	for _, id := range append(s.ids, s.ids...) {
		s.lead(id)
		if got := s.job("long"); got == nil || got.Job.State != droverv1.JobState_JOB_STATE_RUNNING {
			t.Errorf("under %s: %v", id, got)
		}
	}
	n1.SetBehaviour(coordtest.Succeed)
	s.waitForEnd("long", succeeded)
	if runs, most := n1.StartCounts(); runs != 3 || most != 1 {
		t.Errorf("%d runs were started, one of them %d times", runs, most)
	}
}

func TestOneOfThreeSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	s := newTestServers(t, 3, nil)
	s.submit(groupJob("j", 1))
	leader := s.awaitLeader()
	for _, id := range s.ids {
		if id != leader {
			s.kill(id)
		}
	}
	c := droverv1connect.NewClientServiceClient(s.only(leader))
	s.waitUntil("it says so", func() bool {
		_, err := c.ListJobs(t.Context(), connect.NewRequest(&droverv1.ListJobsRequest{}))
		return err != nil && strings.Contains(err.Error(), "1 of 3 answer") && strings.Contains(err.Error(), "drover operator repair -alone "+leader)
	})
	req := connect.NewRequest(&droverv1.ListJobsRequest{})
	req.Header().Set("Drover-Stale", "1")
	if res, err := c.ListJobs(t.Context(), req); err != nil || len(res.Msg.Jobs) != 1 {
		t.Errorf("a stale read: %v %v", res, err)
	}
	others := slices.DeleteFunc(slices.Clone(s.ids), func(id string) bool { return id == leader })
	s.start(others[0], func(c *Config) { // its disk was lost: it answers, and cannot vote
		c.Dir, c.Servers = t.TempDir(), s.peers(s.ids...)
	})
	s.waitUntil("it says that an empty folder is of no help", func() bool {
		_, err := c.ListJobs(t.Context(), connect.NewRequest(&droverv1.ListJobsRequest{}))
		return err != nil && strings.Contains(err.Error(), "1 of 3 answer") && strings.Contains(err.Error(), "the data folder of "+others[0]+" at ") &&
			strings.Contains(err.Error(), "; start "+others[1]+" at ")
	})
	s.start(others[1], nil)
	s.submit(groupJob("k", 1))
	for _, x := range s.servers().GetServers() {
		if x.GetError() == "" && x.GetCertificateUntilMs() < time.Now().UnixMilli() {
			t.Errorf("the end of the certificate of %s: %d", x.GetId(), x.GetCertificateUntilMs())
		}
	}
}

// TestCutOffLeaderChangesNothing cuts a leader off, fully and in one direction,
// while it has work in hand.
func TestCutOffLeaderChangesNothing(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(s *testServers, id, other string){
		"both ways": func(s *testServers, id, other string) { s.net.Isolate(id, other) },
		"out":       func(s *testServers, id, other string) { s.net.Cut(id, other) },
		"in":        func(s *testServers, id, other string) { s.net.Cut(other, id) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTestServers(t, 3, nil)
			n1 := s.addNode("n1", coordtest.Succeed)
			s.waitForNodes()
			old := s.awaitLeader()
			c := droverv1connect.NewClientServiceClient(s.only(old))
			for _, id := range s.ids {
				if id != old {
					cut(s, old, id)
				}
			}
			s.waitUntil("another leads", func() bool { // clients still reach the old one
				_, err := c.ListJobs(t.Context(), connect.NewRequest(&droverv1.ListJobsRequest{}))
				for _, x := range s.servers().GetServers() {
					if x.Leader && x.Id != old {
						return err != nil
					}
				}
				return false
			})
			s.submit(groupJob("j", 5))
			s.waitForEnd("j", succeeded)
			if runs, most := n1.StartCounts(); runs != 5 || most != 1 {
				t.Errorf("%d runs were started, one of them %d times", runs, most)
			}
			s.net.Mend()
			s.awaitVoters(s.ids...)
			s.waitForEnd("j", succeeded)
		})
	}
}

func TestOnlyCoordinatorsReachThePeerPort(t *testing.T) {
	t.Parallel()
	s := newTestServers(t, 1, nil)
	for name, want := range map[string]bool{"user/eve": false, "node/n7": false, "coordinator/c9": true} {
		kind, short, _ := strings.Cut(name, "/")
		files := s.files(pki.CertRequest{Kind: pki.Kind(kind), Name: short, Hosts: []string{short}})
		m, err := files.Open("")
		if err != nil {
			t.Fatal(err)
		}
		l, err := s.net.Listen(short + ":1")
		if err != nil {
			t.Fatal(err)
		}
		n := peer.Listen(peer.Config{Listener: l, Member: m, Address: short + ":1", Dial: s.net.Dialer(short)})
		n.Start()
		ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
		_, err = n.Client("c1:1").Describe(ctx, connect.NewRequest(&droverv1.DescribeRequest{}))
		if (err == nil) != want {
			t.Errorf("%s calls PeerService: %v", name, err)
		}
		transport := raft.NewNetworkTransport(n, 1, waitLimit, io.Discard)
		old := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(short), Addr: []byte(short + ":1")}} // of term 0, which every server declines
		err = transport.AppendEntries("c1", "c1:1", old, &raft.AppendEntriesResponse{})
		if (err == nil) != want {
			t.Errorf("%s speaks raft: %v", name, err)
		}
		// A coordinator may add itself under its own name only.
		if want {
			_, err = n.Client("c1:1").Join(ctx, connect.NewRequest(&droverv1.JoinRequest{Id: "c2", Address: "c9:1"}))
			if connect.CodeOf(err) != connect.CodePermissionDenied {
				t.Errorf("%s joins as c2: %v", name, err)
			}
		}
		cancel()
		if err := transport.Close(); err != nil { // and the network
			t.Error(err)
		}
	}
}
