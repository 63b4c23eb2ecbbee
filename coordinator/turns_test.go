package coordinator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
)

// queue lets a call wait for a turn, and returns when it has it or waits.
func queue(t *testing.T, ts *turns, ctx context.Context, name string, got chan<- string) (done chan func()) {
	t.Helper()
	before := func() int {
		ts.mu.Lock()
		defer ts.mu.Unlock()
		n := ts.busy
		for _, q := range ts.waiting {
			n += len(q)
		}
		return n
	}
	was := before()
	done = make(chan func(), 1)
	go func() {
		end, err := ts.wait(ctx, identity{kind: kindUser, name: name})
		if err != nil {
			got <- "error of " + name
			return
		}
		done <- end
		got <- name
	}()
	for before() == was {
		continue // until it is in the queue
	}
	return done
}

func TestTurnsLeaveSomeToOthersAndGoRound(t *testing.T) {
	ts := newTurns("reads", 2, 1, 3)
	got := make(chan string, 10)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	a1 := queue(t, ts, ctx, "a", got)
	a2 := queue(t, ts, ctx, "a", got) // waits, though a turn is free
	short, leave := context.WithCancel(ctx)
	queue(t, ts, short, "a", got)
	a4 := queue(t, ts, ctx, "a", got)
	if _, err := ts.wait(ctx, identity{kind: kindUser, name: "a"}); !errors.Is(err, fault.Overloaded) {
		t.Errorf("a fourth that waits: %v", err)
	}
	b1 := queue(t, ts, ctx, "b", got) // has the free one
	c1 := queue(t, ts, ctx, "c", got)
	for range 2 {
		if n := <-got; n != "a" && n != "b" {
			t.Fatalf("%s has a turn", n)
		}
	}
	leave()
	want := func(name string) {
		t.Helper()
		if n := <-got; n != name {
			t.Fatalf("the next turn is that of %s, want %s", n, name)
		}
	}
	want("error of a")
	(<-b1)() // a holds one and may not have two: it is c's
	want("c")
	(<-a1)()
	want("a") // a2
	(<-a2)()
	want("a")
	(<-c1)()
	(<-a4)()
	if ts.busy != 0 || len(ts.holds)+len(ts.waiting)+len(ts.order) != 0 {
		t.Errorf("left behind: %d busy, %v, %v, %v", ts.busy, ts.holds, ts.waiting, ts.order)
	}
}

func TestQuotesOfOneUserStopNobodyElses(t *testing.T) {
	q := newQuoter()
	bob := identity{kind: kindUser, name: "user/bob"}
	_, done, err := q.acquire(t.Context(), bob)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, maxQuotesWaiting)
	for range maxQuotesWaiting {
		go func() {
			_, _, err := q.acquire(ctx, bob)
			left <- err
		}()
	}
	for _, name := range []string{"user/alice", "user/ann"} {
		p, end, err := q.acquire(t.Context(), identity{kind: kindUser, name: name})
		if err != nil || p == nil {
			t.Fatalf("%s: %v", name, err)
		}
		defer end()
	}
	cancel()
	for range maxQuotesWaiting {
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("one that waited: %v", err)
		}
	}
	done()
}

func TestCallsOfOneUserAreBoundedInRate(t *testing.T) {
	b, as, base := secureWith(t, func(c *Config) { c.limits.callRate = 1 })
	h := as("user/bob")
	bob := droverv1connect.NewClientServiceClient(h, base)
	told := 0
	for range 50 {
		_, err := bob.Status(b.ctx, connect.NewRequest(&droverv1.StatusRequest{}))
		if wire.IsOverload(err) {
			told++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if told == 0 {
		t.Fatal("nobody told a user who makes 50 calls at once to come back later")
	}
	b.waitUntil("pages and metrics count too", func() bool {
		res, err := h.Get(base + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusTooManyRequests && res.Header.Get(wire.RetryAfter) != ""
	})
	// A call that he may not make at all is refused by its rate, too.
	b.waitUntil("refused calls count too", func() bool {
		_, err := droverv1connect.NewNodeServiceClient(h, base).Register(b.ctx, connect.NewRequest(&droverv1.RegisterRequest{}))
		return wire.IsOverload(err)
	})
	alice := droverv1connect.NewClientServiceClient(as("user/alice"), base)
	if _, err := alice.Status(b.ctx, connect.NewRequest(&droverv1.StatusRequest{})); err != nil {
		t.Errorf("another user: %v", err)
	}
}

func TestRegistrationsOfOneNodeAreBounded(t *testing.T) {
	b, as, base := secure(t)
	register := func(n droverv1connect.NodeServiceClient, name, rack string) error {
		_, err := n.Register(b.ctx, connect.NewRequest(&droverv1.RegisterRequest{Node: &droverv1.NodeInfo{Name: name, Rack: rack, Address: "127.0.0.1:1", Driver: "simulated",
			Allocatable: &droverv1.Resources{Cpu: 1000, Memory: 1 << 30}, Levels: []droverv1.Level{droverv1.Level_LEVEL_RUNNING}, Disks: []*droverv1.Disk{{Name: "d0", Io: 1 << 20, Space: 1 << 30}}}}))
		return err
	}
	n1, told := droverv1connect.NewNodeServiceClient(as("node/n1"), base), 0
	for i := range 200 {
		if err := register(n1, "n1", fmt.Sprintf("/r%d", i)); wire.IsOverload(err) {
			told++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if told == 0 {
		t.Error("200 registrations at once are all in the log")
	}
	if err := register(droverv1connect.NewNodeServiceClient(as("node/n2"), base), "n2", "/r"); err != nil {
		t.Errorf("another node: %v", err)
	}
}

// Who has used up a budget of time rests, for as long as what he had is above his part; others do not wait.
func TestTurnsWithABudget(t *testing.T) {
	ts := newTurns("reads", 2, 1, 3).withBudget(answerBudget)
	var mu sync.Mutex
	now := time.Unix(1000, 0)
	ts.now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	pass := func(d time.Duration) { mu.Lock(); defer mu.Unlock(); now = now.Add(d) }
	user := func(name string) identity { return identity{kind: kindUser, name: name} }
	turn := func(id identity, took time.Duration) {
		t.Helper()
		done, err := ts.wait(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		pass(took)
		done()
	}
	turn(user("a"), answerBudget.burst+100*time.Millisecond)
	turn(user("b"), 0)
	turn(identity{kind: kindLocal, name: "local"}, time.Hour)
	turn(identity{kind: kindLocal, name: "local"}, 0)
	mu.Lock()
	now = time.Unix(1000, 0).Add(answerBudget.burst + 100*time.Millisecond) // as if the local one had taken no time
	mu.Unlock()
	rests := func() bool { ts.mu.Lock(); defer ts.mu.Unlock(); return ts.restsLocked("a") }
	if !rests() {
		t.Fatal("after more than its burst it has a turn at once")
	}
	if pass(time.Duration(float64(100*time.Millisecond)/answerBudget.part) - time.Millisecond); !rests() {
		t.Error("it has its turn too early")
	}
	if pass(time.Millisecond); rests() {
		t.Error("it rests too long")
	}
	turn(user("a"), 0)
}

// One whose own quotes used up his share is told so, and until when; only who waits for others is told of these.
func TestRefusedQuotesSayWhatTheyWaitedFor(t *testing.T) {
	q := newQuoter()
	now := time.Unix(1000, 0)
	q.turns.now = func() time.Time { return now }
	bob, alice := identity{kind: kindUser, name: "user/bob"}, identity{kind: kindUser, name: "user/alice"}
	_, done, err := q.acquire(t.Context(), bob)
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(answerBudget.burst + 1600*time.Millisecond)
	done()
	const others = "other quotes are being made: try again in a second"
	until := now.Add(time.Duration(float64(1600*time.Millisecond) / answerBudget.part))
	for _, c := range []struct {
		id   identity
		want string
	}{
		{bob, "user/bob has used up its share of time for quotes: try again at 1970-01-01T00:16:53Z"},
		{alice, others},
	} {
		if err := q.waitedTooLong(c.id); !errors.Is(err, fault.Overloaded) || err.Error() != c.want {
			t.Errorf("%s is told %q, want %q", c.id.name, err, c.want)
		}
	}
	if now = until; q.waitedTooLong(bob).Error() != others {
		t.Errorf("after its rest: %v", q.waitedTooLong(bob))
	}
}

// One who rests gets his turn by himself, without another call that ends.
func TestARestEnds(t *testing.T) {
	ts := newTurns("reads", 2, 1, 3).withBudget(answerBudget)
	ts.mu.Lock()
	ts.rested["a"] = ts.now().Add(50 * time.Millisecond)
	ts.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done, err := ts.wait(ctx, identity{kind: kindUser, name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	done()
}
