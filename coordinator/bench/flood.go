package bench

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/internal/median"
	"github.com/drover-run/drover/internal/pki"
)

// FloodConfig is a measurement of what the floods of one identity cost another one.
type FloodConfig struct {
	Rounds  int           // how often each flood is measured, each time without it and with it
	Probes  int           // calls of each kind of the other user in a round during the flood, and as many before it
	Batches int           // jobs of many tasks of that user, for placements per second
	Warm    time.Duration // that a flood lasts before they begin
	Limit   time.Duration // of each phase
	Only    []string      // names of floods; all if empty
}

// Server is the coordinator that is flooded: a process of its own.
type Server struct {
	Address string // host:port of its TLS port
	RSS     func() uint64
	// Certificate returns a configuration with a certificate of that name.
	Certificate func(kind pki.Kind, name string) (*tls.Config, error)
	Stranger    *tls.Config // for callers who show none
	Operator    string      // name of a user with every right
	From        net.IP      // address from which connections are opened; nil: any
	// Attack starts a flood in another process, so that what is measured is not how
	// its work and the measured user's share a process. Ending ctx ends it.
	Attack func(ctx context.Context, a Attack) (Attacker, error)
}

// FloodResult is what one flood did. Times are medians in milliseconds, of the same
// work without the flood and with it, and medians of the rounds.
type FloodResult struct {
	Flood string `json:"flood"`
	AttackCounts

	Quiet  Latencies `json:"quiet"`
	During Latencies `json:"during"`
	Ratio  float64   `json:"ratio"` // the worst of the four
	// Kept is which part of the placements per second was left during the flood, in each round: 1 if
	// the flood cost nothing. Empty if they were not measured.
	Kept []float64 `json:"kept"`

	RSSBefore uint64 `json:"rss_before"` // bytes
	RSSPeak   uint64 `json:"rss_peak"`

	told      told
	allowance float64 // attempts that nobody needs to be told about
	seconds   float64
}

// KeptMedian returns the median of Kept, 1 if it is empty.
func (r *FloodResult) KeptMedian() float64 {
	if len(r.Kept) == 0 {
		return 1
	}
	return median.Of(r.Kept)
}

// Latencies are the medians of another user's work, in milliseconds.
type Latencies struct {
	ReadMS    float64 `json:"read_ms"`    // a job's status
	ConnectMS float64 `json:"connect_ms"` // the coordinator's status over a new connection
	PlaceMS   float64 `json:"place_ms"`   // from a submission to a node's receipt of the task
	PlanMS    float64 `json:"plan_ms"`    // a quote

	PlacedPerSecond float64 `json:"placed_per_second"` // tasks of that user; 0 if it was not measured
}

// FloodBounds is how much a flood may do.
type FloodBounds struct {
	Ratio  float64       // most that another user's latency may grow to, as a multiple
	Least  time.Duration // shorter latencies count as this for Ratio
	Slower float64       // part of that user's placements per second that may be lost
	Memory uint64        // bytes by which the coordinator may grow
}

// told is what makes a coordinator tell a flooder to come back later.
type told int

const (
	toldNothing told = iota
	toldByRate       // he calls more often than he may
	toldByShare      // he occupies as much as he may
)

// An identity's calls in a second, and how many seconds' worth it may make at once.
const (
	callRate     = 500
	burstSeconds = 10
)

// Check returns an error if the flood did more than it may, or if the flooder was not told to come
// back later.
func (r *FloodResult) Check(may FloodBounds) error {
	var errs []error
	for _, l := range []struct {
		what          string
		quiet, during float64
	}{{"a read", r.Quiet.ReadMS, r.During.ReadMS}, {"a new connection", r.Quiet.ConnectMS, r.During.ConnectMS},
		{"a placement", r.Quiet.PlaceMS, r.During.PlaceMS}, {"a quote", r.Quiet.PlanMS, r.During.PlanMS}} {
		if base := max(l.quiet, float64(may.Least)/float64(time.Millisecond)); l.during > may.Ratio*base {
			errs = append(errs, fmt.Errorf("flood %s: %s of another user took %.1f ms, %.1f ms without the flood", r.Flood, l.what, l.during, l.quiet))
		}
	}
	if kept := r.KeptMedian(); kept < 1-may.Slower {
		errs = append(errs, fmt.Errorf("flood %s: of another user's tasks %.2f times as many were placed in a second as without the flood (median of %.2f)", r.Flood, kept, r.Kept))
	}
	if r.RSSPeak > r.RSSBefore+may.Memory {
		errs = append(errs, fmt.Errorf("flood %s: the coordinator grew from %d to %d MiB", r.Flood, r.RSSBefore>>20, r.RSSPeak>>20))
	}
	if r.told != toldNothing && r.Told == 0 && float64(r.Attempts) > r.allowance {
		errs = append(errs, fmt.Errorf("flood %s: of %d attempts in %.1f s none was told to come back later (%s)", r.Flood, r.Attempts, r.seconds, r.Failure))
	}
	return errors.Join(errs...)
}

// floodRun is a measurement under way.
type floodRun struct {
	cfg    FloodConfig
	server Server
	base   string
	counts *counts
	nodes  sync.WaitGroup

	root    droverv1connect.ClientServiceClient
	tokens  droverv1connect.TokenServiceClient
	crowded uint64 // job of the flooders' tenant with many tasks
	held    uint64 // one whose tasks run until the measurement ends
	logs    *silentNode
}

// Tenants of the measurement.
const (
	floodTenant = "flood"
	heldTenant  = "held" // its jobs occupy all that it may
	otherTenant = "other"
	floodNodes  = 4
	crowd       = 10_000 // ended tasks of a job
	heldTasks   = 500
)

// RunFloods floods a coordinator in all ways of the table, each as an identity of its
// own, and measures another user's work before and during each. done is called with each
// result. Cost: 2 to 20 s for each round of a flood.
func RunFloods(ctx context.Context, cfg FloodConfig, server Server, done func(FloodResult)) error {
	ctx, cancel := context.WithCancel(ctx)
	r := &floodRun{cfg: cfg, server: server, base: "https://" + server.Address, counts: newCounts()}
	defer r.nodes.Wait()
	defer cancel()
	if err := r.prepare(ctx); err != nil {
		return fmt.Errorf("preparing the floods: %w", err)
	}
	defer r.logs.close()
	p, err := newProber(r)
	if err != nil {
		return err
	}
	defer p.close()
	for i := range floods {
		f := &floods[i]
		if len(cfg.Only) > 0 && !slices.Contains(cfg.Only, f.name) {
			continue
		}
		res, err := r.measure(ctx, f, p)
		if err != nil {
			return fmt.Errorf("flood %s: %w", f.name, err)
		}
		done(res)
	}
	return r.counts.err()
}

// FloodNames returns the names of all floods, in their order.
func FloodNames() []string {
	names := make([]string, len(floods))
	for i := range floods {
		names[i] = floods[i].name
	}
	return names
}

func (r *floodRun) client(kind pki.Kind, name string) (*http.Client, error) {
	conf, err := r.server.Certificate(kind, name)
	if err != nil {
		return nil, err
	}
	return r.server.httpClient(conf), nil
}

func (s *Server) dialer() *net.Dialer {
	d := &net.Dialer{}
	if s.From != nil {
		d.LocalAddr = &net.TCPAddr{IP: s.From}
	}
	return d
}

func (s *Server) httpClient(conf *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true, DialContext: s.dialer().DialContext}}
}

// prepare makes tenants, nodes, a token, and the jobs that floods ask about.
func (r *floodRun) prepare(ctx context.Context) error {
	h, err := r.client(pki.KindUser, r.server.Operator)
	if err != nil {
		return err
	}
	r.root = droverv1connect.NewClientServiceClient(h, r.base)
	r.tokens = droverv1connect.NewTokenServiceClient(h, r.base)
	flooders := make([]string, len(floods))
	for i := range floods {
		flooders[i] = floods[i].identity()
	}
	tenants := []*droverv1.Tenant{
		{Name: floodTenant, Weight: 1, Submit: flooders},
		{Name: heldTenant, Weight: 1, Read: flooders, Cap: &droverv1.Resources{Cpu: 16_000}},
		{Name: otherTenant, Weight: 1, Submit: []string{proberName}},
	}
	if _, err := r.root.ApplyTenants(ctx, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: tenants})); err != nil {
		return err
	}
	// With a token, callers without a certificate get past the handshake.
	if _, err := r.tokens.CreateToken(ctx, connect.NewRequest(&droverv1.CreateTokenRequest{User: "somebody"})); err != nil {
		return err
	}
	conf, err := r.server.Certificate(pki.KindNode, "n0")
	if err != nil {
		return err
	}
	if r.logs, err = newSilentNode(conf); err != nil {
		return err
	}
	if err := r.startNodes(ctx); err != nil {
		return err
	}
	if r.crowded, err = submitFlood(ctx, r.root, floodTenant, "crowded", crowd, "true"); err != nil {
		return err
	}
	wait, stop := context.WithTimeout(ctx, r.cfg.Limit)
	defer stop()
	if err := until(wait, func() bool { return r.counts.ended.Load() >= crowd }); err != nil {
		return fmt.Errorf("%d of %d tasks have ended: %w", r.counts.ended.Load(), crowd, err)
	}
	r.held, err = submitFlood(ctx, r.root, heldTenant, "held", heldTasks, heldCommand)
	return err
}

func (r *floodRun) startNodes(ctx context.Context) error {
	registered := make(chan struct{}, 1000)
	for i := range floodNodes {
		h, err := r.client(pki.KindNode, fmt.Sprintf("n%d", i))
		if err != nil {
			return err
		}
		n := newNode(i, droverv1connect.NewNodeServiceClient(h, r.base), r.counts, func() {
			select {
			case registered <- struct{}{}:
			default:
			}
		})
		n.info.Address = r.logs.address
		r.nodes.Go(func() {
			n.run(ctx)
			h.CloseIdleConnections()
		})
	}
	t := time.NewTimer(r.cfg.Limit)
	defer t.Stop()
	for range floodNodes {
		select {
		case <-registered:
		case <-t.C:
			return fmt.Errorf("the nodes did not register within %s", r.cfg.Limit)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func submitFlood(ctx context.Context, c droverv1connect.ClientServiceClient, tenant, name string, tasks int, command string) (uint64, error) {
	res, err := c.SubmitJob(ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: floodJob(tenant, name, tasks, command, false)}))
	if err != nil {
		return 0, fmt.Errorf("submit %s: %w", name, err)
	}
	return res.Msg.GetJob(), nil
}

// measure measures a flood in all rounds.
func (r *floodRun) measure(ctx context.Context, f *flood, p *prober) (FloodResult, error) {
	rounds := make([]FloodResult, r.cfg.Rounds)
	for i := range rounds {
		var err error
		if rounds[i], err = r.measureOnce(ctx, f, p); err != nil {
			return FloodResult{}, err
		}
	}
	return sumUp(rounds), nil
}

// measureOnce measures the other user's work, starts the flood, and measures it again.
func (r *floodRun) measureOnce(ctx context.Context, f *flood, p *prober) (res FloodResult, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.cfg.Limit, fmt.Errorf("not done within %s", r.cfg.Limit))
	defer cancel()
	res = FloodResult{Flood: f.name, told: f.told}
	if res.Quiet, err = p.measure(ctx, r.cfg.Probes); err != nil {
		return res, fmt.Errorf("without the flood: %w", err)
	}
	res.RSSBefore = r.server.RSS()
	a, err := r.server.Attack(ctx, Attack{Flood: f.name, Crowded: r.crowded, Held: r.held})
	if err != nil {
		return res, err
	}
	stop := sync.OnceValue(a.Stop)
	defer func() { err = errors.Join(err, stop()) }()
	peak, began := r.watchMemory(ctx), time.Now()
	if err := waitUntil(ctx, time.Now().Add(r.cfg.Warm)); err != nil {
		return res, err
	}
	if res.During, err = p.measure(ctx, r.cfg.Probes); err != nil {
		return res, fmt.Errorf("another user's work during the flood: %w", err)
	}
	if f.told == toldByShare { // a slow machine needs longer until the share is used up
		_ = until(ctx, func() bool { return a.Counts().Told > 0 }) // Check reports that it was not
	}
	if res.seconds = time.Since(began).Seconds(); f.told == toldByRate { // within a burst and its rate an identity may call
		res.allowance = callRate * (burstSeconds + res.seconds + 1)
	}
	if err := stop(); err != nil {
		return res, err
	}
	res.RSSPeak, res.AttackCounts = peak(), a.Counts()
	return res, nil
}

// sumUp returns the result of at least one round: counts and seconds are sums, memory is that
// before the first and the most of all.
func sumUp(rounds []FloodResult) FloodResult {
	sum := rounds[0]
	for _, r := range rounds[1:] {
		sum.AttackCounts.add(r.AttackCounts)
		sum.seconds, sum.allowance = sum.seconds+r.seconds, sum.allowance+r.allowance
		sum.RSSPeak = max(sum.RSSPeak, r.RSSPeak)
	}
	medianRound := func(of func(*FloodResult) float64) float64 {
		all := make([]float64, len(rounds))
		for i := range rounds {
			all[i] = of(&rounds[i])
		}
		return median.Of(all)
	}
	for _, l := range []func(*Latencies) *float64{
		func(l *Latencies) *float64 { return &l.ReadMS }, func(l *Latencies) *float64 { return &l.ConnectMS }, func(l *Latencies) *float64 { return &l.PlaceMS },
		func(l *Latencies) *float64 { return &l.PlanMS }, func(l *Latencies) *float64 { return &l.PlacedPerSecond },
	} {
		*l(&sum.Quiet) = medianRound(func(r *FloodResult) float64 { return *l(&r.Quiet) })
		*l(&sum.During) = medianRound(func(r *FloodResult) float64 { return *l(&r.During) })
	}
	for _, r := range rounds {
		if r.Quiet.PlacedPerSecond > 0 {
			sum.Kept = append(sum.Kept, r.During.PlacedPerSecond/r.Quiet.PlacedPerSecond)
		}
	}
	sum.Ratio = max(sum.During.ReadMS/sum.Quiet.ReadMS, sum.During.ConnectMS/sum.Quiet.ConnectMS, sum.During.PlaceMS/sum.Quiet.PlaceMS, sum.During.PlanMS/sum.Quiet.PlanMS)
	return sum
}

// watchMemory samples the coordinator's memory until the function returned is called,
// which returns the largest sample in bytes.
func (r *floodRun) watchMemory(ctx context.Context) func() uint64 {
	ctx, cancel := context.WithCancel(ctx)
	peak := make(chan uint64, 1)
	go func() {
		most := r.server.RSS()
		for waitUntil(ctx, time.Now().Add(20*time.Millisecond)) == nil {
			most = max(most, r.server.RSS())
		}
		peak <- max(most, r.server.RSS())
	}()
	return func() uint64 {
		cancel()
		return <-peak
	}
}
