package bench

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
)

// floods are the floods, each by an identity of its own. Those by callers who never
// proved who they are, or that never send a request, are not told anything: there
// is nobody to tell, or nothing to answer.
var floods = []flood{
	{name: "submissions", workers: 128, told: toldByRate, try: func(ctx context.Context, a *attacker, c *floodClient) error {
		_, err := submitFlood(ctx, c.user, floodTenant, fmt.Sprintf("f-%d", a.number.Add(1)), 1, "true")
		return err
	}},
	{name: "refused-submissions", workers: 128, told: toldByRate, try: func(ctx context.Context, a *attacker, c *floodClient) error {
		return call(c.user.SubmitJob, ctx, &droverv1.SubmitJobRequest{Spec: `{"version":1,"name":"x","stages":[]}`})
	}},
	{name: "plans", workers: 320, told: toldByShare, try: func(ctx context.Context, a *attacker, c *floodClient) error {
		return call(c.user.PlanJob, ctx, &droverv1.PlanJobRequest{Spec: floodJob(floodTenant, fmt.Sprintf("p-%d", a.number.Add(1)), 200, "true", true)})
	}},
	{name: "status", workers: 320, told: toldByRate, try: func(ctx context.Context, _ *attacker, c *floodClient) error {
		return call(c.user.Status, ctx, &droverv1.StatusRequest{})
	}},
	{name: "lists-of-jobs", workers: 320, told: toldByShare, try: func(ctx context.Context, a *attacker, c *floodClient) error {
		return a.ask(ctx, c, droverv1connect.ClientServiceListJobsProcedure, `{"all":true,"limit":10000}`)
	}},
	{name: "job-names", workers: 320, told: toldByRate, try: func(ctx context.Context, a *attacker, c *floodClient) error {
		return call(c.user.GetJob, ctx, &droverv1.GetJobRequest{Job: fmt.Sprintf("guess-%d", a.number.Add(1))})
	}},
	{name: "job-status", workers: 320, told: toldByRate, try: func(ctx context.Context, a *attacker, c *floodClient) error {
		return call(c.user.GetJob, ctx, &droverv1.GetJobRequest{Job: fmt.Sprint(a.Held)})
	}},
	{name: "lists-of-tasks", workers: 320, told: toldByShare, try: func(ctx context.Context, a *attacker, c *floodClient) error {
		return a.ask(ctx, c, droverv1connect.ClientServiceListTasksProcedure, fmt.Sprintf(`{"job":"%d"}`, a.Crowded))
	}},
	{name: "schedule", workers: 320, told: toldByShare, try: func(ctx context.Context, a *attacker, c *floodClient) error {
		return a.ask(ctx, c, droverv1connect.ClientServiceGetScheduleProcedure, `{}`)
	}},
	{name: "history", workers: 320, told: toldByRate, try: func(ctx context.Context, a *attacker, c *floodClient) error {
		if a.number.Add(1)%2 == 0 {
			return a.ask(ctx, c, droverv1connect.HistoryServiceUsageProcedure, `{}`)
		}
		return a.ask(ctx, c, droverv1connect.HistoryServiceListPastJobsProcedure, `{"limit":1000}`)
	}},
	{name: "log-streams", workers: 700, told: toldByShare, try: func(ctx context.Context, a *attacker, c *floodClient) error {
		return hold(c.user.Logs(ctx, connect.NewRequest(&droverv1.LogsRequest{Key: &droverv1.AttemptKey{Job: a.Crowded, Attempt: 1}, Stream: "stdout", Follow: true})))
	}},
	{name: "event-streams", workers: 700, told: toldByShare, try: func(ctx context.Context, _ *attacker, c *floodClient) error {
		return hold(c.user.Events(ctx, connect.NewRequest(&droverv1.EventsRequest{Follow: true})))
	}},
	{name: "job-watches", workers: 700, told: toldByShare, try: func(ctx context.Context, a *attacker, c *floodClient) error {
		return hold(c.user.WatchJob(ctx, connect.NewRequest(&droverv1.GetJobRequest{Job: fmt.Sprint(a.Held)})))
	}},
	{name: "cancelled-streams", workers: 128, told: toldByRate, try: func(ctx context.Context, _ *attacker, c *floodClient) error {
		own, cancel := context.WithCancel(ctx)
		defer cancel()
		s, err := c.user.Events(own, connect.NewRequest(&droverv1.EventsRequest{Follow: true}))
		if err != nil {
			return err
		}
		if !s.Receive() && s.Err() != nil {
			return s.Err()
		}
		cancel() // in the middle of it
		_ = s.Close()
		return nil
	}},
	{name: "uploads", workers: 16, told: toldByShare, try: func(ctx context.Context, a *attacker, c *floodClient) error {
		data := bytes.Repeat([]byte(fmt.Sprintf("%16d", a.number.Add(1))), 1<<16)
		sum := sha256.Sum256(data)
		return upload(ctx, c, sum[:], int64(len(data)), data)
	}},
	{name: "stalled-uploads", workers: 64, told: toldByShare, try: func(ctx context.Context, a *attacker, c *floodClient) error {
		sum := sha256.Sum256(fmt.Append(nil, a.number.Add(1)))
		s := c.user.PutBlob(ctx)
		if err := s.Send(&droverv1.PutBlobRequest{Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: 1 << 20}); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		<-time.After(time.Second) // nothing comes of what was announced
		_, err := s.CloseAndReceive()
		return err
	}},
	{name: "huge-bodies", workers: 32, told: toldByShare, try: func(ctx context.Context, a *attacker, c *floodClient) error {
		return a.post(ctx, c, droverv1connect.ClientServiceSubmitJobProcedure, bytes.NewReader(make([]byte, 4<<20)))
	}},
	{name: "slow-bodies", workers: 300, told: toldByShare, try: func(ctx context.Context, a *attacker, c *floodClient) error {
		return a.post(ctx, c, droverv1connect.ClientServiceSubmitJobProcedure, &slowBody{ctx: ctx, left: 4 << 20})
	}},
	{name: "headers", workers: 128, try: func(ctx context.Context, a *attacker, _ *floodClient) error {
		// By HTTP/1: over HTTP/2 the client itself would refuse to send so many.
		t := &http.Transport{TLSClientConfig: a.conf.Clone(), DialContext: a.server.dialer().DialContext, Protocols: new(http.Protocols)}
		t.Protocols.SetHTTP1(true)
		defer t.CloseIdleConnections()
		req := connect.NewRequest(&droverv1.StatusRequest{})
		for i := range 50 {
			req.Header().Set(fmt.Sprintf("X-Flood-%d-%d", a.number.Add(1), i), strings.Repeat("x", 1000))
		}
		_, err := droverv1connect.NewClientServiceClient(&http.Client{Transport: t}, a.base).Status(ctx, req)
		return err
	}},
	{name: "metrics-and-pages", workers: 128, told: toldByRate, try: func(ctx context.Context, a *attacker, c *floodClient) error {
		return a.get(ctx, c, []string{"/metrics", "/", fmt.Sprintf("/no/%d", a.number.Load()), "/healthz"}[a.number.Add(1)%4])
	}},
	{name: "wrong-registrations", workers: 128, told: toldByRate, try: func(ctx context.Context, a *attacker, c *floodClient) error {
		return call(c.node.Register, ctx, &droverv1.RegisterRequest{Node: &droverv1.NodeInfo{Name: "n0"}})
	}},
	{name: "operators-calls", workers: 128, told: toldByRate, try: func(ctx context.Context, a *attacker, c *floodClient) error {
		if a.number.Add(1)%2 == 0 {
			return hold(c.operator.SaveSnapshot(ctx, connect.NewRequest(&droverv1.SaveSnapshotRequest{})))
		}
		return hold(c.debug.Profile(ctx, connect.NewRequest(&droverv1.ProfileRequest{Kind: "heap"})))
	}},
	{name: "tokens", workers: 64, told: toldByRate, try: func(ctx context.Context, a *attacker, c *floodClient) error {
		return call(c.tokens.CreateToken, ctx, &droverv1.CreateTokenRequest{LifeMs: 60_000, Note: strings.Repeat("x", 128)})
	}},
	{name: "token-guesses", workers: 64, told: toldByShare, try: func(ctx context.Context, a *attacker, _ *floodClient) error {
		return a.guess(ctx)
	}},
	{name: "node-calls", kind: pki.KindNode, workers: 128, told: toldByRate, try: func(ctx context.Context, a *attacker, c *floodClient) error {
		return call(c.node.Report, ctx, &droverv1.ReportRequest{Node: 1, Epoch: uint64(a.number.Add(1))})
	}},
	{name: "registrations", kind: pki.KindNode, workers: 64, told: toldByShare, try: func(ctx context.Context, a *attacker, c *floodClient) error {
		return call(c.node.Register, ctx, &droverv1.RegisterRequest{Node: &droverv1.NodeInfo{Name: "flood-registrations", Rack: fmt.Sprintf("/r%d", a.number.Add(1)), Address: "127.0.0.1:1",
			Allocatable: &droverv1.Resources{Cpu: 100, Memory: 1 << 20}, Driver: "simulated", Levels: []droverv1.Level{droverv1.Level_LEVEL_RUNNING},
			Disks: []*droverv1.Disk{{Name: "d0", Io: 1 << 20, Space: 1 << 20}}}})
	}},
	{name: "connections", workers: 700, try: func(ctx context.Context, a *attacker, _ *floodClient) error {
		c, err := (&tls.Dialer{NetDialer: a.server.dialer(), Config: a.conf}).DialContext(ctx, "tcp", a.server.Address)
		return holdConn(ctx, c, err)
	}},
	{name: "handshakes", workers: 64, try: func(ctx context.Context, a *attacker, _ *floodClient) error {
		c, err := (&tls.Dialer{NetDialer: a.server.dialer(), Config: a.conf}).DialContext(ctx, "tcp", a.server.Address)
		if err != nil {
			return err
		}
		return c.Close()
	}},
	{name: "silent-connections", workers: 2000, try: func(ctx context.Context, a *attacker, _ *floodClient) error {
		c, err := a.server.dialer().DialContext(ctx, "tcp", a.server.Address)
		return holdConn(ctx, c, err)
	}},
}

func call[Q, A any](procedure func(context.Context, *connect.Request[Q]) (*connect.Response[A], error), ctx context.Context, q *Q) error {
	_, err := procedure(ctx, connect.NewRequest(q))
	return err
}

// hold keeps a stream open until it ends.
func hold[A any](s *connect.ServerStreamForClient[A], err error) error {
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }() // its error is Err's
	for s.Receive() {
		continue
	}
	return s.Err()
}

// holdConn keeps a connection open until the other side closes it.
func holdConn(ctx context.Context, c net.Conn, err error) error {
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	defer func() { _ = c.Close() }() // it may be closed
	_, err = io.Copy(io.Discard, c)
	return err
}

func upload(ctx context.Context, c *floodClient, sum []byte, size int64, data []byte) error {
	s := c.user.PutBlob(ctx)
	if err := s.Send(&droverv1.PutBlobRequest{Digest: "sha256:" + hex.EncodeToString(sum), Size: size, Data: data}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_, err := s.CloseAndReceive() // also says why Send failed
	return err
}

// ask makes a call whose answer is compressed, and reads it without a look at it.
func (a *attacker) ask(ctx context.Context, c *floodClient, procedure, body string) error {
	return a.post(ctx, c, procedure, strings.NewReader(body))
}

// post sends a body.
func (a *attacker) post(ctx context.Context, c *floodClient, procedure string, body io.Reader) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.base+procedure, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept-Encoding", "gzip") // set here, so that the transport does not unpack it
	return answer(c.http.Do(req))
}

func (a *attacker) get(ctx context.Context, c *floodClient, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+path, nil)
	if err != nil {
		return err
	}
	return answer(c.http.Do(req))
}

// guess shows a token that nobody made, over a connection without a certificate.
func (a *attacker) guess(ctx context.Context) error {
	h := a.server.httpClient(a.server.Stranger.Clone())
	defer h.CloseIdleConnections()
	req := connect.NewRequest(&droverv1.StatusRequest{})
	req.Header().Set("Authorization", fmt.Sprintf("Bearer drover_%016x_%064x", a.number.Add(1), a.number.Load()))
	_, err := droverv1connect.NewClientServiceClient(h, a.base).Status(ctx, req)
	return err
}

// answer turns a response into an error: one of the class Overloaded if it says when to
// come back.
func answer(res *http.Response, err error) error {
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }() // it is read
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode < http.StatusBadRequest {
		return nil
	}
	e := connect.NewError(connect.CodeUnknown, fault.New(fault.Invalid, "%s", res.Status))
	if after := res.Header.Get(wire.RetryAfter); res.StatusCode == http.StatusTooManyRequests && after != "" {
		e = connect.NewError(connect.CodeResourceExhausted, fault.New(fault.Exhausted, "%s", res.Status))
		e.Meta().Set(wire.RetryAfter, after)
	}
	return e
}

// slowBody is a body of which a part comes every tenth of a second.
type slowBody struct {
	ctx  context.Context
	left int
}

// Read implements io.Reader.
func (s *slowBody) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	if err := waitUntil(s.ctx, time.Now().Add(100*time.Millisecond)); err != nil {
		return 0, err
	}
	n := min(len(p), s.left, 16<<10)
	clear(p[:n])
	s.left -= n
	return n, nil
}
