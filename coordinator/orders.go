package coordinator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// Limits of orders.
const (
	maxOrders  = 4096             // outstanding at once
	orderRetry = 20 * time.Second // without a sign of life another node is asked
)

// orderBook hands work on the outside world to nodes and waits for answers.
// Orders are safe to repeat, so a node that is lost, or silent for orderRetry,
// is replaced by another. They live in memory: whoever asks keeps the intent,
// in the facts where it must outlive the coordinator.
type orderBook struct {
	wanted *wantedSets
	nodes  func(scheme string) []int32 // nodes that reach it now, in order of preference

	mu      sync.Mutex
	term    uint64
	next    uint64
	pending map[uint64]*pendingOrder
}

type pendingOrder struct {
	order   *droverv1.Order
	node    int32
	tried   []int32
	answers chan *droverv1.OrderAnswer // buffered: one end, or the newest progress
}

func newOrderBook(w *wantedSets, nodes func(string) []int32) *orderBook {
	return &orderBook{wanted: w, nodes: nodes, pending: map[uint64]*pendingOrder{}}
}

// reset begins a term: ids never repeat those of an earlier leader.
func (b *orderBook) reset(term uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.term, b.next = term, 0
}

// scheme gives the part of a URI before "://".
func scheme(uri string) string {
	s, _, ok := strings.Cut(uri, "://")
	if !ok {
		return ""
	}
	return s
}

// ask hands o to a node that reaches the scheme and waits for its answer until
// ctx ends. prefer, if not 0, is asked first. progress, if not nil, hears what
// the node says meanwhile. An error in the answer comes back with its class.
func (b *orderBook) ask(ctx context.Context, o *droverv1.Order, sch string, prefer int32, progress func(string)) (*droverv1.OrderAnswer, error) {
	p, err := b.enter(ctx, o)
	if err != nil {
		return nil, err
	}
	defer b.leave(o.Id)
	said := ""
	for {
		if err := b.assign(p, sch, prefer); err != nil {
			said = err.Error()
		}
		prefer = 0
		a, err := b.await(ctx, p, progress)
		switch {
		case err != nil && said != "":
			return nil, fault.New(fault.Unavailable, "%s", said)
		case err != nil:
			return nil, err
		case a != nil:
			return a, orderError(a)
		}
	}
}

func (b *orderBook) enter(ctx context.Context, o *droverv1.Order) (*pendingOrder, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pending) >= maxOrders {
		return nil, fault.New(fault.Exhausted, "%d questions to nodes are open, the limit: try again in a second", maxOrders)
	}
	b.next++
	o.Id = b.term<<32 | b.next
	if end, ok := ctx.Deadline(); ok {
		o.LimitMs = max(1, time.Until(end).Milliseconds())
	}
	p := &pendingOrder{order: o, answers: make(chan *droverv1.OrderAnswer, 1)}
	b.pending[o.Id] = p
	return p, nil
}

func (b *orderBook) leave(id uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.pending, id)
}

// assign gives the order to a node: the preferred one, else one that was not
// tried yet, else any.
func (b *orderBook) assign(p *pendingOrder, sch string, prefer int32) error {
	nodes := b.nodes(sch)
	if len(nodes) == 0 {
		return fault.New(fault.Unavailable, "no node that is up reaches %s://", sch)
	}
	node := nodes[0]
	fresh := slices.DeleteFunc(slices.Clone(nodes), func(n int32) bool { return slices.Contains(p.tried, n) })
	switch {
	case prefer != 0 && slices.Contains(nodes, prefer):
		node = prefer
	case len(fresh) > 0:
		node = fresh[int(p.order.Id%uint64(len(fresh)))]
	}
	b.mu.Lock()
	p.node = node
	p.tried = append(p.tried, node)
	if len(p.tried) > 64 {
		p.tried = p.tried[1:]
	}
	b.mu.Unlock()
	b.wanted.order(node, p.order.Id)
	return nil
}

// await gives the answer, or nil when another node should be asked.
func (b *orderBook) await(ctx context.Context, p *pendingOrder, progress func(string)) (*droverv1.OrderAnswer, error) {
	idle := orderRetry
	b.mu.Lock()
	if p.node == 0 {
		idle = 100 * time.Millisecond // nobody has it: look for a node again soon
	}
	b.mu.Unlock()
	t := time.NewTimer(idle)
	defer t.Stop()
	for {
		select {
		case a := <-p.answers:
			switch {
			case a == nil:
				return nil, nil // its node was lost
			case a.GetProgress() == "":
				return a, nil
			case progress != nil:
				progress(a.GetProgress())
			}
			t.Reset(orderRetry)
		case <-t.C:
			return nil, nil
		case <-ctx.Done():
			return nil, fault.New(fault.Unavailable, "no node answered in time: %w", ctx.Err())
		}
	}
}

// answer takes a node's answer; one to an order of another node or that is not
// open any more is dropped.
func (b *orderBook) answer(node int32, a *droverv1.OrderAnswer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pending[a.GetId()]
	if p == nil || p.node != node {
		return
	}
	p.offer(a)
}

// offer puts a in place of an answer nobody took yet.
func (p *pendingOrder) offer(a *droverv1.OrderAnswer) {
	select {
	case <-p.answers:
	default:
	}
	p.answers <- a
}

// lost tells the waiting that their node is gone.
func (b *orderBook) lost(node int32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.pending {
		if p.node == node {
			p.node = 0
			p.offer(nil)
		}
	}
}

// of lists the open orders of a node: all of them with full, else those named.
func (b *orderBook) of(node int32, full bool, ids []uint64) []*droverv1.Order {
	b.mu.Lock()
	defer b.mu.Unlock()
	if full {
		ids = ids[:0:0]
		for id := range b.pending {
			ids = append(ids, id)
		}
		slices.Sort(ids)
	}
	var out []*droverv1.Order
	for _, id := range ids {
		if p := b.pending[id]; p != nil && p.node == node {
			out = append(out, p.order)
		}
	}
	return out
}

// orderError gives the error of an answer its class.
func orderError(a *droverv1.OrderAnswer) error {
	if a.GetError() == "" {
		return nil
	}
	for _, c := range fault.Classes() {
		if c.Error() == a.GetErrorClass() {
			return fault.New(c, "%s", a.GetError())
		}
	}
	return errors.New(a.GetError())
}
