package coordinator

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/internal/pki"
)

// growingLog is a node's own server: of every attempt it has the same output, which a
// test appends to.
type growingLog struct {
	droverv1connect.UnimplementedTaskServiceHandler
	mu      sync.Mutex
	text    []byte
	grown   chan struct{}
	streams int // asked for so far
}

func (g *growingLog) append(line string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.text = append(g.text, line...)
	close(g.grown)
	g.grown = make(chan struct{})
}

func (g *growingLog) asked() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.streams
}

// Logs sends pieces that end anywhere, as a node does.
func (g *growingLog) Logs(ctx context.Context, r *connect.Request[droverv1.LogsRequest], s *connect.ServerStream[droverv1.LogsResponse]) error {
	at, _ := strconv.Atoi(r.Msg.GetAfter()) // "" is 0
	s.ResponseHeader().Set(wire.Position, strconv.Itoa(at))
	if err := s.Send(nil); err != nil {
		return err
	}
	g.mu.Lock()
	g.streams++
	g.mu.Unlock()
	for {
		g.mu.Lock()
		piece, grown := bytes.Clone(g.text[at:min(at+7, len(g.text))]), g.grown
		g.mu.Unlock()
		if at += len(piece); len(piece) > 0 {
			if err := s.Send(&droverv1.LogsResponse{Data: piece, Position: strconv.Itoa(at)}); err != nil {
				return err
			}
			continue
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// serve returns a node that has this server.
func (g *growingLog) serve(t *testing.T, own *pki.Member) *droverv1.NodeInfo {
	t.Helper()
	g.grown = make(chan struct{})
	p := new(http.Protocols)
	p.SetHTTP2(true)
	mux := http.NewServeMux()
	mux.Handle(droverv1connect.NewTaskServiceHandler(g))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: mux, Protocols: p, TLSConfig: own.ServerConfig(), ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.ServeTLS(l, "", "") // it ends with Close
	}()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	info := coordtest.Info("n1")
	info.Address = l.Addr().String()
	return info
}

// received is what a stream brought so far.
type received[T any] struct {
	mu  sync.Mutex
	all []T
	err error
}

func (r *received[T]) list() []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all
}

// collect reads a stream until ctx ends, and takes what is wanted of each message.
func collect[M, T any](t *testing.T, ctx context.Context, st *connect.ServerStreamForClient[M], err error, take func(*M) []T) *received[T] {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	r := &received[T]{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for st.Receive() {
			r.mu.Lock()
			r.all = append(r.all, take(st.Msg())...)
			r.mu.Unlock()
		}
		if ctx.Err() == nil {
			r.mu.Lock()
			r.err = st.Err()
			if r.err == nil {
				r.err = fmt.Errorf("the stream ended without an error")
			}
			r.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		<-done
		_ = st.Close()
		if r.err != nil {
			t.Errorf("the stream broke: %v", r.err)
		}
	})
	return r
}

// TestStreamsContinueAtTheNextLeader follows the output of a task and the events of the
// cluster while the leader is killed, again and again, and steps down: nothing is missing
// and nothing comes twice.
func TestStreamsContinueAtTheNextLeader(t *testing.T) {
	t.Parallel()
	s := newTestServers(t, 3, nil)
	member, err := s.files(pki.CertRequest{Kind: pki.KindNode, Name: "n1", Hosts: []string{"n1", "127.0.0.1"}}).Open(pki.KindNode)
	if err != nil {
		t.Fatal(err)
	}
	log := &growingLog{}
	n := coordtest.New(droverv1connect.NewNodeServiceClient(s.as("node/n1")), log.serve(t, member), s.fs, coordtest.Hang)
	nodeCtx, stopNode := context.WithCancel(context.Background())
	nodeDone := make(chan struct{})
	go func() {
		defer close(nodeDone)
		n.Run(nodeCtx)
	}()
	t.Cleanup(func() { stopNode(); <-nodeDone })
	s.nodes = append(s.nodes, n)
	s.waitForNodes()
	id := s.submit(groupJob("talks", 1))
	s.waitUntil("it runs", func() bool { return s.job("talks").GetJob().GetTasksRunning() == 1 })

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	logs, err := s.client.Logs(ctx, connect.NewRequest(&droverv1.LogsRequest{Key: &droverv1.AttemptKey{Job: id}, Follow: true}))
	text := collect(t, ctx, logs, err, func(m *droverv1.LogsResponse) []byte { return m.Data })
	follow, err := s.client.Events(ctx, connect.NewRequest(&droverv1.EventsRequest{Follow: true, Limit: -1}))
	events := collect(t, ctx, follow, err, func(m *droverv1.Event) []string { return []string{m.Position} })
	t.Cleanup(cancel) // before the streams are waited for

	want := ""
	line := func() {
		l := fmt.Sprintf("line %d\n", len(want))
		want += l
		log.append(l)
	}
	arrived := func() bool { return string(text.list()) == want }
	jobs := 0
	grow := func() {
		line()
		jobs++
		s.submit(groupJob(fmt.Sprint("j", jobs), 1))
		s.waitUntil("the output arrives", arrived)
	}
	s.waitUntil("the stream is open", func() bool { return log.asked() > 0 })
	grow()
	for round := range 3 {
		leader := s.awaitLeader()
		if round == 1 {
			s.transferFrom(leader)
		} else {
			s.kill(leader)
		}
		grow()
		if s.running[leader] == nil {
			s.start(leader, nil)
		}
		s.awaitVoters(s.ids...)
		grow()
	}
	if got := log.asked(); got < 4 {
		t.Errorf("the output was asked for %d times: the stream did not go through the leader", got)
	}
	var all []string
	s.waitUntil("all events arrive", func() bool {
		st, err := s.client.Events(ctx, connect.NewRequest(&droverv1.EventsRequest{}))
		if err != nil {
			return false
		}
		defer st.Close()
		for all = nil; st.Receive(); {
			all = append(all, st.Msg().Position)
		}
		got := events.list()
		return st.Err() == nil && len(got) > 0 && len(all) > 0 && got[len(got)-1] == all[len(all)-1]
	})
	got := events.list()
	if rest := all[len(all)-min(len(got), len(all)):]; fmt.Sprint(got) != fmt.Sprint(rest) {
		t.Errorf("followed events %v\nof all\n%v", got, all)
	}
}

// transferFrom has another server lead.
func (s *testServers) transferFrom(leader string) {
	s.t.Helper()
	s.waitUntil(leader+" steps down", func() bool {
		ctx, cancel := context.WithTimeout(s.ctx, waitLimit)
		defer cancel()
		_, _ = s.operator.TransferLeadership(ctx, connect.NewRequest(&droverv1.TransferLeadershipRequest{})) // the list of servers says what came of it
		for _, x := range s.servers().GetServers() {
			if x.Leader && x.Id != leader {
				return true
			}
		}
		return false
	})
}
