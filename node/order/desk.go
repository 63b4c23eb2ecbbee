package order

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/fsys"
)

// Limits of the desk.
const (
	atOnce       = 8
	waitingMost  = 1000 // orders under way; more are refused
	rememberMost = 256  // answers kept for an order that is asked again
	defaultLimit = time.Minute
	missingWait  = 5 * time.Second // for blocks whose DataNodes have not reported yet
)

// FileSystems opens the file system of a URI on behalf of a user.
type FileSystems interface {
	Open(uri hdfs.URI, user string) (hdfs.FS, error)
}

// Desk takes orders and gives answers. Its methods may be called from many
// goroutines.
type Desk struct {
	files    FileSystems
	answered func()                       // there is something to Take
	count    func(kind string, err error) // one order ended
	places   chan struct{}
	listings listings
	wg       sync.WaitGroup

	mu     sync.Mutex
	busy   map[uint64]*droverv1.Order
	ready  map[uint64]*droverv1.OrderAnswer // to be taken: at most one for each order
	recent []*droverv1.OrderAnswer          // final ones, oldest first
}

// NewDesk makes a desk. answered and count are called from any goroutine.
func NewDesk(files FileSystems, answered func(), count func(kind string, err error)) *Desk {
	return &Desk{
		files: files, answered: answered, count: count, places: make(chan struct{}, atOnce),
		listings: listings{byKey: map[string]*listing{}},
		busy:     map[uint64]*droverv1.Order{}, ready: map[uint64]*droverv1.OrderAnswer{},
	}
}

// Do begins an order, unless it is under way or was answered already. The
// order ends with ctx, unanswered. Wait waits for all of them.
func (d *Desk) Do(ctx context.Context, o *droverv1.Order) {
	d.mu.Lock()
	if d.busy[o.GetId()] != nil {
		d.mu.Unlock()
		return
	}
	for _, a := range d.recent {
		if a.GetId() == o.GetId() {
			d.ready[o.GetId()] = a
			d.mu.Unlock()
			d.answered()
			return
		}
	}
	if len(d.busy) >= waitingMost {
		d.mu.Unlock()
		d.finish(o, nil, fault.New(fault.Exhausted, "the node has %d orders to do: ask again later", waitingMost))
		return
	}
	d.busy[o.GetId()] = o
	d.mu.Unlock()
	d.wg.Go(func() { d.run(ctx, o) })
}

// Wait waits until no order is under way.
func (d *Desk) Wait() { d.wg.Wait() }

func (d *Desk) run(ctx context.Context, o *droverv1.Order) {
	limit := defaultLimit
	if ms := o.GetLimitMs(); ms > 0 {
		limit = time.Duration(ms) * time.Millisecond
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var answer *droverv1.OrderAnswer
	var err error
	select {
	case d.places <- struct{}{}:
		answer, err = d.carryOut(within, o)
		<-d.places
	case <-within.Done():
		err = within.Err()
	}
	if ctx.Err() != nil { // the daemon leaves; whoever asks again gets it done again
		d.mu.Lock()
		delete(d.busy, o.GetId())
		d.mu.Unlock()
		return
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fault.New(fault.Unavailable, "%s: no answer within %s%s", kindOf(o), limit, d.lastWord(o))
	}
	d.finish(o, answer, fsys.Classed(err))
}

// lastWord is what the order waited for when it was given up.
func (d *Desk) lastWord(o *droverv1.Order) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if a := d.ready[o.GetId()]; a.GetProgress() != "" {
		return "; it was " + a.GetProgress()
	}
	return ""
}

func (d *Desk) finish(o *droverv1.Order, answer *droverv1.OrderAnswer, err error) {
	if answer == nil {
		answer = &droverv1.OrderAnswer{}
	}
	answer.Id = o.GetId()
	if err != nil {
		answer.Error = err.Error()
		if c := fault.Class(err); c != nil {
			answer.ErrorClass = c.Error()
		}
	}
	d.count(kindOf(o), err)
	d.mu.Lock()
	delete(d.busy, o.GetId())
	d.ready[o.GetId()] = answer
	if !errors.Is(err, fault.Unavailable) && !errors.Is(err, fault.Exhausted) { // those are worth another try
		d.recent = append(d.recent, answer)
		if len(d.recent) > rememberMost {
			d.recent = d.recent[1:]
		}
	}
	d.mu.Unlock()
	d.answered()
}

// Waiting tells the orders of a user that a NameNode holds requests back.
func (d *Desk) Waiting(user, text string) {
	d.mu.Lock()
	told := false
	for id, o := range d.busy {
		if o.GetUser() == user {
			d.ready[id] = &droverv1.OrderAnswer{Id: id, Progress: text}
			told = true
		}
	}
	d.mu.Unlock()
	if told {
		d.answered()
	}
}

// Take gives the answers that are to be reported.
func (d *Desk) Take() []*droverv1.OrderAnswer {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]*droverv1.OrderAnswer, 0, len(d.ready))
	for _, a := range d.ready {
		all = append(all, proto.CloneOf(a))
	}
	clear(d.ready)
	return all
}

// PutBack returns answers that could not be reported; a newer word on the same
// order wins.
func (d *Desk) PutBack(answers []*droverv1.OrderAnswer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range answers {
		if d.ready[a.GetId()] == nil {
			d.ready[a.GetId()] = a
		}
	}
}

func kindOf(o *droverv1.Order) string {
	switch o.GetWhat().(type) {
	case *droverv1.Order_Locate:
		return "locate"
	case *droverv1.Order_CheckOutput:
		return "check output"
	case *droverv1.Order_CommitOutput:
		return "commit output"
	case *droverv1.Order_DeletePath:
		return "delete"
	default:
		return "unknown"
	}
}

func (d *Desk) carryOut(ctx context.Context, o *droverv1.Order) (*droverv1.OrderAnswer, error) {
	switch what := o.GetWhat().(type) {
	case *droverv1.Order_Locate:
		found, err := d.locate(ctx, what.Locate, o.GetUser())
		return &droverv1.OrderAnswer{Locate: found}, err
	case *droverv1.Order_CheckOutput:
		return nil, d.checkOutput(ctx, what.CheckOutput, o.GetUser())
	case *droverv1.Order_CommitOutput:
		return nil, d.commitOutput(ctx, what.CommitOutput, o.GetUser())
	case *droverv1.Order_DeletePath:
		fs, uri, err := d.open(what.DeletePath.GetPath(), o.GetUser())
		if err != nil {
			return nil, err
		}
		return nil, fs.Delete(ctx, uri.Path)
	default:
		return nil, fault.New(fault.Unsupported, "this node does not know the order: upgrade it")
	}
}

func (d *Desk) open(raw, user string) (hdfs.FS, hdfs.URI, error) {
	uri, err := hdfs.ParseURI(raw)
	if err != nil {
		return nil, uri, err
	}
	fs, err := d.files.Open(uri, user)
	if err != nil {
		return nil, uri, fmt.Errorf("%s: %w", raw, err)
	}
	return fs, uri, nil
}
