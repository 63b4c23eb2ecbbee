package coordinator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/anishathalye/porcupine"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// chaosSeed returns the seed of DROVER_SEED, or a new one, and prints it.
func chaosSeed(t *testing.T) uint64 {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("DROVER_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("DROVER_SEED: %v", err)
		}
	}
	t.Logf("seed %d: the same faults again with DROVER_SEED=%d", seed, seed)
	return seed
}

// chaosFaults is how many faults a test injects.
func chaosFaults(inShort, else_ int) int {
	switch {
	case os.Getenv("DROVER_SOAK") != "":
		return 300
	case testing.Short():
		return inShort
	default:
		return else_
	}
}

// injectFaults injects n faults, one at a time, so that a majority is always
// whole. After each one, and after its end, progress must return: it waits until
// the cluster works again.
func (s *testServers) injectFaults(r *rand.Rand, n int, progress func(after string)) {
	s.t.Helper()
	for i := range n {
		leader, victim := s.awaitLeader(), s.ids[r.IntN(len(s.ids))]
		if r.IntN(2) == 0 {
			victim = leader
		}
		var others []string
		for _, id := range s.ids {
			if id != victim {
				others = append(others, id)
			}
		}
		what := ""
		end := s.net.Mend
		switch r.IntN(6) {
		case 0:
			what = "kill " + victim
			s.kill(victim)
			end = func() { s.start(victim, nil) }
		case 1:
			what = "isolate " + victim
			s.net.Isolate(victim, append(others, "user", "n1", "n2")...)
		case 2:
			what = "cut off from the others " + victim
			s.net.Isolate(victim, others...)
		case 3:
			what = "nobody hears " + victim
			for _, o := range others {
				s.net.Cut(victim, o)
			}
		case 4:
			what = "deaf is " + victim
			for _, o := range others {
				s.net.Cut(o, victim)
			}
		case 5:
			what = "transfer to " + victim
			ctx, cancel := context.WithTimeout(s.ctx, waitLimit)
			_, _ = s.operator.TransferLeadership(ctx, connect.NewRequest(&droverv1.TransferLeadershipRequest{Id: victim})) // it may come too late
			cancel()
		}
		s.t.Logf("fault %d: %s (leader %s)", i, what, leader)
		progress(what)
		end()
		progress("the end of: " + what)
	}
}

// op is an operation of the linearizability test: of a tenant's weight or of the
// job of a name.
type op struct {
	kind, key string
	value     int // weight to set
}

type opResult struct {
	value   int // weight, 0 for no such tenant
	state   string
	refused bool // the name is live, or there is no such job
	busy    bool // somebody submits this name at the same time
	unknown bool // it may have had its effect
}

// chaosModel is what one coordinator that never fails would answer.
var chaosModel = porcupine.Model{
	Partition: func(h []porcupine.Operation) [][]porcupine.Operation {
		by := map[string]int{}
		var out [][]porcupine.Operation
		for _, o := range h {
			k := o.Input.(op).key
			if _, ok := by[k]; !ok {
				by[k] = len(out)
				out = append(out, nil)
			}
			out[by[k]] = append(out[by[k]], o)
		}
		return out
	},
	Init: func() any { return opResult{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(opResult), input.(op), output.(opResult)
		switch in.kind {
		case "set":
			return true, opResult{value: in.value}
		case "get":
			return s.value == out.value, s
		case "submit":
			if out.busy {
				return true, s
			}
			if out.unknown {
				return true, opResult{state: "live"} // or refused, which is the same
			}
			if out.refused {
				return s.state == "live", s
			}
			return s.state != "live", opResult{state: "live"}
		case "stop":
			next := s
			if s.state != "" {
				next.state = "stopped"
			}
			if out.unknown {
				return true, next
			}
			return out.refused == (s.state == ""), next
		case "status":
			return s.state == out.state, s
		}
		return false, s
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
}

// chaosClient performs random operations and records them.
type chaosClient struct {
	s     *testServers
	id    int
	c     droverv1connect.ClientServiceClient
	r     *rand.Rand
	began time.Time
	done  *atomic.Int64 // operations of all clients with a certain outcome
	log   []porcupine.Operation
}

func (c *chaosClient) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		in := op{kind: []string{"set", "get", "submit", "stop", "status"}[c.r.IntN(5)]}
		if in.key = fmt.Sprint("j", c.r.IntN(3)); in.kind == "set" || in.kind == "get" {
			in.key, in.value = fmt.Sprint("t", c.r.IntN(2)), c.id*1_000_000+n+1
		}
		call := time.Since(c.began).Nanoseconds()
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), waitLimit/2)
		out, err := c.do(limit, in, fmt.Sprint(c.id, "-", n))
		cancel()
		end := time.Since(c.began).Nanoseconds()
		if err != nil {
			if in.kind == "get" || in.kind == "status" {
				continue // it says nothing
			}
			out.unknown, end = true, int64(1)<<62
		} else {
			c.done.Add(1)
		}
		c.log = append(c.log, porcupine.Operation{ClientId: c.id, Input: in, Call: call, Output: out, Return: end})
		if err != nil {
			c.id += 100 // this client waits for an answer; the next one goes on
		}
	}
}

// do performs an operation. An error means that its outcome is unknown.
func (c *chaosClient) do(ctx context.Context, in op, key string) (out opResult, err error) {
	switch in.kind {
	case "set":
		_, err = c.c.ApplyTenants(ctx, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: []*droverv1.Tenant{{Name: in.key, Weight: float64(in.value)}}}))
	case "get":
		var res *connect.Response[droverv1.ListTenantsResponse]
		if res, err = c.c.ListTenants(ctx, connect.NewRequest(&droverv1.ListTenantsRequest{})); err == nil {
			for _, t := range res.Msg.Tenants {
				if t.Tenant.Name == in.key {
					out.value = int(t.Tenant.Weight)
				}
			}
		}
	case "submit":
		j := groupJob(in.key, 1)
		jobspec.SetDefaults(j)
		text, e := jobspec.Encode(j)
		if e != nil {
			return out, e
		}
		_, err = c.c.SubmitJob(ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: string(text), IdempotencyKey: key}))
		if err = wire.FromError(err); errors.Is(err, fault.Conflict) {
			out.busy, out.refused, err = strings.Contains(err.Error(), "being submitted"), true, nil
		}
	case "stop":
		_, err = c.c.StopJob(ctx, connect.NewRequest(&droverv1.StopJobRequest{Job: in.key}))
		if err = wire.FromError(err); errors.Is(err, fault.NotFound) {
			out.refused, err = true, nil
		}
	case "status":
		var res *connect.Response[droverv1.GetJobResponse]
		res, err = c.c.GetJob(ctx, connect.NewRequest(&droverv1.GetJobRequest{Job: in.key}))
		switch err = wire.FromError(err); {
		case errors.Is(err, fault.NotFound):
			err = nil
		case err == nil && ended(res.Msg.Job.State):
			out.state = "stopped"
		case err == nil:
			out.state = "live"
		}
	}
	return out, err
}

// TestAnswersAreLinearizableUnderFaults has clients change and read tenants and
// jobs while servers are killed and cut off, and has porcupine look for an order
// that a single coordinator could have answered in.
func TestAnswersAreLinearizableUnderFaults(t *testing.T) {
	t.Parallel()
	seed := chaosSeed(t)
	s := newTestServers(t, 3, func(c *Config) { c.SnapshotEntries = 64 })
	var done atomic.Int64
	var clients []*chaosClient
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer wg.Wait()
	defer cancel()
	began := time.Now()
	for i := range 4 {
		c := &chaosClient{s: s, id: i + 1, c: droverv1connect.NewClientServiceClient(s.as("user/root")), r: rand.New(rand.NewPCG(seed, uint64(i))), began: began, done: &done}
		clients = append(clients, c)
		wg.Go(func() { c.run(ctx) })
	}
	s.injectFaults(rand.New(rand.NewPCG(seed, 99)), chaosFaults(4, 20), func(after string) {
		want := done.Load() + 40
		s.waitUntil("the clients go on after "+after, func() bool { return done.Load() >= want })
	})
	cancel()
	wg.Wait()
	var history []porcupine.Operation
	for _, c := range clients {
		history = append(history, c.log...)
	}
	t.Logf("%d operations", len(history))
	result, info := porcupine.CheckOperationsVerbose(chaosModel, history, time.Minute)
	switch result {
	case porcupine.Illegal:
		file := t.ArtifactDir() + "/history.html"
		t.Errorf("seed %d: no order explains the answers: %s (%v)", seed, file, porcupine.VisualizePath(chaosModel, info, file))
	case porcupine.Unknown:
		if os.Getenv("DROVER_SOAK") != "" {
			t.Fatalf("seed %d: porcupine found neither an order nor that there is none, in its time", seed)
		}
		t.Skip("not proved here: that an order explains the answers, which porcupine did not find in its time, nor that there is none")
	}
}

// TestJobsRunOnThroughFaults has jobs run while servers are killed and cut off:
// each ends once, with its output, and no run is started twice.
func TestJobsRunOnThroughFaults(t *testing.T) {
	t.Parallel()
	seed := chaosSeed(t)
	s := newTestServers(t, 3, func(c *Config) { c.SnapshotEntries = 64 })
	s.fs.Input("hdfs:///in", 3, "n1")
	nodes := []*coordtest.Node{s.addNode("n1", coordtest.Succeed), s.addNode("n2", coordtest.Succeed)}
	s.waitForNodes()
	tasks, jobs := 0, 0
	s.injectFaults(rand.New(rand.NewPCG(seed, 99)), chaosFaults(4, 20), func(string) {
		name := fmt.Sprint("mr", jobs)
		jobs++
		s.submit(mapReduceJob(name, 2))
		tasks += 5
	})
	want := []string{}
	for i := range jobs {
		name := fmt.Sprint("mr", i)
		s.waitForEnd(name, succeeded)
		for _, part := range []string{"_SUCCESS", "part-00000", "part-00001"} {
			want = append(want, "hdfs:///out/"+name+"/"+part)
		}
	}
	if got := s.fs.String(); !sameFiles(got, want) {
		t.Errorf("seed %d: files are %s, want %s", seed, got, want)
	}
	runs := 0
	for _, n := range nodes {
		r, most := n.StartCounts()
		if runs += r; most > 1 {
			t.Errorf("seed %d: %s started a run %d times", seed, n.Info.Name, most)
		}
	}
	if runs != tasks {
		t.Errorf("seed %d: %d runs for %d tasks", seed, runs, tasks)
	}
}

// sameFiles compares a listing, "[a b c]", with names in any order.
func sameFiles(listing string, want []string) bool {
	got := map[string]bool{}
	for _, f := range strings.Fields(strings.Trim(listing, "[]")) {
		got[f] = true
	}
	for _, w := range want {
		if !got[w] {
			return false
		}
	}
	return len(got) == len(want)
}
