package coordinator

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/past"
	"github.com/drover-run/drover/internal/fault"
)

const (
	dialLimit = 5 * time.Second // of a connection to a node
	pingAfter = 5 * time.Second // of silence; a node whose machine is gone is found so
)

// proxy connects to the nodes' own servers, for logs and exec. A node's address
// is host:port, or unix:/path for one beside the coordinator.
type proxy struct {
	tls       *tls.Config
	pingAfter time.Duration

	mu      sync.Mutex
	clients map[string]*nodeClient // at most maxNodeClients
}

// maxNodeClients bounds the cached clients of nodes. When nodes change their address, the clients
// of the old addresses would otherwise stay.
const maxNodeClients = 4096

type nodeClient struct {
	transport *http.Transport
	tasks     droverv1connect.TaskServiceClient
	debug     droverv1connect.DebugServiceClient
}

func newProxy(conf *tls.Config) *proxy {
	return &proxy{tls: conf, pingAfter: pingAfter, clients: map[string]*nodeClient{}}
}

// node returns the clients of the node at an address. They always use HTTP/2,
// because exec streams in both directions.
func (p *proxy) node(address string) *nodeClient {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.clients[address]; c != nil {
		return c
	}
	if len(p.clients) >= maxNodeClients {
		p.forgetClients()
	}
	t := &http.Transport{Protocols: new(http.Protocols), IdleConnTimeout: time.Minute, TLSHandshakeTimeout: dialLimit, TLSClientConfig: p.tls,
		HTTP2: &http.HTTP2Config{SendPingTimeout: p.pingAfter, PingTimeout: p.pingAfter}}
	t.Protocols.SetHTTP2(true)
	d := &net.Dialer{Timeout: dialLimit}
	base := "https://" + address
	path, unix := strings.CutPrefix(address, "unix:")
	if unix || p.tls == nil {
		t.Protocols.SetUnencryptedHTTP2(true)
		base = "http://" + address
	}
	t.DialContext = d.DialContext
	if unix {
		base = "http://node"
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", strings.TrimPrefix(path, "//"))
		}
	}
	h := &http.Client{Transport: t}
	c := &nodeClient{t, droverv1connect.NewTaskServiceClient(h, base), droverv1connect.NewDebugServiceClient(h, base)}
	p.clients[address] = c
	return c
}

func (p *proxy) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetClients()
}

// forgetClients closes idle connections and drops all cached clients. Requests in progress
// continue. The caller holds mu.
func (p *proxy) forgetClients() {
	for _, c := range p.clients {
		c.transport.CloseIdleConnections()
	}
	clear(p.clients)
}

// findTask returns a client of the node that has an attempt, and the attempt's complete key. If the
// key has no attempt or run, the newest is used. Logs outlive the job: a caller who may read the
// job also finds attempts that only the history has.
func (s *clientService) findTask(ctx context.Context, r right, key *droverv1.AttemptKey) (c droverv1connect.TaskServiceClient, full *droverv1.AttemptKey, err error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, nil, err
	}
	if key == nil {
		return nil, nil, fault.New(fault.Invalid, "which task? give its key")
	}
	var address string
	forgotten := false
	s.core.view(func(f *facts.Facts) {
		k := facts.KeyOf(key)
		j := f.Job(k.Job)
		forgotten = j == nil
		if j == nil || s.core.rights.needJob(ctx, mayRead, f, j) != nil {
			err = fault.New(fault.NotFound, "there is no job %d that you may read", k.Job)
			return
		}
		if err = s.core.rights.needJob(ctx, r, f, j); err != nil {
			return
		}
		a := newestAttempt(f, j, &k)
		switch {
		case a == nil:
			err = fault.New(fault.NotFound, "job %q has no such attempt: `drover task status` lists them", j.Name)
		case key.GetRun() != 0 && key.GetRun() != a.Run:
			err = fault.New(fault.NotFound, "the attempt has run %d now, not %d: leave the run out for the present one", a.Run, key.GetRun())
		default:
			address, err = nodeAddress(f.Node(a.Node), a)
			full = k.Proto(a.Run)
		}
	})
	if forgotten && r == mayRead {
		address, full, err = s.findPastTask(ctx, key)
	}
	if err != nil {
		return nil, nil, err
	}
	return s.core.proxy.node(address).tasks, full, nil
}

// findPastTask returns the address of the node where an attempt of a forgotten job
// was, and its complete key.
func (s *clientService) findPastTask(ctx context.Context, key *droverv1.AttemptKey) (address string, full *droverv1.AttemptKey, err error) {
	j, err := s.core.pastJobs.find(ctx, strconv.FormatUint(key.GetJob(), 10))
	if err != nil {
		return "", nil, err
	}
	if j.GetSummary().GetJob() != key.GetJob() { // one that has the number as its name
		return "", nil, fault.New(fault.NotFound, "there is no job %d that you may read", key.GetJob())
	}
	if key.GetStage() < 0 || key.GetTask() < 0 {
		return "", nil, fault.New(fault.Invalid, "stage %d, task %d: there are none below 0", key.GetStage(), key.GetTask())
	}
	list, _, err := s.core.past.Attempts(key.GetJob(), key.GetStage(), maxAttemptsOfTask, past.PageAt(key.GetJob(), key.GetStage(), key.GetTask()))
	if err != nil {
		return "", nil, err
	}
	var found *droverv1.PastAttempt
	for _, a := range list {
		if k := a.GetKey(); k.GetTask() == key.GetTask() && (key.GetAttempt() == 0 || k.GetAttempt() == key.GetAttempt()) {
			found = a
		}
	}
	if found == nil {
		return "", nil, fault.New(fault.NotFound, "job %q has no such attempt: `drover task status` lists them", j.GetSummary().GetName())
	}
	s.core.view(func(f *facts.Facts) {
		n := f.NodeByName(found.GetNode())
		if n == nil {
			err = fault.New(fault.NotFound, "node %s, where the attempt was, is not in the cluster any more, nor are its logs", found.GetNode())
			return
		}
		address, err = nodeAddress(n, nil)
	})
	return address, found.GetKey(), err
}

// maxAttemptsOfTask bounds the attempts of a past task that are searched for one.
const maxAttemptsOfTask = 1000

// newestAttempt returns an attempt, or the newest of its task if k has none.
func newestAttempt(f *facts.Facts, j *facts.Job, k *facts.Key) *facts.Attempt {
	if k.Attempt != 0 || k.Stage < 0 || int(k.Stage) >= len(j.Stages) || k.Task < 0 || k.Task >= j.Stages[k.Stage].Tasks {
		return f.Attempt(*k)
	}
	var last *facts.Attempt
	for _, a := range j.Stages[k.Stage].Task(k.Task).Attempts {
		if last == nil || a.Attempt > last.Attempt {
			last = a
		}
	}
	if last != nil {
		k.Attempt = last.Attempt
	}
	return last
}

// nodeAddress returns the address of the node that has an attempt. A node that was lost since may
// still have the logs of an attempt that has ended, or of a forgotten one (nil).
func nodeAddress(n *facts.Node, a *facts.Attempt) (string, error) {
	switch {
	case !n.Up, a != nil && a.State.IsActive() && n.Epoch != a.Epoch:
		return "", fault.New(fault.Unavailable, "node %s, where the attempt was, is lost, and its logs with it unless it comes back", n.Info.GetName())
	case n.Info.GetAddress() == "":
		return "", fault.New(fault.Unavailable, "node %s has no address for logs and commands: start its daemon with -listen and a certificate", n.Info.GetName())
	}
	return n.Info.GetAddress(), nil
}

// Logs streams a task's output from its node.
func (s *clientService) Logs(ctx context.Context, req *connect.Request[droverv1.LogsRequest], stream *connect.ServerStream[droverv1.LogsResponse]) error {
	c, key, err := s.findTask(ctx, mayRead, req.Msg.GetKey())
	if err != nil {
		return err
	}
	follow := req.Msg.GetFollow()
	s.core.view(func(f *facts.Facts) {
		a := f.Attempt(facts.KeyOf(key))
		follow = follow && a != nil && a.State.IsActive() // if the attempt has ended, the node sends the logs that it has, and stops
	})
	from, err := c.Logs(ctx, connect.NewRequest(&droverv1.LogsRequest{Key: key, Stream: req.Msg.GetStream(), Tail: req.Msg.GetTail(), Follow: follow, After: req.Msg.GetAfter()}))
	return forwardStream(from, err, stream)
}

// nodeError wraps an error of a call to a node.
func nodeError(err error) error {
	err = wire.FromError(err) // wrapped in another error, an error with a code would be sent without the surrounding text
	if errors.Is(err, fault.Unavailable) {
		return fault.New(fault.Unavailable, "the node does not answer: %w", err)
	}
	return err
}

// Exec runs another command inside a task, on its node.
func (s *clientService) Exec(ctx context.Context, stream *connect.BidiStream[droverv1.ExecRequest, droverv1.ExecResponse]) error {
	first, err := stream.Receive()
	if err != nil {
		return fault.New(fault.Invalid, "exec without a first message: %w", err)
	}
	endPace(ctx) // input may come from a person
	c, key, err := s.findTask(ctx, mayOperate, first.GetKey())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	node := c.Exec(ctx)
	first.Key = key
	if err := node.Send(first); err != nil {
		return nodeError(err)
	}
	in := make(chan error, 1)
	go func() { in <- forwardInput(stream, node) }() // ends with the client's stream, at the latest when this handler returns
	for {
		m, err := node.Receive()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nodeError(err)
		}
		if err := stream.Send(m); err != nil {
			return err
		}
		if m.GetEnded() {
			break
		}
	}
	return node.CloseResponse()
}

func forwardInput(from *connect.BidiStream[droverv1.ExecRequest, droverv1.ExecResponse], to *connect.BidiStreamForClient[droverv1.ExecRequest, droverv1.ExecResponse]) error {
	for {
		m, err := from.Receive()
		if err != nil {
			return to.CloseRequest()
		}
		if err := to.Send(m); err != nil {
			return err
		}
		if m.GetStdinEnd() {
			return to.CloseRequest()
		}
	}
}
