package coordclient

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
)

// outages records the calls of a Patience's callbacks.
type outages struct {
	lost    []time.Time
	found   int
	refused bool
}

func (o *outages) patience(limit time.Duration) *Patience {
	return &Patience{Limit: limit, Lost: func(until time.Time) { o.lost = append(o.lost, until) }, Found: func() { o.found++ },
		Refused: func(context.Context) bool { return o.refused }}
}

// testTime is a clock that advances only when a test says so.
type testTime struct{ ns atomic.Int64 }

func (c *testTime) now() time.Time                   { return time.Unix(1e9, c.ns.Load()) }
func (c *testTime) pass(d time.Duration)             { c.ns.Add(int64(d)) }
func (c *testTime) since(at time.Time) time.Duration { return c.now().Sub(at) }

// testRetrier returns a retrier for coordinators at these addresses. Its clock advances during its
// pauses.
func testRetrier(t *testing.T, addresses ...string) (*Retrier, *testTime) {
	t.Helper()
	tr, err := NewTransport(addresses, func(address string) (*http.Transport, string, error) { return &http.Transport{}, address, nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.CloseIdleConnections)
	r, clock := NewRetrier(tr), &testTime{}
	r.now = clock.now
	r.pause = func(ctx context.Context, d time.Duration) error { clock.pass(d); return ctx.Err() }
	return r, clock
}

// A command that follows a job waits for its only coordinator, as it would for the next leader; any
// other call does not wait.
func TestFollowingWaitsForTheOnlyCoordinator(t *testing.T) {
	for name, c := range map[string]struct {
		patient bool
		done    []int32
		asked   []string
	}{
		"it follows": {true, []int32{0, 1, 2}, []string{"wc", "7", "7"}},
		"it reads":   {false, []int32{0}, []string{"wc"}},
	} {
		srv := &watchServer{}
		mux := http.NewServeMux()
		mux.Handle(droverv1connect.NewClientServiceHandler(srv))
		h := httptest.NewServer(mux)
		defer h.Close()
		r, _ := testRetrier(t, h.URL)
		client := droverv1connect.NewClientServiceClient(&http.Client{Transport: r.transport}, Base, connect.WithInterceptors(r))
		ctx, said := t.Context(), &outages{}
		if c.patient {
			ctx = WithPatience(ctx, said.patience(time.Minute))
		}
		st, err := client.WatchJob(ctx, connect.NewRequest(&droverv1.GetJobRequest{Job: "wc"}))
		if err != nil {
			t.Fatal(err)
		}
		var done []int32
		for st.Receive() {
			done = append(done, st.Msg().GetJob().GetTasksDone())
		}
		if (st.Err() == nil) != c.patient || !slices.Equal(done, c.done) || !slices.Equal(srv.asked, c.asked) || len(said.lost) > 0 || said.found > 0 {
			t.Errorf("%s: states %v, %v; it asked for %q; said %v", name, done, st.Err(), srv.asked, said)
		}
		_ = st.Close()
	}
}

// All calls of a command share one limit for waiting for a coordinator, counted from the start of
// the outage, and Lost is called once. The wait ends at once if no coordinator has answered before,
// if one refuses the client, or with Ctrl-C.
func TestWaitingForACoordinator(t *testing.T) {
	const limit = time.Minute
	gone := connect.NewError(connect.CodeUnavailable, &net.OpError{Op: "dial", Err: errors.New("refused")})
	broken := connect.NewError(connect.CodeUnavailable, errors.New("the connection was closed"))
	stranded := wire.NoMajority("start c2")
	alone, three := []string{"http://a"}, []string{"http://a", "http://b", "http://c"}
	for name, c := range map[string]struct {
		addresses []string
		answered  bool // a call before
		errs      []error
		back      time.Duration // when a coordinator answers again, never if 0
		refused   bool
		waits     bool // the call waits to the limit, or until a coordinator is back
		told      bool
	}{
		"it comes back at once":              {alone, true, []error{broken, gone}, noticeAfter / 2, false, true, false},
		"it comes back after a while":        {alone, true, []error{broken, gone}, limit / 2, false, true, true},
		"it stays away":                      {alone, true, []error{broken, gone}, 0, false, true, true},
		"one of three comes back":            {three, true, []error{broken, gone}, limit / 2, false, true, true},
		"two of three stay away":             {three, true, []error{gone, gone, stranded}, 0, false, true, true},
		"none has answered":                  {alone, false, []error{gone}, 0, false, false, false},
		"it refuses the client":              {alone, true, []error{broken}, 0, true, false, false},
		"it comes back and refuses":          {alone, true, []error{gone, gone, gone, broken}, 0, true, false, false},
		"it is away, and would refuse":       {alone, true, []error{gone}, 0, true, true, true},
		"one that was alone says it stopped": {alone, true, []error{wire.LeaderChanged(broken), gone}, limit / 2, false, true, true},
	} {
		r, clock := testRetrier(t, c.addresses...)
		said := &outages{refused: c.refused}
		ctx := WithPatience(t.Context(), said.patience(limit))
		if c.answered {
			if err := r.Do(ctx, true, func() error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		began, n := clock.now(), 0
		lose := func() error {
			if n++; c.back > 0 && clock.since(began) >= c.back {
				return nil
			}
			return c.errs[min(n, len(c.errs))-1]
		}
		err := r.Do(ctx, true, lose)
		took := clock.since(began)
		switch {
		case c.back > 0:
			if err != nil || took < c.back {
				t.Errorf("%s: %v after %s", name, err, took)
			}
		case err == nil, c.waits && (took < limit || took > 2*limit), !c.waits && (took > noticeAfter || n > len(c.errs)):
			t.Errorf("%s: gave up after %s and %d calls: %v", name, took, n, err)
		case c.waits: // another call of the command does not restart the limit
			if err := r.Do(ctx, true, lose); err == nil || clock.since(began) > took+longSearchPause {
				t.Errorf("%s: a second call took %s: %v", name, clock.since(began)-took, err)
			}
		}
		found := 0
		if c.told && c.back > 0 {
			found = 1
		}
		if (len(said.lost) == 1) != c.told || len(said.lost) > 1 || c.told && !said.lost[0].Equal(began.Add(limit)) || said.found != found {
			t.Errorf("%s: said %v; it began at %s", name, said, began)
		}
	}
}

func TestWaitingForACoordinatorEndsWithCtrlC(t *testing.T) {
	r, _ := testRetrier(t, "http://a")
	ctx, interrupt := context.WithCancel(WithPatience(t.Context(), new(outages).patience(time.Minute)))
	defer interrupt()
	if err := r.Do(ctx, true, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	n := 0
	err := r.Do(ctx, true, func() error {
		if n++; n == 3 {
			interrupt()
		}
		return connect.NewError(connect.CodeUnavailable, &net.OpError{Op: "dial", Err: errors.New("refused")})
	})
	if err == nil || n != 3 {
		t.Errorf("%v after %d calls", err, n)
	}
}

// A stream of events that is open again has found its coordinator, even if its next event comes
// late: the next outage has the whole limit.
func TestAQuietStreamHasFoundItsCoordinator(t *testing.T) {
	r, clock := testRetrier(t, Base) // the server sets the address
	srv := &quietServer{ends: func(n int) {
		clock.pass(40 * time.Second) // of silence
		if n == 1 {
			clock.pass(time.Hour)
		}
	}}
	mux := http.NewServeMux()
	mux.Handle(droverv1connect.NewClientServiceHandler(srv))
	h := httptest.NewServer(mux)
	defer h.Close()
	r.transport.addresses, r.transport.current = []string{h.URL}, h.URL
	said := &outages{}
	c := droverv1connect.NewClientServiceClient(&http.Client{Transport: r.transport}, Base, connect.WithInterceptors(r))
	st, err := c.Events(WithPatience(t.Context(), said.patience(time.Minute)), connect.NewRequest(&droverv1.EventsRequest{Follow: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if !st.Receive() || st.Msg().GetPosition() != "6" || !slices.Equal(srv.after, []string{"", "5", "5", "5"}) {
		t.Errorf("%v, %v; asked for what is after %q", st.Msg(), st.Err(), srv.after)
	}
}

// quietServer opens a stream of events at position 5 and breaks it off, three times, and then sends
// an event.
type quietServer struct {
	droverv1connect.UnimplementedClientServiceHandler
	ends  func(n int)
	after []string
}

func (s *quietServer) Events(_ context.Context, r *connect.Request[droverv1.EventsRequest], st *connect.ServerStream[droverv1.Event]) error {
	s.after = append(s.after, r.Msg.GetAfter())
	st.ResponseHeader().Set(wire.Position, "5")
	if n := len(s.after); n <= 3 {
		if err := st.Send(nil); err != nil {
			return err
		}
		s.ends(n)
		panic(http.ErrAbortHandler)
	}
	return st.Send(&droverv1.Event{Position: "6"})
}
