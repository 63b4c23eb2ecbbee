package coordclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
)

// busyServer refuses its first calls.
type busyServer struct {
	droverv1connect.UnimplementedClientServiceHandler
	refusals int
	calls    int
	final    bool // without a Retry-After
}

func (s *busyServer) refusal() error {
	if s.calls++; s.calls > s.refusals {
		return nil
	}
	err := connect.NewError(connect.CodeResourceExhausted, errors.New("too many calls"))
	if !s.final {
		err.Meta().Set(wire.RetryAfter, "1")
	}
	return err
}

func (s *busyServer) Status(context.Context, *connect.Request[droverv1.StatusRequest]) (*connect.Response[droverv1.StatusResponse], error) {
	if err := s.refusal(); err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.StatusResponse{}), nil
}

func (s *busyServer) Events(_ context.Context, r *connect.Request[droverv1.EventsRequest], st *connect.ServerStream[droverv1.Event]) error {
	if err := s.refusal(); err != nil {
		return err
	}
	return st.Send(&droverv1.Event{Job: r.Msg.GetJob()})
}

func TestOverloadedCallsAreRepeatedWithGrowingPauses(t *testing.T) {
	srv := &busyServer{}
	mux := http.NewServeMux()
	mux.Handle(droverv1connect.NewClientServiceHandler(srv))
	h := httptest.NewServer(mux)
	defer h.Close()
	var pauses []time.Duration
	r := NewRetrier(nil)
	r.pause = func(_ context.Context, d time.Duration) error { pauses = append(pauses, d); return nil }
	c := droverv1connect.NewClientServiceClient(h.Client(), h.URL, connect.WithInterceptors(r))
	status := func() error {
		_, err := c.Status(t.Context(), connect.NewRequest(&droverv1.StatusRequest{}))
		return wire.FromError(err)
	}
	events := func() error {
		st, err := c.Events(t.Context(), connect.NewRequest(&droverv1.EventsRequest{Job: "j"}))
		if err != nil {
			return err
		}
		defer st.Close()
		for st.Receive() {
			if st.Msg().Job != "j" {
				t.Errorf("the repeated request lost its content: %v", st.Msg())
			}
		}
		return wire.FromError(st.Err())
	}
	for name, call := range map[string]func() error{"unary": status, "stream": events} {
		*srv, pauses = busyServer{refusals: 3}, nil
		if err := call(); err != nil || srv.calls != 4 {
			t.Errorf("%s: %v after %d calls", name, err, srv.calls)
		}
		if len(pauses) != 3 || pauses[2] < 2*firstPause || pauses[0] < firstPause/2 {
			t.Errorf("%s: pauses %v", name, pauses)
		}
		*srv = busyServer{refusals: 100}
		if err := call(); !errors.Is(err, fault.Exhausted) || srv.calls != maxAttempts {
			t.Errorf("%s, always busy: %v after %d calls", name, err, srv.calls)
		}
		*srv = busyServer{refusals: 100, final: true}
		if err := call(); !errors.Is(err, fault.Exhausted) || srv.calls != 1 {
			t.Errorf("%s, over a limit that does not pass: %v after %d calls", name, err, srv.calls)
		}
	}
}

// Every call that only reads is in reads, and so is repeated when its answer is lost.
func TestCallsThatReadAreRepeatable(t *testing.T) {
	known := map[string]bool{}
	protoregistry.GlobalFiles.RangeFilesByPackage("drover.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for k := range s.Methods().Len() {
				m := s.Methods().Get(k)
				name := string(m.Name())
				unary := !m.IsStreamingClient() && !m.IsStreamingServer()
				byName := strings.HasPrefix(name, "Get") || strings.HasPrefix(name, "List") || slices.Contains([]string{"HasBlobs", "Status", "Usage", "Calibration", "PlanJob"}, name)
				if procedure := fmt.Sprintf("/%s/%s", s.FullName(), name); unary && byName && s.Name() != "PeerService" {
					if known[procedure] = true; !reads[procedure] {
						t.Errorf("%s is not repeated", procedure)
					}
				}
			}
		}
		return true
	})
	for procedure := range reads {
		if !known[procedure] {
			t.Errorf("%s is repeated, and reads nothing by its name", procedure)
		}
	}
}

func TestRepeatingEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	err := NewRetrier(nil).Do(ctx, true, func() error {
		calls++
		cancel()
		return fault.Overload("busy")
	})
	if calls != 1 || !errors.Is(err, fault.Exhausted) {
		t.Errorf("%d calls, %v", calls, err)
	}
}

// A machine that is gone does not refuse a connection: it does not answer until the dialer gives
// up. A stopped process accepts a connection, but does not shake hands.
func TestACoordinatorThatDoesNotAnswerIsPassedOver(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle(droverv1connect.NewClientServiceHandler(&busyServer{}))
	h := httptest.NewServer(mux)
	defer h.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	type coordinator struct {
		address   string
		transport *http.Transport
	}
	gone := map[string]coordinator{
		"no connection": {"http://gone", &http.Transport{DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
			return (&net.Dialer{Deadline: time.Unix(1, 0)}).Dial(network, "127.0.0.1:9") // the deadline has passed
		}}},
		"no handshake": {"https://" + silent.Addr().String(), &http.Transport{TLSHandshakeTimeout: time.Millisecond}},
	}
	for name, call := range map[string]func(droverv1connect.ClientServiceClient) error{
		"a call": func(c droverv1connect.ClientServiceClient) error {
			_, err := c.Status(t.Context(), connect.NewRequest(&droverv1.StatusRequest{}))
			return err
		},
		"a change": func(c droverv1connect.ClientServiceClient) error {
			_, err := c.ApplyTenants(t.Context(), connect.NewRequest(&droverv1.ApplyTenantsRequest{}))
			if connect.CodeOf(err) == connect.CodeUnimplemented { // the request arrived
				err = nil
			}
			return err
		},
		"a stream": func(c droverv1connect.ClientServiceClient) error {
			st, err := c.Events(t.Context(), connect.NewRequest(&droverv1.EventsRequest{}))
			if err == nil {
				st.Receive()
				err = errors.Join(st.Err(), st.Close())
			}
			return err
		},
	} {
		for what, first := range gone {
			t.Run(name+", "+what, func(t *testing.T) {
				tr, err := NewTransport([]string{first.address, h.URL}, func(address string) (*http.Transport, string, error) {
					if address == first.address {
						return first.transport, address, nil
					}
					return &http.Transport{}, address, nil
				})
				if err != nil {
					t.Fatal(err)
				}
				defer tr.CloseIdleConnections()
				c := droverv1connect.NewClientServiceClient(&http.Client{Transport: tr}, Base, connect.WithInterceptors(NewRetrier(tr)))
				if err := call(c); err != nil || tr.Current() != h.URL {
					t.Errorf("%v, then at %s", err, tr.Current())
				}
			})
		}
	}
}

func TestTheEndOfAStreamIsNoLoss(t *testing.T) {
	srv := &silentServer{}
	mux := http.NewServeMux()
	mux.Handle(droverv1connect.NewClientServiceHandler(srv))
	h := httptest.NewServer(mux)
	defer h.Close()
	tr, err := NewTransport([]string{h.URL, h.URL + "/"}, func(address string) (*http.Transport, string, error) { return &http.Transport{}, address, nil })
	if err != nil {
		t.Fatal(err)
	}
	defer tr.CloseIdleConnections()
	r := NewRetrier(tr)
	r.pause = func(context.Context, time.Duration) error {
		t.Error("it searches for a leader")
		return context.Canceled
	}
	c := droverv1connect.NewClientServiceClient(&http.Client{Transport: tr}, Base, connect.WithInterceptors(r))
	st, err := c.Events(t.Context(), connect.NewRequest(&droverv1.EventsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	if st.Receive() || st.Err() != nil || tr.Current() != h.URL {
		t.Errorf("%v, then at %s", st.Err(), tr.Current())
	}
	_ = st.Close()
}

// A followed job is followed at the next leader by its number, because another job may have its
// name by then.
func TestAJobIsFollowedAtTheNextLeader(t *testing.T) {
	srv := &watchServer{}
	mux := http.NewServeMux()
	mux.Handle(droverv1connect.NewClientServiceHandler(srv))
	h := httptest.NewServer(mux)
	defer h.Close()
	tr, err := NewTransport([]string{h.URL, h.URL + "/"}, func(address string) (*http.Transport, string, error) { return &http.Transport{}, h.URL, nil })
	if err != nil {
		t.Fatal(err)
	}
	defer tr.CloseIdleConnections()
	r := NewRetrier(tr)
	r.pause = func(context.Context, time.Duration) error { return nil }
	c := droverv1connect.NewClientServiceClient(&http.Client{Transport: tr}, Base, connect.WithInterceptors(r))
	st, err := c.WatchJob(t.Context(), connect.NewRequest(&droverv1.GetJobRequest{Job: "wc"}))
	if err != nil {
		t.Fatal(err)
	}
	var done []int32
	for st.Receive() {
		done = append(done, st.Msg().GetJob().GetTasksDone())
	}
	if st.Err() != nil || !slices.Equal(done, []int32{0, 1, 2}) || !slices.Equal(srv.asked, []string{"wc", "7", "7"}) {
		t.Errorf("states %v, %v; it asked for %q", done, st.Err(), srv.asked)
	}
	_ = st.Close()
}

// watchServer sends one state of a job and dies, twice, and then sends the last one.
type watchServer struct {
	droverv1connect.UnimplementedClientServiceHandler
	asked []string
}

func (s *watchServer) WatchJob(_ context.Context, r *connect.Request[droverv1.GetJobRequest], st *connect.ServerStream[droverv1.GetJobResponse]) error {
	s.asked = append(s.asked, r.Msg.GetJob())
	n := len(s.asked)
	if err := st.Send(&droverv1.GetJobResponse{Job: &droverv1.JobSummary{Job: 7, Name: "wc", TasksDone: int32(n - 1)}}); err != nil || n == 3 {
		return err
	}
	panic(http.ErrAbortHandler) // closes the connection
}

// silentServer sends no events.
type silentServer struct {
	droverv1connect.UnimplementedClientServiceHandler
}

func (*silentServer) Events(context.Context, *connect.Request[droverv1.EventsRequest], *connect.ServerStream[droverv1.Event]) error {
	return nil
}

// If a coordinator's process is gone, its port refuses connections at once, and the next
// coordinator is tried without a pause.
func TestACoordinatorThatIsGoneCostsNoPause(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle(droverv1connect.NewClientServiceHandler(&busyServer{}))
	h := httptest.NewServer(mux)
	defer h.Close()
	gone := httptest.NewServer(nil)
	gone.Close()

	for n, addresses := range [][]string{{gone.URL, h.URL}, {gone.URL, gone.URL + "/", h.URL}} { // the second of two in a row costs a pause
		tr, err := NewTransport(addresses, func(address string) (*http.Transport, string, error) { return &http.Transport{}, address, nil })
		if err != nil {
			t.Fatal(err)
		}
		defer tr.CloseIdleConnections()
		r := NewRetrier(tr)
		pauses := 0
		r.pause = func(context.Context, time.Duration) error { pauses++; return nil }
		c := droverv1connect.NewClientServiceClient(&http.Client{Transport: tr}, Base, connect.WithInterceptors(r))
		if _, err := c.Status(t.Context(), connect.NewRequest(&droverv1.StatusRequest{})); err != nil || pauses != n {
			t.Errorf("%v after %d pauses, want %d", err, pauses, n)
		}
	}
}

// A search ends after seconds if too few coordinators answer to elect a leader. It goes on if an
// election is possible, if only one answer says otherwise, or if the call went on for long before.
func TestSearchWithoutMajorityIsShort(t *testing.T) {
	stranded, electing, gone := wire.NoMajority("start c2"), wire.NotLeader("", "no leader yet"), connect.NewError(connect.CodeUnavailable, &net.OpError{Op: "dial", Err: errors.New("refused")})
	for name, tc := range map[string]struct {
		answers []error // over and over, each after a second
		first   time.Duration
		least   time.Duration // of the search
		most    time.Duration
	}{
		"no majority":                   {[]error{stranded}, 0, strandedLimit, 2 * strandedLimit},
		"no majority, the others gone":  {[]error{gone, gone, stranded}, 0, strandedLimit, 2 * strandedLimit},
		"an election":                   {[]error{electing}, 0, searchLimit, 2 * searchLimit},
		"one of them sees another less": {[]error{stranded, electing}, 0, searchLimit, 2 * searchLimit},
		"a stream that was open":        {[]error{stranded}, time.Hour, searchLimit, 2 * searchLimit},
	} {
		tr, err := NewTransport([]string{"http://a", "http://b"}, func(address string) (*http.Transport, string, error) { return &http.Transport{}, address, nil })
		if err != nil {
			t.Fatal(err)
		}
		r := NewRetrier(tr)
		now := time.Now()
		began := now
		r.now = func() time.Time { return now }
		r.pause = func(_ context.Context, d time.Duration) error { now = now.Add(d); return nil }
		n := 0
		err = r.Do(t.Context(), true, func() error {
			now = now.Add(time.Second)
			if n == 0 && tc.first > 0 {
				now = now.Add(tc.first)
				began = now
			}
			n++
			return tc.answers[(n-1)%len(tc.answers)]
		})
		if took := now.Sub(began); took < tc.least || took > tc.most {
			t.Errorf("%s: gave up after %s: %v", name, took, err)
		}
		if _, answered := wire.LeaderOf(err); !answered {
			t.Errorf("%s: the error is of no coordinator: %v", name, err)
		}
	}
}

// A search ends when every coordinator was tried and none trusts the client, or is trusted by it.
// If one does, the search finds it.
func TestDistrustIsNoLoss(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle(droverv1connect.NewClientServiceHandler(&busyServer{}))
	server := func(auth tls.ClientAuthType) *httptest.Server {
		h := httptest.NewUnstartedServer(mux)
		h.TLS, h.Config.ErrorLog = &tls.Config{ClientAuth: auth}, log.New(io.Discard, "", 0)
		h.StartTLS()
		t.Cleanup(h.Close)
		return h
	}
	open, closed, other := server(tls.NoClientCert), server(tls.RequireAnyClientCert), server(tls.NoClientCert)
	for name, c := range map[string]struct {
		addresses []string
		trusting  bool // the client has the authority
		ok        bool
	}{
		"the client trusts none":       {[]string{open.URL, open.URL + "/", open.URL + "//"}, false, false},
		"none trusts the client":       {[]string{closed.URL, closed.URL + "/"}, true, false},
		"the first is not trusted":     {[]string{other.URL, open.URL}, true, true},
		"one alone trusts no stranger": {[]string{closed.URL}, true, false},
	} {
		for what, call := range map[string]func(droverv1connect.ClientServiceClient) error{
			"a read": func(c droverv1connect.ClientServiceClient) error {
				_, err := c.Status(t.Context(), connect.NewRequest(&droverv1.StatusRequest{}))
				return err
			},
			"a change": func(c droverv1connect.ClientServiceClient) error {
				_, err := c.StopJob(t.Context(), connect.NewRequest(&droverv1.StopJobRequest{Job: "j"}))
				if connect.CodeOf(err) == connect.CodeUnimplemented { // the request arrived
					err = nil
				}
				return err
			},
		} {
			tr, err := NewTransport(c.addresses, func(address string) (*http.Transport, string, error) {
				conf := &tls.Config{}
				if c.trusting && address != other.URL {
					conf = open.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
				}
				conf.MaxVersion = tls.VersionTLS12 // with TLS 1.2 a refusal ends the handshake; with 1.3 a write may fail before the client reads the refusal
				return &http.Transport{TLSClientConfig: conf}, address, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			r := NewRetrier(tr)
			pauses := 0
			r.pause = func(context.Context, time.Duration) error {
				if pauses++; pauses > len(c.addresses) {
					return errors.New("it searches on")
				}
				return nil
			}
			err = call(droverv1connect.NewClientServiceClient(&http.Client{Transport: tr}, Base, connect.WithInterceptors(r)))
			if (err == nil) != c.ok || pauses > len(c.addresses) {
				t.Errorf("%s, %s: %v after %d pauses", name, what, err, pauses)
			}
			tr.CloseIdleConnections()
		}
	}
}
