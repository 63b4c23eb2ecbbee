package bench

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/time/rate"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/pki"
)

// flood is one way to flood a coordinator.
type flood struct {
	name    string
	kind    pki.Kind // of the certificate; a user's by default
	workers int      // attempts in progress at once, at most
	told    told
	try     func(ctx context.Context, a *attacker, c *floodClient) error
}

// identity returns the name in the certificate of a flood.
func (f *flood) identity() string { return "flood-" + f.name }

// floodConnections is over how many connections a flood's calls are spread.
const floodConnections = 8

// floodClient has the clients of one connection.
type floodClient struct {
	http     *http.Client
	user     droverv1connect.ClientServiceClient
	node     droverv1connect.NodeServiceClient
	operator droverv1connect.OperatorServiceClient
	debug    droverv1connect.DebugServiceClient
	tokens   droverv1connect.TokenServiceClient
}

// Attack is a flood of a prepared coordinator.
type Attack struct {
	Flood   string
	Rate    float64 // attempts per second
	Crowded uint64  // job with many ended tasks
	Held    uint64  // job with many pending ones
}

// Attacker is a flood under way.
type Attacker interface {
	Counts() AttackCounts // so far
	Stop() error
}

// AttackCounts are the outcomes of a flood's attempts.
type AttackCounts struct {
	Attempts int64  `json:"attempts"`
	Answered int64  `json:"answered"` // without an error
	Told     int64  `json:"told"`     // refused with ResourceExhausted or 429, and when to come back
	Failed   int64  `json:"failed"`   // any other way
	Failure  string `json:"failure,omitempty"`
}

// add adds the counts of another round.
func (c *AttackCounts) add(o AttackCounts) {
	c.Attempts, c.Answered, c.Told, c.Failed = c.Attempts+o.Attempts, c.Answered+o.Answered, c.Told+o.Told, c.Failed+o.Failed
	c.Failure = cmp.Or(c.Failure, o.Failure)
}

// attacker performs a flood.
type attacker struct {
	Attack
	server  Server
	base    string
	conf    *tls.Config // with the flood's certificate
	clients []*floodClient
	pace    *rate.Limiter
	number  atomic.Int64 // of the next attempt, for names

	attempts, answered, told, failed atomic.Int64
	failure                          atomic.Pointer[string]
}

// RunAttack floods a coordinator until ctx ends, and calls report with the counts every
// few tenths of a second and at the end.
func RunAttack(ctx context.Context, what Attack, server Server, report func(AttackCounts)) error {
	i := slices.Index(FloodNames(), what.Flood)
	if i < 0 {
		return fmt.Errorf("there is no flood %q", what.Flood)
	}
	f := &floods[i]
	conf, err := server.Certificate(cmp.Or(f.kind, pki.KindUser), f.identity())
	if err != nil {
		return err
	}
	a := &attacker{Attack: what, server: server, base: "https://" + server.Address, conf: conf, pace: rate.NewLimiter(rate.Limit(what.Rate), max(1, int(what.Rate/100)))}
	for range floodConnections {
		c := newFloodClient(a.server.httpClient(conf), a.base)
		defer c.http.CloseIdleConnections()
		a.clients = append(a.clients, c)
	}
	var wg sync.WaitGroup
	for i := range f.workers {
		wg.Go(func() {
			for a.pace.Wait(ctx) == nil {
				a.attempts.Add(1)
				a.count(ctx, f.try(ctx, a, a.clients[i%floodConnections]))
			}
		})
	}
	for waitUntil(ctx, time.Now().Add(reportPause)) == nil {
		report(a.counts())
	}
	wg.Wait()
	report(a.counts())
	return nil
}

// reportPause is the time between two reports of an attack.
const reportPause = 200 * time.Millisecond

func (a *attacker) counts() AttackCounts {
	c := AttackCounts{Attempts: a.attempts.Load(), Answered: a.answered.Load(), Told: a.told.Load(), Failed: a.failed.Load()}
	if text := a.failure.Load(); text != nil {
		c.Failure = *text
	}
	return c
}

func newFloodClient(h *http.Client, base string) *floodClient {
	return &floodClient{h, droverv1connect.NewClientServiceClient(h, base), droverv1connect.NewNodeServiceClient(h, base), droverv1connect.NewOperatorServiceClient(h, base),
		droverv1connect.NewDebugServiceClient(h, base), droverv1connect.NewTokenServiceClient(h, base)}
}

// count counts the outcome of an attempt.
func (a *attacker) count(ctx context.Context, err error) {
	switch {
	case err == nil:
		a.answered.Add(1)
	case wire.IsOverload(err):
		a.told.Add(1)
	case ctx.Err() == nil: // not ended by us
		a.failed.Add(1)
		text := clipFailure(err)
		a.failure.Store(&text)
	}
}

// clipFailure returns the first line of an error, for a table.
func clipFailure(err error) string {
	text, _, _ := strings.Cut(wire.FromError(err).Error(), "\n")
	return text[:min(len(text), 160)]
}

// silentNode is the server of a node that takes every call for logs and says nothing.
type silentNode struct {
	droverv1connect.UnimplementedTaskServiceHandler
	address string
	server  *http.Server
	served  chan struct{}
}

func newSilentNode(conf *tls.Config) (*silentNode, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	own := conf.Clone()
	own.NextProtos = []string{"h2"}
	n := &silentNode{address: l.Addr().String(), served: make(chan struct{})}
	mux := http.NewServeMux()
	mux.Handle(droverv1connect.NewTaskServiceHandler(n))
	n.server = &http.Server{Handler: mux, TLSConfig: &tls.Config{Certificates: own.Certificates, GetCertificate: serverCertificate(own), NextProtos: own.NextProtos}, ReadHeaderTimeout: time.Minute}
	go func() {
		defer close(n.served)
		_ = n.server.ServeTLS(l, "", "") // ends with close
	}()
	return n, nil
}

// serverCertificate returns a client's certificate for a server.
func serverCertificate(conf *tls.Config) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if conf.GetClientCertificate == nil {
		return nil
	}
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return conf.GetClientCertificate(&tls.CertificateRequestInfo{})
	}
}

// Logs implements droverv1connect.TaskServiceHandler: it waits until the caller leaves.
func (n *silentNode) Logs(ctx context.Context, _ *connect.Request[droverv1.LogsRequest], _ *connect.ServerStream[droverv1.LogsResponse]) error {
	<-ctx.Done()
	return ctx.Err()
}

func (n *silentNode) close() {
	_ = n.server.Close() // its connections are ours
	<-n.served
}
