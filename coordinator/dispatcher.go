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

// Limits of requests to nodes.
const (
	maxPendingRequests = 4096             // in progress at once
	responseTimeout    = 20 * time.Second // without any response, before another node is tried
)

// dispatcher sends requests to nodes and waits for their responses. Requests
// are idempotent, so a node that is lost, or silent for responseTimeout, is
// replaced by another. They live in memory: a caller whose intent must outlive
// the coordinator keeps it in the facts.
type dispatcher struct {
	wanted *wantedSets
	nodes  func(scheme string) []int32 // nodes that can access the scheme now, in order of preference

	mu      sync.Mutex
	term    uint64
	next    uint64
	pending map[uint64]*pendingRequest
}

type pendingRequest struct {
	request   *droverv1.NodeRequest
	node      int32
	only      int32 // the node that it is for; 0: any
	tried     []int32
	responses chan *droverv1.NodeResponse // buffered: the final response, or the latest progress
}

func newDispatcher(w *wantedSets, nodes func(string) []int32) *dispatcher {
	return &dispatcher{wanted: w, nodes: nodes, pending: map[uint64]*pendingRequest{}}
}

// reset begins to lead in a term: ids never repeat those of an earlier leader, which nodes may
// still be working on or answering. A leader whose loop ended, as when a transfer failed, leads
// again in the same term.
func (d *dispatcher) reset(term uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if term != d.term {
		d.term, d.next = term, 0
	}
}

// uriScheme returns the part of a URI before "://", or "".
func uriScheme(uri string) string {
	s, _, ok := strings.Cut(uri, "://")
	if !ok {
		return ""
	}
	return s
}

// call sends a request to a node that can access the scheme and waits for its
// response until ctx ends. progress, if not nil, receives the node's progress
// messages. An error in the response is returned with its class.
func (d *dispatcher) call(ctx context.Context, request *droverv1.NodeRequest, sch string, progress func(string)) (*droverv1.NodeResponse, error) {
	p, err := d.addPending(ctx, request)
	if err != nil {
		return nil, err
	}
	return d.await(ctx, p, sch, progress)
}

// callNode is call, restricted to one node.
func (d *dispatcher) callNode(ctx context.Context, request *droverv1.NodeRequest, sch string, node int32) (*droverv1.NodeResponse, error) {
	p, err := d.addPending(ctx, request)
	if err != nil {
		return nil, err
	}
	p.only = node
	return d.await(ctx, p, sch, nil)
}

func (d *dispatcher) await(ctx context.Context, p *pendingRequest, sch string, progress func(string)) (*droverv1.NodeResponse, error) {
	defer d.removePending(p.request.Id)
	assignError := ""
	for {
		if err := d.assign(p, sch); err != nil {
			assignError = err.Error()
		}
		a, err := d.awaitResponse(ctx, p, progress)
		switch {
		case err != nil && assignError != "":
			return nil, fault.New(fault.Unavailable, "%s", assignError)
		case err != nil:
			return nil, err
		case a != nil:
			return a, responseError(a)
		}
	}
}

func (d *dispatcher) addPending(ctx context.Context, request *droverv1.NodeRequest) (*pendingRequest, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.pending) >= maxPendingRequests {
		return nil, fault.Overload("%d requests to nodes are pending, the limit: try again in a second", maxPendingRequests)
	}
	d.next++
	request.Id = d.term<<32 | d.next
	if end, ok := ctx.Deadline(); ok {
		request.TimeoutMs = max(1, time.Until(end).Milliseconds())
	}
	p := &pendingRequest{request: request, responses: make(chan *droverv1.NodeResponse, 1)}
	d.pending[request.Id] = p
	return p, nil
}

func (d *dispatcher) removePending(id uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.pending, id)
}

// assign assigns a request to a node: the one it is restricted to, otherwise one not tried yet,
// otherwise any.
func (d *dispatcher) assign(p *pendingRequest, sch string) error {
	nodes := d.nodes(sch)
	if len(nodes) == 0 {
		return fault.New(fault.Unavailable, "no node that is up can access %s://: `drover node list` shows which are down", sch)
	}
	if p.only != 0 && !slices.Contains(nodes, p.only) {
		return fault.New(fault.Unavailable, "the node is not up, or cannot access %s://", sch)
	}
	node := nodes[0]
	untried := slices.DeleteFunc(slices.Clone(nodes), func(n int32) bool { return slices.Contains(p.tried, n) })
	switch {
	case p.only != 0:
		node = p.only
	case len(untried) > 0:
		node = untried[int(p.request.Id%uint64(len(untried)))]
	}
	d.mu.Lock()
	p.node = node
	p.tried = append(p.tried, node)
	if len(p.tried) > 64 {
		p.tried = p.tried[1:]
	}
	d.mu.Unlock()
	d.wanted.addRequest(node, p.request.Id)
	return nil
}

// awaitResponse returns the response, or nil if another node should be tried.
func (d *dispatcher) awaitResponse(ctx context.Context, p *pendingRequest, progress func(string)) (*droverv1.NodeResponse, error) {
	idle := responseTimeout
	d.mu.Lock()
	if p.node == 0 {
		idle = 100 * time.Millisecond // no node was assigned: look for one again soon
	}
	d.mu.Unlock()
	t := time.NewTimer(idle)
	defer t.Stop()
	for {
		select {
		case a := <-p.responses:
			switch {
			case a == nil:
				return nil, nil // its node was lost
			case a.GetProgress() == "":
				return a, nil
			case progress != nil:
				progress(a.GetProgress())
			}
			t.Reset(responseTimeout)
		case <-t.C:
			return nil, nil
		case <-ctx.Done():
			return nil, fault.New(fault.Unavailable, "no node answered in time: %w", ctx.Err())
		}
	}
}

// handleResponse delivers a node's response. It drops responses to requests
// that are no longer pending or assigned to another node.
func (d *dispatcher) handleResponse(node int32, a *droverv1.NodeResponse) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.pending[a.GetId()]
	if p == nil || p.node != node {
		return
	}
	p.deliver(a)
}

// deliver replaces a response that was not received yet.
func (p *pendingRequest) deliver(a *droverv1.NodeResponse) {
	select {
	case <-p.responses:
	default:
	}
	p.responses <- a
}

// nodeLost releases the requests assigned to a lost node.
func (d *dispatcher) nodeLost(node int32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.pending {
		if p.node == node {
			p.node = 0
			p.deliver(nil)
		}
	}
}

// requestsFor returns the pending requests of a node: all of them with full,
// otherwise those of ids.
func (d *dispatcher) requestsFor(node int32, full bool, ids []uint64) []*droverv1.NodeRequest {
	d.mu.Lock()
	defer d.mu.Unlock()
	if full {
		ids = ids[:0:0]
		for id := range d.pending {
			ids = append(ids, id)
		}
		slices.Sort(ids)
	}
	var out []*droverv1.NodeRequest
	for _, id := range ids {
		if p := d.pending[id]; p != nil && p.node == node {
			out = append(out, p.request)
		}
	}
	return out
}

// responseError returns the error of a response with its class, or nil.
func responseError(a *droverv1.NodeResponse) error {
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
