package coordinator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/internal/version"
)

// scramble sets fields of a message to values that no daemon sends, each with the probability p.
func scramble(r *rand.Rand, m protoreflect.Message, p float64) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap():
		case f.IsList() && r.Float64() < p:
			if l := m.Mutable(f).List(); r.IntN(2) == 0 && l.Len() > 0 {
				l.Truncate(l.Len() - 1)
			} else if f.Kind() == protoreflect.MessageKind {
				e := l.NewElement()
				scramble(r, e.Message(), 0.5)
				l.Append(e)
			} else {
				l.Append(strangeValue(r, f))
			}
		case f.IsList():
			for j := range m.Get(f).List().Len() {
				if l := m.Mutable(f).List(); f.Kind() == protoreflect.MessageKind {
					scramble(r, l.Get(j).Message(), p)
				} else if r.Float64() < p {
					l.Set(j, strangeValue(r, f))
				}
			}
		case f.Kind() == protoreflect.MessageKind:
			if m.Has(f) || r.Float64() < p {
				scramble(r, m.Mutable(f).Message(), p)
			}
		case r.Float64() < p:
			m.Set(f, strangeValue(r, f))
		}
	}
}

func strangeValue(r *rand.Rand, f protoreflect.FieldDescriptor) protoreflect.Value {
	large := []int64{0, 1, -1, math.MaxInt32, math.MinInt32, 1 << 45, 1 << 50, 1 << 53, 1 << 60, math.MaxInt64, math.MinInt64}
	n := large[r.IntN(len(large))]
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(n%2 == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(r.IntN(8) - 1))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(n)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(n))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64([]float64{0, -1, 1e308, math.NaN(), math.Inf(1), math.Inf(-1)}[r.IntN(6)])
	default:
		return protoreflect.ValueOfString([]string{"", "x", "\x1b[2J\n\u202e", "/../..", "file:///in/0"}[r.IntN(5)])
	}
}

// hostileNode is somebody with the certificate of a node.
type hostileNode struct {
	client   droverv1connect.NodeServiceClient
	info     *droverv1.NodeInfo
	number   int32
	epoch    uint64
	sequence uint64

	mu       sync.Mutex
	wanted   map[string]*droverv1.WantedAttempt
	requests []*droverv1.NodeRequest
}

func (n *hostileNode) register(ctx context.Context, info *droverv1.NodeInfo) error {
	res, err := n.client.Register(ctx, connect.NewRequest(&droverv1.RegisterRequest{Node: info, Epoch: n.epoch, Protocol: version.Protocol}))
	if err == nil {
		n.number, n.epoch = res.Msg.GetNode(), res.Msg.GetEpoch()
	}
	return err
}

// watch notes what the coordinator wants until ctx ends.
func (n *hostileNode) watch(ctx context.Context) {
	for ctx.Err() == nil {
		n.mu.Lock()
		q := &droverv1.WatchRequest{Node: n.number, Epoch: n.epoch}
		n.mu.Unlock()
		s, err := n.client.Watch(ctx, connect.NewRequest(q))
		for err == nil && s.Receive() {
			n.mu.Lock()
			if s.Msg().GetFull() {
				clear(n.wanted)
			}
			for _, w := range s.Msg().GetPut() {
				n.wanted[w.GetKey().String()] = w
			}
			for _, k := range s.Msg().GetRemove() {
				delete(n.wanted, k.String())
			}
			n.requests = append(n.requests, s.Msg().GetRequests()...)
			n.mu.Unlock()
		}
		if err == nil {
			_ = s.Close()
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// report says something about attempts that it was given, and answers what it was asked.
func (n *hostileNode) report(ctx context.Context, r *rand.Rand) (again bool, err error) {
	n.sequence++
	q := &droverv1.ReportRequest{Node: n.number, Epoch: n.epoch, Sequence: n.sequence}
	n.mu.Lock()
	for _, k := range slices.Sorted(maps.Keys(n.wanted)) {
		if r.IntN(2) == 0 {
			continue
		}
		w := n.wanted[k]
		level := max(w.GetLevel(), droverv1.Level_LEVEL_RUNNING)
		a := &droverv1.SeenAttempt{Key: proto.CloneOf(w.GetKey()), Phase: droverv1.Phase_PHASE_RUNNING, Level: level, Occupied: &droverv1.Resources{Memory: 1 << 20}}
		if r.IntN(4) > 0 {
			scramble(r, a.ProtoReflect(), 0.2)
			a.Key = proto.CloneOf(w.GetKey())
		}
		q.Attempts = append(q.Attempts, a)
	}
	for _, x := range n.requests {
		a := &droverv1.NodeResponse{Id: x.GetId()}
		if l := x.GetLocate(); l != nil {
			a.Locate = &droverv1.LocateResponse{TotalFiles: 1, TotalBytes: 100, Blocks: []*droverv1.FileBlock{{Uri: "hdfs:///in/0", Length: 100, FileLength: 100}}}
			if r.IntN(3) > 0 {
				scramble(r, a.Locate.ProtoReflect(), 0.3)
			}
		}
		q.Responses = append(q.Responses, a)
	}
	n.requests = nil
	n.mu.Unlock()
	if r.IntN(4) == 0 {
		q.Load = &droverv1.NodeLoad{}
		scramble(r, q.Load.ProtoReflect(), 0.3)
		q.Load.Problems = nil
	}
	res, err := n.client.Report(ctx, connect.NewRequest(q))
	return err == nil && res.Msg.GetRegisterAgain(), err
}

// Whatever somebody reports who has one node's certificate, the coordinator goes on, also after a restart
// from what it believed, and tasks of another node end.
func TestHostileNodeEndsNoCoordinator(t *testing.T) {
	s := seed.New(t)
	r := rand.New(rand.NewPCG(s, 0))
	b := newTestCluster(t, func(c *Config) { c.Lease = time.Minute; c.SubmitRate = 1000 })
	good, _ := b.addNode(coordtest.Info("good"), coordtest.Hang)
	info := coordtest.Info("evil")
	info.Levels = append(info.Levels, droverv1.Level_LEVEL_SWAPPED, droverv1.Level_LEVEL_CHECKPOINTED)
	info.Swap = 1 << 30
	n := &hostileNode{client: droverv1connect.NewNodeServiceClient(b.http, "http://c"), info: info, wanted: map[string]*droverv1.WantedAttempt{}}
	b.waitUntil("it is registered", func() bool { return n.register(b.ctx, info) == nil })
	ctx, cancel := context.WithCancel(b.ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { n.watch(ctx) })
	alive := func(what string) {
		select {
		case err := <-b.done:
			b.cancel = nil
			t.Fatalf("%s: the coordinator ended: %v", what, err)
		default:
		}
	}
	rounds := 400
	for i := range rounds {
		switch r.IntN(10) {
		case 0:
			j := groupJob(fmt.Sprintf("job-%d", i), 4)
			_, _ = b.trySubmit(j, "")
		case 1:
			j := mapReduceJob(fmt.Sprintf("mr-%d", i), 2)
			wg.Go(func() { _, _ = b.trySubmit(j, "") })
		case 2:
			x := proto.CloneOf(info)
			scramble(r, x.ProtoReflect(), 0.1)
			x.Name = "evil"
			n.mu.Lock()
			_ = n.register(b.ctx, x)
			n.mu.Unlock()
		case 3:
			n.mu.Lock()
			for _, k := range slices.Sorted(maps.Keys(n.wanted)) {
				w := n.wanted[k]
				_, _ = b.client.SetLevel(b.ctx, connect.NewRequest(&droverv1.SetLevelRequest{Job: fmt.Sprint(w.GetKey().GetJob()), Stage: w.GetSpec().GetStageName(), Task: w.GetKey().GetTask(),
					Level: droverv1.Level(1 + r.IntN(4)), Reason: "a test"}))
				break
			}
			n.mu.Unlock()
		default:
			if again, err := n.report(b.ctx, r); err != nil || again {
				n.mu.Lock()
				_ = n.register(b.ctx, info)
				n.mu.Unlock()
			}
		}
		alive(fmt.Sprintf("round %d", i))
	}
	b.kill()
	b.start()
	b.waitUntil("it answers after a restart", func() bool {
		alive("restart")
		_, err := b.client.ListJobs(b.ctx, connect.NewRequest(&droverv1.ListJobsRequest{}))
		return err == nil
	})
	good.SetBehaviour(coordtest.Succeed)
	b.drain("evil", 0)
	b.submit(groupJob("last", 4))
	b.waitForEnd("last", succeeded)
}

// A node may come back with fewer disks while a job lives of which tasks ended on the others. At the next start
// of the coordinator they were replayed on disks that are not there, and it ended, at each start.
func TestNodeWithFewerDisksEndsNoCoordinator(t *testing.T) {
	b := newTestCluster(t, nil)
	info := coordtest.Info("n1")
	info.Disks = []*droverv1.Disk{{Name: "d0", Io: 50 << 20, Space: 100 << 30}, {Name: "d1", Io: 50 << 20, Space: 100 << 30}}
	_, stop := b.addNode(info, func(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
		if w.GetKey().GetTask() == 7 {
			return nil
		}
		return coordtest.Succeed(w)
	})
	b.waitForNodes()
	j := groupJob("lives", 8)
	j.Stages[0].Resources.IO = 20 << 20 // no disk has room for all
	b.submit(j)
	b.waitUntil("some of its tasks have ended", func() bool { return b.job("lives").Job.TasksDone == 7 })
	stop()
	less := proto.CloneOf(info)
	less.Disks = less.Disks[:1]
	b.addNode(less, coordtest.Hang)
	b.waitUntil("the node is back", func() bool {
		res, err := b.client.ListNodes(b.ctx, connect.NewRequest(&droverv1.ListNodesRequest{}))
		return err == nil && len(res.Msg.GetNodes()) == 1 && len(res.Msg.GetNodes()[0].GetInfo().GetDisks()) == 1
	})
	b.kill()
	b.start()
	b.waitUntil("the job goes on", func() bool { return b.job("lives").Job.TasksRunning == 1 })
}

// What a node says of itself is believed within bounds: the memory of its harness is charged to all tasks.
func TestRegistrationsAreBounded(t *testing.T) {
	for name, change := range map[string]func(*droverv1.NodeInfo){
		"a negative harness":  func(i *droverv1.NodeInfo) { i.TaskOverheadMemory = -1 },
		"a harness of 8 EiB":  func(i *droverv1.NodeInfo) { i.TaskOverheadMemory = math.MaxInt64 },
		"a long description":  func(i *droverv1.NodeInfo) { i.CpuFlags = slices.Repeat([]string{"flag"}, 100_000) },
		"a negative capacity": func(i *droverv1.NodeInfo) { i.Allocatable.Cpu = -1 },
		"disks beyond counts": func(i *droverv1.NodeInfo) { i.Disks[0].Io = math.MaxInt64 },
	} {
		i := coordtest.Info("n")
		if err := checkNode(i); err != nil {
			t.Fatal(err)
		}
		change(i)
		if err := checkNode(i); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// An input is located by a node, and its files are those of a tenant: a sparse one can have any length.
func TestBlocksThatCannotBeAreRefused(t *testing.T) {
	for _, c := range []struct {
		blocks []*droverv1.FileBlock
		want   error
	}{
		{[]*droverv1.FileBlock{{Length: 10, FileLength: 20}, {Offset: 10, Length: 10, FileLength: 20}, {}}, nil},
		{[]*droverv1.FileBlock{{Length: math.MaxInt64, FileLength: math.MaxInt64}}, fault.Exhausted},
		{[]*droverv1.FileBlock{{Length: 1 << 52, FileLength: 1 << 52}, {Length: 1 << 52, FileLength: 1 << 52}, {Length: 1, FileLength: 1}}, fault.Exhausted},
		{[]*droverv1.FileBlock{{Offset: -1, Length: 1, FileLength: 1}}, fault.Corrupt},
		{[]*droverv1.FileBlock{{Length: -1, FileLength: 1}}, fault.Corrupt},
		{[]*droverv1.FileBlock{{Length: 1, FileLength: math.MinInt64}}, fault.Corrupt},
		{[]*droverv1.FileBlock{{Offset: math.MaxInt64, Length: 1, FileLength: 5}}, fault.Corrupt},
	} {
		if err := checkBlocks(c.blocks); !errors.Is(err, c.want) {
			t.Errorf("%v: %v, want %v", c.blocks, err, c.want)
		}
	}
}

// The coordinator and other nodes call a node at the address that it names: a socket would be one of theirs.
func TestRemoteNodesNameNoSocket(t *testing.T) {
	b, as, base := secure(t)
	n := droverv1connect.NewNodeServiceClient(as("node/n1"), base)
	for address, want := range map[string]error{"unix:/run/drover/coordinator.sock": fault.Invalid, "n1:7777": nil} {
		i := coordtest.Info("n1")
		i.Address = address
		if _, err := n.Register(b.ctx, connect.NewRequest(&droverv1.RegisterRequest{Node: i})); !errors.Is(wire.FromError(err), want) {
			t.Errorf("%s: %v, want %v", address, err, want)
		}
	}
}
