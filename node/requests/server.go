package requests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/fsys"
)

// Limits of the server.
const (
	maxConcurrent     = 8    // requests at work on one file system; others wait
	maxAtWork         = 64   // on all file systems
	maxInFlight       = 1000 // requests under way; more are refused
	maxRemembered     = 256  // responses kept for repeated requests
	defaultLimit      = time.Minute
	missingBlocksWait = 5 * time.Second // for blocks whose DataNodes have not reported yet
	maxErrorBytes     = 64 << 10        // of the text of an error
	maxAnswerBytes    = 8 << 20         // of one response, and of all in a report; the coordinator's limit of a whole report is 16 MiB
)

// FileSystems opens the file system of a URI on behalf of a user.
type FileSystems interface {
	Open(uri hdfs.URI, user string) (hdfs.FS, error)
}

// Server performs requests and collects responses. It is safe for concurrent use.
type Server struct {
	files     FileSystems
	logs      LogSource
	notify    func()                       // there are responses to take
	countDone func(kind string, err error) // one request has ended
	atWork    chan struct{}                // requests of all file systems
	gathering chan struct{}                // one at a time: two tries for one job write the same file, and logs may be long
	listings  listings
	wg        sync.WaitGroup

	mu        sync.Mutex
	slots     map[string]*fsSlots // by file systems of requests, while there are requests for them
	inFlight  map[uint64]*flight
	responses map[uint64]*droverv1.NodeResponse // to be taken; at most one per request
	recent    []*droverv1.NodeResponse          // final ones, oldest first
}

// flight is a request in progress, guarded by Server.mu.
type flight struct {
	user     string
	progress string // what it waits for, or has waited for; kept after it was reported
}

// fsSlots are the slots of one file system: a NameNode that does not answer must not block requests
// to another.
type fsSlots struct {
	slots chan struct{}
	users int // requests that have or await a slot; guarded by Server.mu
}

// NewServer makes a server. answered and count are called from any goroutine.
func NewServer(files FileSystems, logs LogSource, answered func(), count func(kind string, err error)) *Server {
	return &Server{
		files: files, logs: logs, notify: answered, countDone: count, atWork: make(chan struct{}, maxAtWork), gathering: make(chan struct{}, 1),
		listings: listings{byKey: map[string]*listing{}},
		slots:    map[string]*fsSlots{}, inFlight: map[uint64]*flight{}, responses: map[uint64]*droverv1.NodeResponse{},
	}
}

// Handle starts a request, unless it is in progress or was answered already. If ctx ends, the
// request ends without a response.
func (d *Server) Handle(ctx context.Context, o *droverv1.NodeRequest) {
	d.mu.Lock()
	if d.inFlight[o.GetId()] != nil {
		d.mu.Unlock()
		return
	}
	for _, a := range d.recent {
		if a.GetId() == o.GetId() {
			d.responses[o.GetId()] = a
			d.mu.Unlock()
			d.notify()
			return
		}
	}
	if len(d.inFlight) >= maxInFlight {
		d.mu.Unlock()
		d.complete(o, nil, fault.New(fault.Unavailable, "the node has %d requests under way: try again later", maxInFlight))
		return
	}
	d.inFlight[o.GetId()] = &flight{user: o.GetUser()}
	d.mu.Unlock()
	d.wg.Go(func() { d.process(ctx, o) })
}

// Wait waits until no request is in progress.
func (d *Server) Wait() { d.wg.Wait() }

func (d *Server) process(ctx context.Context, o *droverv1.NodeRequest) {
	limit := defaultLimit
	if ms := o.GetTimeoutMs(); ms > 0 {
		limit = time.Duration(ms) * time.Millisecond
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var answer *droverv1.NodeResponse
	var err error
	if release := d.acquire(within, o); release != nil {
		answer, err = d.execute(within, o)
		release()
	} else {
		err = within.Err()
	}
	if ctx.Err() != nil { // the daemon stops; a repeated request is performed again
		d.mu.Lock()
		delete(d.inFlight, o.GetId())
		d.mu.Unlock()
		return
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fault.New(fault.Unavailable, "%s: no answer within %s%s", kindOf(o), limit, d.lastProgress(o))
	}
	d.complete(o, answer, fsys.Classed(err))
}

// acquire waits until a request may begin, and returns a function that releases its slots; nil if
// ctx ended first.
func (d *Server) acquire(ctx context.Context, o *droverv1.NodeRequest) (release func()) {
	if o.GetGatherLogs() != nil {
		return acquireAll(ctx, d.gathering)
	}
	key := fileSystemsOf(o)
	d.mu.Lock()
	own := d.slots[key]
	if own == nil {
		own = &fsSlots{slots: make(chan struct{}, maxConcurrent)}
		d.slots[key] = own
	}
	own.users++
	d.mu.Unlock()
	leave := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(d.slots, key)
		}
	}
	free := acquireAll(ctx, own.slots, d.atWork)
	if free == nil {
		leave()
		return nil
	}
	return func() { free(); leave() }
}

// acquireAll takes a slot of each kind in turn, and returns a function that releases them; nil if
// ctx ended first.
func acquireAll(ctx context.Context, kinds ...chan struct{}) (free func()) {
	taken := 0
	free = func() {
		for _, slots := range kinds[:taken] {
			<-slots
		}
	}
	for _, slots := range kinds {
		select {
		case slots <- struct{}{}:
			taken++
		case <-ctx.Done():
			free()
			return nil
		}
	}
	return free
}

// fileSystemsOf returns the schemes and authorities of a request's paths, sorted: the key of its
// slots.
func fileSystemsOf(o *droverv1.NodeRequest) string {
	var systems []string
	one := []string{o.GetCheckOutput().GetPath(), o.GetCommitOutput().GetPath(), o.GetDeletePath().GetPath()}
	for _, raw := range slices.Concat(o.GetLocate().GetPaths(), one) {
		if uri, err := hdfs.ParseURI(raw); err == nil {
			systems = append(systems, uri.Scheme.String()+"://"+uri.Authority)
		}
	}
	slices.Sort(systems)
	return strings.Join(slices.Compact(systems), " ")
}

// lastProgress returns what the request was waiting for when it timed out.
func (d *Server) lastProgress(o *droverv1.NodeRequest) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.inFlight[o.GetId()]; f != nil && f.progress != "" {
		return "; it was " + f.progress
	}
	return ""
}

func (d *Server) complete(o *droverv1.NodeRequest, answer *droverv1.NodeResponse, err error) {
	if answer == nil {
		answer = &droverv1.NodeResponse{}
	}
	answer.Id = o.GetId()
	if err == nil {
		err = checkAnswer(answer)
	}
	if err != nil {
		answer = errorResponse(o.GetId(), err)
	}
	d.countDone(kindOf(o), err)
	d.mu.Lock()
	delete(d.inFlight, o.GetId())
	d.responses[o.GetId()] = answer
	if !errors.Is(err, fault.Unavailable) && !errors.Is(err, fault.Exhausted) { // a retry may succeed, so these are not remembered
		d.recent = append(d.recent, answer)
		if len(d.recent) > maxRemembered {
			d.recent = d.recent[1:]
		}
	}
	d.mu.Unlock()
	d.notify()
}

// checkAnswer returns why a response cannot be sent, nil if it can. Responses are sent in the
// node's reports: one that cannot be sent would block everything else in them.
func checkAnswer(answer *droverv1.NodeResponse) error {
	b, err := proto.Marshal(answer)
	if err != nil {
		return fault.New(fault.Invalid, "the answer cannot be sent: %w: a name in it is not UTF-8", err)
	}
	if len(b) > maxAnswerBytes {
		return fault.New(fault.Exhausted, "the answer has %d bytes, more than %d: use fewer files, or shorter names", len(b), maxAnswerBytes)
	}
	return nil
}

// errorResponse returns the response of a failed request. It makes the text valid, since it may
// quote file names.
func errorResponse(id uint64, err error) *droverv1.NodeResponse {
	text := err.Error()
	answer := &droverv1.NodeResponse{Id: id, Error: strings.ToValidUTF8(text[:min(len(text), maxErrorBytes)], "\uFFFD")}
	if c := fault.Class(err); c != nil {
		answer.ErrorClass = c.Error()
	}
	return answer
}

// SetWaiting tells a user's requests that a NameNode delays them.
func (d *Server) SetWaiting(user, text string) {
	d.mu.Lock()
	told := false
	for id, f := range d.inFlight {
		if f.user == user {
			f.progress = text
			d.responses[id] = &droverv1.NodeResponse{Id: id, Progress: text}
			told = true
		}
	}
	d.mu.Unlock()
	if told {
		d.notify()
	}
}

// TakeResponses removes and returns the responses for the next report. more reports whether there
// are others.
func (d *Server) TakeResponses() (taken []*droverv1.NodeResponse, more bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	bytes := 0
	for _, id := range slices.Sorted(maps.Keys(d.responses)) {
		a := d.responses[id]
		if bytes += proto.Size(a); len(taken) > 0 && bytes > maxAnswerBytes {
			return taken, true
		}
		taken = append(taken, proto.CloneOf(a))
		delete(d.responses, id)
	}
	return taken, false
}

// ReturnResponses puts back responses that could not be reported; a newer
// response to the same request wins.
func (d *Server) ReturnResponses(answers []*droverv1.NodeResponse) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range answers {
		if d.responses[a.GetId()] == nil {
			d.responses[a.GetId()] = a
		}
	}
}

func kindOf(o *droverv1.NodeRequest) string {
	switch o.GetOperation().(type) {
	case *droverv1.NodeRequest_Locate:
		return "locate"
	case *droverv1.NodeRequest_CheckOutput:
		return "check output"
	case *droverv1.NodeRequest_CommitOutput:
		return "commit output"
	case *droverv1.NodeRequest_DeletePath:
		return "delete"
	case *droverv1.NodeRequest_GatherLogs:
		return "gather logs"
	default:
		return "unknown"
	}
}

func (d *Server) execute(ctx context.Context, o *droverv1.NodeRequest) (*droverv1.NodeResponse, error) {
	switch what := o.GetOperation().(type) {
	case *droverv1.NodeRequest_Locate:
		found, err := d.locate(ctx, what.Locate, o.GetUser())
		return &droverv1.NodeResponse{Locate: found}, err
	case *droverv1.NodeRequest_CheckOutput:
		return nil, d.checkOutput(ctx, what.CheckOutput, o.GetUser())
	case *droverv1.NodeRequest_CommitOutput:
		return nil, d.commitOutput(ctx, what.CommitOutput, o.GetUser())
	case *droverv1.NodeRequest_DeletePath:
		fs, uri, err := d.openFS(what.DeletePath.GetPath(), o.GetUser())
		if err != nil {
			return nil, err
		}
		return nil, fs.Delete(ctx, uri.Path)
	case *droverv1.NodeRequest_GatherLogs:
		return nil, d.gatherLogs(ctx, what.GatherLogs, o.GetUser())
	default:
		return nil, fault.New(fault.Unsupported, "this node does not support the request: upgrade it")
	}
}

func (d *Server) openFS(raw, user string) (hdfs.FS, hdfs.URI, error) {
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
