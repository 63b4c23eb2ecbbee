package coordinator

import (
	"sync"

	"github.com/drover-run/drover/internal/fault"
)

// pool bounds one kind of thing that callers occupy, such as calls in progress,
// and shares it between their identities. An identity may occupy at most share
// units, and never more than are still free: one identity gets at most half of
// the pool, two get a third each, and some units always remain for the next.
type pool struct {
	what  string // plural, for errors: "calls in progress"
	limit int64
	share int64 // of one identity

	mu   sync.Mutex
	used int64
	by   map[string]int64 // occupied units of each identity, all positive
}

func newPool(what string, limit, share int64) *pool {
	return &pool{what: what, limit: limit, share: max(share, 1), by: map[string]int64{}}
}

// take occupies n units, or returns an overload error. For the local operator, only the limit of
// the whole pool applies.
func (p *pool) take(id identity, n int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	free, own := p.limit-p.used, p.by[id.name]
	if n > free {
		return fault.Overload("the coordinator has its limit of %d %s: try again in a second", p.limit, p.what)
	}
	if id.kind != kindLocal && own+n > min(p.share, free) {
		return fault.Overload("%s has its share of %s, %d now: try again in a second, or use fewer at once", id.displayName(), p.what, own)
	}
	p.used += n
	p.by[id.name] = own + n
	return nil
}

// release returns n units.
func (p *pool) release(id identity, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used -= n
	if p.by[id.name] -= n; p.by[id.name] == 0 {
		delete(p.by, id.name)
	}
}

// inUse returns the occupied units.
func (p *pool) inUse() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// callLimits bounds what callers occupy of a coordinator at once. Users and nodes have separate
// pools, so that users cannot block the calls of nodes. Zero values take the defaults given here.
type callLimits struct {
	calls   int64 // users' unary calls in progress; 1024, a quarter for one user
	streams int64 // users' open streams; 4096, an eighth for one user
	pages   int64 // users' requests for pages and metrics in progress; 1024, a quarter for one user
	uploads int64 // users' uploads in progress; 64, an eighth for one user
	execs   int64 // users' commands inside tasks; 256, an eighth for one user
	body    int64 // bytes of users' requests being read or handled; 128 MiB, an eighth for one user. A request takes some times its bytes while it is read

	nodeCalls   int64 // nodes' unary calls in progress; 4096, 32 for one node
	nodeStreams int64 // nodes' open watches; 16,384, 16 for one node
	nodeFetches int64 // nodes' downloads in progress; 1024, 32 for one node
	nodeBody    int64 // bytes of nodes' requests; 512 MiB, 32 MiB for one node

	// callRate is how many calls and pages per second one user or node may request, with bursts of
	// ten times that, whether they succeed or not; 500.
	callRate float64

	peerCalls int64 // other coordinators' calls in progress; 256, half for one of them

	pace bodyPace
}

// pools are the pools of one coordinator.
type pools struct {
	calls, streams, pages, uploads, execs, body    *pool
	nodeCalls, nodeStreams, nodeFetches, nodeBytes *pool
	peerCalls                                      *pool
}

func (l *callLimits) setDefaults() {
	setDefault(&l.calls, 1024)
	setDefault(&l.streams, 4096)
	setDefault(&l.pages, 1024)
	setDefault(&l.uploads, 64)
	setDefault(&l.execs, 256)
	setDefault(&l.body, 128<<20)
	setDefault(&l.nodeCalls, 4096)
	setDefault(&l.nodeStreams, 16_384)
	setDefault(&l.nodeFetches, 1024)
	setDefault(&l.nodeBody, 512<<20)
	setDefault(&l.peerCalls, 256)
	setDefault(&l.callRate, 500)
	l.pace.setDefaults()
}

func newPools(l callLimits) *pools {
	return &pools{
		calls:       newPool("users' calls in progress", l.calls, l.calls/4),
		streams:     newPool("users' open streams", l.streams, l.streams/8),
		pages:       newPool("pages being read", l.pages, l.pages/4),
		uploads:     newPool("uploads in progress", l.uploads, l.uploads/8),
		execs:       newPool("commands inside tasks", l.execs, l.execs/8),
		body:        newPool("bytes of users' requests", l.body, l.body/8),
		nodeCalls:   newPool("nodes' calls in progress", l.nodeCalls, 32),
		nodeStreams: newPool("nodes' open watches", l.nodeStreams, 16),
		nodeFetches: newPool("nodes' downloads in progress", l.nodeFetches, 32),
		nodeBytes:   newPool("bytes of nodes' requests", l.nodeBody, 32<<20),
		peerCalls:   newPool("other coordinators' calls", l.peerCalls, l.peerCalls/2),
	}
}

// named returns the pools with the values of the metrics' label "pool".
func (p *pools) named() map[string]*pool {
	return map[string]*pool{"calls": p.calls, "streams": p.streams, "pages": p.pages, "uploads": p.uploads, "execs": p.execs, "body_bytes": p.body,
		"node_calls": p.nodeCalls, "node_streams": p.nodeStreams, "node_fetches": p.nodeFetches, "node_body_bytes": p.nodeBytes,
		"peer_calls": p.peerCalls}
}
