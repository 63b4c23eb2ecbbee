package facts

import (
	"fmt"
	"maps"
	"slices"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// EntryVersion is the version of every entry type that this program writes;
// Apply leaves entries of a higher one alone.
const EntryVersion = 1

// Limits of what the facts hold. Beyond them an entry is refused.
const (
	MaxLiveJobs  = 20_000
	MaxNodes     = 20_000
	MaxTenants   = 10_000
	MaxBlobs     = 200_000
	MaxEvents    = 10_000 // older ones are dropped
	MaxCounters  = 256    // names for each job
	MaxStagings  = 64     // large submissions under way; the oldest is dropped
	MaxChunks    = 4096   // chunks of one submission
	MaxNotes     = 1 << 17
	MaxKeys      = 100_000          // idempotency keys of ended and forgotten jobs
	InfraLimit   = 3                // infrastructure failures on one node …
	InfraWindow  = 10 * time.Minute // … within this time: no new work
	HoldFirst    = time.Minute      // before it is tried again, one attempt at a time …
	HoldMost     = 30 * time.Minute // … twice as long each time in a row, up to this
	InfraRetries = 8                // of one task, before its job fails
	BarFirst     = time.Minute      // before an attempt is asked again for a level that its node refused for now …
	BarMost      = 30 * time.Minute // … twice as long each time in a row, up to this
)

// DefaultTenant is there from the start.
const DefaultTenant = "default"

// nobody is the uid of the default tenant's tasks, so that a first job runs
// and does not run as root.
const nobody = 65534

// Facts is the state machine. It is not safe for concurrent use: package
// replica guards it.
type Facts struct {
	gen     uint64
	index   uint64 // of the last entry applied
	at      int64  // of the last entry applied, Unix ns
	cluster string

	tenants    []*Tenant // by id
	tenantName map[string]*Tenant
	nodes      []*Node // by id - 1
	nodeName   map[string]int32
	onNode     map[int32]map[Key]struct{} // attempts that hold something, or whose output is kept

	jobs    map[uint64]*Job // live, and ended but not forgotten
	live    map[string]uint64
	outputs map[string]uint64 // held output path -> job
	keys    map[string]keyed  // idempotency keys
	keyRing []string          // keys in order of arrival
	staging []*staging        // oldest first
	blobs   map[string]*Blob

	notes        map[NoteKey]*Note
	reservations map[uint64]*droverv1.ReservationFact

	projects    map[uint64]*Project // with a job that lives or holds something
	projectName map[string]uint64
	nextProject uint64
	ran         []*Ran // a ring once it is full
	ranAt       int    // where its oldest record is
	ranSeq      uint64
	outcomes    []Outcome // likewise
	outcomeAt   int

	scheduler string
	params    map[string]string

	nextJob  uint64
	seq      uint64 // of attempts: placements, ends, losses
	eventSeq uint64
	unknown  uint64 // entries that were not understood
	events   []*Event
	eventAt  int // where the ring's oldest event is

	journal []Change
}

// keyed is what a submission with an idempotency key got.
type keyed struct {
	Job  uint64 `json:"job"`
	Name string `json:"name"`
}

type staging struct {
	id     string
	splits map[int32][]*droverv1.FactSplit // by chunk index; the lists are never changed
}

// New makes the facts of a cluster in which nothing happened: no entry was
// applied and the tenant "default" is there.
func New() *Facts {
	f := &Facts{
		tenantName: map[string]*Tenant{}, nodeName: map[string]int32{}, onNode: map[int32]map[Key]struct{}{},
		jobs: map[uint64]*Job{}, live: map[string]uint64{}, outputs: map[string]uint64{}, keys: map[string]keyed{},
		blobs: map[string]*Blob{}, notes: map[NoteKey]*Note{}, reservations: map[uint64]*droverv1.ReservationFact{},
		params: map[string]string{}, projects: map[uint64]*Project{}, projectName: map[string]uint64{},
	}
	f.putTenant(&droverv1.Tenant{Name: DefaultTenant, Weight: 1, Uid: nobody, Submit: []string{"*"}, Read: []string{"*"}})
	f.journal = nil
	return f
}

// Index is that of the last entry applied.
func (f *Facts) Index() uint64 { return f.index }

// At is the instant of the last entry applied, Unix ns. It never goes back.
func (f *Facts) At() int64 { return f.at }

// Cluster is the cluster's id, "" before it was made.
func (f *Facts) Cluster() string { return f.cluster }

// Unknown counts entries that this program did not understand.
func (f *Facts) Unknown() uint64 { return f.unknown }

// Scheduler gives the policy and its parameters; "" for the default. The map
// is never changed once made.
func (f *Facts) Scheduler() (string, map[string]string) { return f.scheduler, f.params }

// Tenants lists the tenants by id. The slice belongs to the facts.
func (f *Facts) Tenants() []*Tenant { return f.tenants }

// Tenant finds a tenant by name, or nil.
func (f *Facts) Tenant(name string) *Tenant { return f.tenantName[name] }

// Nodes lists the nodes by id. The slice belongs to the facts.
func (f *Facts) Nodes() []*Node { return f.nodes }

// Node finds a node by id, or nil.
func (f *Facts) Node(id int32) *Node {
	if id < 1 || int(id) > len(f.nodes) {
		return nil
	}
	return f.nodes[id-1]
}

// NodeByName finds a node, or nil.
func (f *Facts) NodeByName(name string) *Node { return f.Node(f.nodeName[name]) }

// Job finds a job that is not forgotten, or nil.
func (f *Facts) Job(id uint64) *Job { return f.jobs[id] }

// LiveJob finds the job that has the name now, or nil.
func (f *Facts) LiveJob(name string) *Job { return f.jobs[f.live[name]] }

// JobIDs lists the jobs that are not forgotten in order of id. It allocates.
func (f *Facts) JobIDs() []uint64 { return slices.Sorted(maps.Keys(f.jobs)) }

// JobCount counts the jobs that are not forgotten, and those of them that
// have not ended.
func (f *Facts) JobCount() (all, live int) { return len(f.jobs), len(f.live) }

// ByKey gives the job that was accepted under an idempotency key.
func (f *Facts) ByKey(key string) (id uint64, name string, ok bool) {
	k, ok := f.keys[key]
	return k.Job, k.Name, ok
}

// OutputHolder gives the job that holds an output path, 0 for none.
func (f *Facts) OutputHolder(path string) uint64 { return f.outputs[path] }

// Promised gives the departure (Unix ns) that the scheduler promised to a job or
// its project, 0 for none.
func (f *Facts) Promised(j *Job) int64 {
	if f.notes[NoteKey{Kind: noteAccepted, Job: j.ID}] != nil {
		return j.DeadlineNS()
	}
	for _, k := range [...]NoteKey{{Kind: notePromise, Job: j.ID}, {Kind: notePromise, Project: j.Project}} {
		if n := f.notes[k]; n != nil && (k.Job != 0 || k.Project != 0) {
			return n.At
		}
	}
	return j.Promised
}

// Blob finds a blob, or nil. Only its Refs change.
func (f *Facts) Blob(digest string) *Blob { return f.blobs[digest] }

// Blobs lists the digests in order. It allocates.
func (f *Facts) Blobs() []string { return slices.Sorted(maps.Keys(f.blobs)) }

// Attempt finds an attempt of a job that is not forgotten, or nil.
func (f *Facts) Attempt(k Key) *Attempt {
	if t := f.task(k); t != nil {
		return t.Find(k.Attempt)
	}
	return nil
}

func (f *Facts) task(k Key) *Task {
	j := f.jobs[k.Job]
	if j == nil || k.Stage < 0 || int(k.Stage) >= len(j.Stages) {
		return nil
	}
	s := &j.Stages[k.Stage]
	if k.Task < 0 || k.Task >= s.Tasks {
		return nil
	}
	return s.Task(k.Task)
}

// Notes lists what the policy remembers, in order of key. It allocates.
func (f *Facts) Notes() []*Note {
	return slices.SortedFunc(maps.Values(f.notes), func(a, b *Note) int { return compareNotes(&a.NoteKey, &b.NoteKey) })
}

// Reservation finds a reservation, or nil.
func (f *Facts) Reservation(id uint64) *droverv1.ReservationFact { return f.reservations[id] }

// Reservations lists the reservations by id. It allocates.
func (f *Facts) Reservations() []*droverv1.ReservationFact {
	out := make([]*droverv1.ReservationFact, 0, len(f.reservations))
	for _, id := range slices.Sorted(maps.Keys(f.reservations)) {
		out = append(out, f.reservations[id])
	}
	return out
}

// EventsSince lists at most limit events with a sequence number above seq,
// oldest first. The events are never changed.
func (f *Facts) EventsSince(seq uint64, limit int) []*Event {
	n := len(f.events)
	if n == 0 || seq >= f.eventSeq {
		return nil
	}
	first := f.eventSeq - uint64(n) // the event before the oldest
	skip := 0
	if seq > first {
		skip = int(seq - first)
	}
	var out []*Event
	for i := skip; i < n && len(out) < limit; i++ {
		out = append(out, f.events[(f.eventAt+i)%n])
	}
	return out
}

// LastEvent is the sequence number of the newest event.
func (f *Facts) LastEvent() uint64 { return f.eventSeq }

// Result is what an entry did.
type Result struct {
	Index   uint64
	Job     uint64 // accepted, or found under the idempotency key
	Name    string
	Node    int32
	Epoch   uint64
	Changed int    // things that changed: attempts, tenants, jobs
	Dropped []Drop // of a decision, or of reports
	Err     error  // the entry was refused, with a class of package fault
}

// Drop is an action or report that does not hold any more.
type Drop struct {
	At     int // position in the entry
	Reason string
}

// Apply makes the entry at index true. It never fails for an entry that is
// wrong: Result says why nothing changed. index must rise.
func (f *Facts) Apply(index uint64, e *droverv1.Entry) Result {
	f.index = index
	f.at = max(f.at, e.GetAt())
	r := Result{Index: index}
	if e.GetVersion() > EntryVersion || e.GetBody() == nil {
		f.unknown++
		f.event(e, "log.unknown", &Event{Text: fmt.Sprintf("entry of version %d is not known to this program: upgrade it", e.GetVersion())})
		r.Err = fault.New(fault.Unsupported, "entry of version %d and type %T is not known", e.GetVersion(), e.GetBody())
		return r
	}
	f.dispatch(e, &r)
	return r
}

func (f *Facts) dispatch(e *droverv1.Entry, r *Result) {
	switch b := e.Body.(type) {
	case *droverv1.Entry_Cluster:
		f.applyCluster(b.Cluster)
	case *droverv1.Entry_Tenants:
		f.applyTenants(e, b.Tenants, r)
	case *droverv1.Entry_Node:
		f.applyNode(e, b.Node, r)
	case *droverv1.Entry_NodeLost:
		f.applyNodeLost(e, b.NodeLost, r)
	case *droverv1.Entry_NodeDrain:
		f.applyNodeDrain(e, b.NodeDrain, r)
	case *droverv1.Entry_Blob:
		f.applyBlob(b.Blob, r)
	case *droverv1.Entry_JobChunk:
		f.applyChunk(b.JobChunk, r)
	case *droverv1.Entry_JobAccepted:
		f.applyAccepted(e, b.JobAccepted, r)
	case *droverv1.Entry_Decision:
		f.applyDecision(e, b.Decision, r)
	case *droverv1.Entry_Attempts:
		f.applyAttempts(e, b.Attempts, r)
	case *droverv1.Entry_JobStop:
		f.applyStop(e, b.JobStop, r)
	case *droverv1.Entry_JobEnded:
		f.applyEnded(e, b.JobEnded, r)
	case *droverv1.Entry_Scheduler:
		f.applyScheduler(e, b.Scheduler)
	case *droverv1.Entry_JobCleaned:
		f.applyCleaned(e, b.JobCleaned, r)
	case *droverv1.Entry_Estimates:
		f.applyEstimates(b.Estimates, r)
	case *droverv1.Entry_Deadline:
		f.applyDeadline(e, b.Deadline, r)
	case *droverv1.Entry_BarsPassed:
		f.applyBarsPassed(b.BarsPassed, r)
	case *droverv1.Entry_JobsForgotten:
		f.applyForgotten(b.JobsForgotten, r)
	default:
		f.unknown++
		r.Err = fault.New(fault.Unsupported, "entry of type %T is not known", b)
	}
}

func (f *Facts) applyCluster(c *droverv1.ClusterFact) {
	if f.cluster == "" {
		f.cluster = clip(c.GetId(), 64)
	}
}

func (f *Facts) applyScheduler(e *droverv1.Entry, s *droverv1.SchedulerFact) {
	f.scheduler, f.params = clip(s.GetName(), 64), maps.Clone(s.GetParams())
	clear(f.notes)
	clear(f.reservations)
	for _, id := range f.live {
		if j := f.jobs[id]; j.Refused { // the next one is asked anew
			f.write(j).Refused = false
		}
	}
	f.event(e, "scheduler.set", &Event{Text: "scheduler " + f.scheduler})
	f.record(Change{Kind: ChangeScheduler})
}

// event puts ev into the ring; the caller has filled in what it is about.
func (f *Facts) event(e *droverv1.Entry, kind string, ev *Event) {
	f.eventSeq++
	ev.Seq, ev.Index, ev.At, ev.Actor, ev.Kind = f.eventSeq, f.index, f.at, clip(e.GetActor(), 128), kind
	ev.Text = clip(ev.Text, 512)
	if len(f.events) < MaxEvents {
		f.events = append(f.events, ev)
		return
	}
	f.events[f.eventAt] = ev
	f.eventAt = (f.eventAt + 1) % MaxEvents
}

// next gives the next number of the order of all attempts.
func (f *Facts) next() uint64 {
	f.seq++
	return f.seq
}

// clip cuts s to at most n bytes at a rune's start.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}

// write gives the job for changing: a copy if a snapshot still reads it.
func (f *Facts) write(j *Job) *Job {
	if j.gen == f.gen {
		return j
	}
	c := *j
	c.gen = f.gen
	c.Stages = slices.Clone(j.Stages)
	for i := range c.Stages {
		c.Stages[i].chunks = slices.Clone(j.Stages[i].chunks)
	}
	f.jobs[c.ID] = &c
	return &c
}

// setTask puts t into a job that came from write.
func (f *Facts) setTask(j *Job, stage, task int32, t *Task) {
	s := &j.Stages[stage]
	c := s.chunks[task/chunkTasks]
	switch {
	case c == nil:
		c = &chunk{gen: f.gen}
	case c.gen != f.gen:
		n := *c
		n.gen = f.gen
		c = &n
	}
	c.tasks[task%chunkTasks] = t
	s.chunks[task/chunkTasks] = c
}

// with gives a copy of t in which a takes the place of the attempt with its
// number, or follows the others.
func (t *Task) with(a *Attempt) *Task {
	c := *t
	c.Attempts = slices.Clone(t.Attempts)
	for i, o := range c.Attempts {
		if o.Attempt == a.Attempt {
			c.Attempts[i] = a
			return &c
		}
	}
	c.Attempts = append(c.Attempts, a)
	return &c
}
