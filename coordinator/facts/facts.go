package facts

import (
	"fmt"
	"maps"
	"slices"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// EntryVersion is the version of every entry type that this program writes. Apply ignores entries
// of a higher version. A server never applies one: it stops before (Newer).
const EntryVersion = 1

// Newer reports whether a newer program wrote an entry, which this program would not understand or
// would misread. Other servers apply it, so these facts would differ from theirs from then on.
func Newer(e *droverv1.Entry) bool {
	return e.GetVersion() > EntryVersion || e.GetStepRules() > lastRules || len(e.ProtoReflect().GetUnknown()) > 0
}

// Limits of the facts. An entry that would exceed one is refused, unless noted.
const (
	maxLiveJobs       = 40_000
	maxNodes          = 20_000
	maxTenants        = 10_000
	maxBlobs          = 200_000
	MaxCounters       = 1000 // distinct names per job, without those of the harness
	maxStagings       = 64   // large submissions in progress; the oldest is dropped
	maxChunks         = 4096 // per submission
	maxPolicyStates   = 1 << 17
	maxKeys           = 100_000          // idempotency keys of ended and forgotten jobs
	infraLimit        = 3                // infrastructure failures on one node …
	infraWindow       = 10 * time.Minute // … within this time quarantine it
	QuarantineMin     = time.Minute      // first quarantine; doubled each time in a row …
	quarantineMax     = 30 * time.Minute // … up to this
	infraRetries      = 8                // infrastructure failures of one task before its job fails
	RefusalBackoffMin = time.Minute      // first back-off after a transient refusal; doubled each time in a row …
	refusalBackoffMax = 30 * time.Minute // … up to this
)

// DefaultTenant exists from the start.
const DefaultTenant = "default"

// nobodyUID is the uid of the default tenant's tasks: a first job runs without
// configuration, and not as root.
const nobodyUID = 65534

// Facts is the state machine. It is not safe for concurrent use; package
// replica guards it.
type Facts struct {
	gen     uint64
	index   uint64 // of the last entry applied
	now     int64  // time of the last entry applied, Unix ns
	cluster string

	tenants    []*Tenant          // by id
	tenantName map[string]*Tenant // deleted ones too
	nodes      []*Node            // by id - 1
	nodeName   map[string]int32
	onNode     map[int32]map[Key]struct{} // attempts that are active there, or whose output it keeps

	jobs    map[uint64]*Job // live, and ended but not forgotten
	live    liveNames
	outputs reservedOutputs
	keys    map[string]keyedJob // idempotency keys
	keyRing []string            // keys, oldest first
	staging []*staging          // oldest first
	blobs   map[string]*Blob

	policyStates policyStates
	reservations reservations

	projects         map[uint64]*Project // with a job that is live or has active attempts
	projectName      map[string]uint64
	nextProject      uint64
	completions      []*Completion // a ring once it is full
	completionsStart int           // index of the oldest record
	completionSeq    uint64
	outcomes         []Outcome // a ring once it is full
	outcomesStart    int

	tokens  map[string]*Token
	secrets secretStore

	scheduler string
	params    map[string]string

	restores       restores
	nextJob        uint64
	stepAt, stepBy int64  // last time that the log's time went back: when, and how far, ns
	seq            uint64 // last number given to a placement, end or output loss
	eventSeq       uint64
	unknownEntries uint64 // entries that this program did not understand
	jobEvents      eventRing
	clusterEvents  eventRing
	eventsOfJob    map[uint64]*jobEventList // of jobs that are not forgotten; after a restart those of jobEvents

	journal []Change

	recordsEnded bool
	ended        []Ended // since EndedLog.Take
}

// keyedJob is the answer to a submission with an idempotency key.
type keyedJob struct {
	Job  uint64 `json:"job"`
	Name string `json:"name"`
}

type staging struct {
	id     string
	splits map[int32][]*droverv1.FactSplit // by chunk index; the lists are immutable
}

// New returns the facts of an empty cluster: no entry applied, only the tenant
// "default".
func New() *Facts {
	f := &Facts{
		tenantName: map[string]*Tenant{}, nodeName: map[string]int32{}, onNode: map[int32]map[Key]struct{}{},
		jobs: map[uint64]*Job{}, live: newLiveNames(), outputs: newReservedOutputs(), keys: map[string]keyedJob{},
		blobs: map[string]*Blob{}, policyStates: newPolicyStates(), reservations: newReservations(),
		tokens: map[string]*Token{}, secrets: newSecretStore(), params: map[string]string{}, projects: map[uint64]*Project{}, projectName: map[string]uint64{}, eventsOfJob: map[uint64]*jobEventList{},
	}
	clusterOf(f).putTenant(&droverv1.Tenant{Name: DefaultTenant, Weight: 1, Uid: nobodyUID, Submit: []string{"*"}, Read: []string{"*"}})
	f.journal = nil
	return f
}

// Index returns the index of the last entry applied.
func (f *Facts) Index() uint64 { return f.index }

// Time returns the time of the last entry applied, Unix ns. It decreases only where the clock had
// been ahead (Clock.Step).
func (f *Facts) Time() int64 { return f.now }

// Cluster returns the cluster's id, "" before its first entry.
func (f *Facts) Cluster() string { return f.cluster }

// Scheduler returns the policy's name and parameters; "" means the default. The
// map is immutable.
func (f *Facts) Scheduler() (string, map[string]string) { return f.scheduler, f.params }

// Tenants returns the tenants by id, deleted ones too. The slice belongs to the facts.
func (f *Facts) Tenants() []*Tenant { return f.tenants }

// Tenant returns the tenant of that name, or nil. A deleted one is none.
func (f *Facts) Tenant(name string) *Tenant {
	if t := f.tenantName[name]; t != nil && !t.Deleted {
		return t
	}
	return nil
}

// Nodes returns the nodes by id. The slice belongs to the facts.
func (f *Facts) Nodes() []*Node { return f.nodes }

// Node returns the node of that id, or nil.
func (f *Facts) Node(id int32) *Node {
	if id < 1 || int(id) > len(f.nodes) {
		return nil
	}
	return f.nodes[id-1]
}

// NodeByName returns the node of that name, or nil.
func (f *Facts) NodeByName(name string) *Node { return f.Node(f.nodeName[name]) }

// Job returns a job that has not been forgotten, or nil.
func (f *Facts) Job(id uint64) *Job { return f.jobs[id] }

// JobIDs returns the ids of all jobs not forgotten, ascending. It allocates.
func (f *Facts) JobIDs() []uint64 { return slices.Sorted(maps.Keys(f.jobs)) }

// JobCount returns how many jobs are not forgotten, and how many of them are
// live.
func (f *Facts) JobCount() (all, live int) { return len(f.jobs), f.live.count }

// JobByIdempotencyKey returns the job accepted under an idempotency key.
func (f *Facts) JobByIdempotencyKey(key string) (id uint64, name string, ok bool) {
	k, ok := f.keys[key]
	return k.Job, k.Name, ok
}

// LatestDeparture returns the latest departure (Unix ns) of a job or its project that keeps the
// scheduler's guarantee, 0 for none: later guarantees may delay a departure up to then. A live job
// that its project's guarantee does not include has none. For an ended job it is the deadline, if
// that was guaranteed; its DepartureAtEnd may be before the guaranteed time.
func (d Deadlines) LatestDeparture(j *Job) int64 {
	switch {
	case j.HasEnded() && j.DepartureAtEnd == j.DeadlineNS():
		return j.DepartureAtEnd
	case j.HasEnded(), !d.isIncluded(j):
		return 0
	default:
		return d.departure(j, latestDepartureState)
	}
}

// isIncluded reports whether the guarantee of a job's project, where it has one, is for this job
// too. It mirrors scheduler.State.GuaranteeIncludes.
func (d Deadlines) isIncluded(j *Job) bool {
	n := d.f.policyStates.all[PolicyStateKey{Kind: guaranteeState, Project: j.Project}]
	return j.Project == 0 || n == nil || n.Value == 0 || j.ID <= uint64(n.Value) || d.f.policyStates.all[PolicyStateKey{Kind: guaranteeState, Job: j.ID}] != nil
}

// departure returns the guaranteed deadline of a job, or the departure (Unix ns) in its policy
// state of a kind or in that of its project, 0 for none.
func (d Deadlines) departure(j *Job, kind int32) int64 {
	if d.f.policyStates.all[PolicyStateKey{Kind: acceptedState, Job: j.ID}] != nil {
		return j.DeadlineNS()
	}
	for _, k := range [...]PolicyStateKey{{Kind: kind, Job: j.ID}, {Kind: kind, Project: j.Project}} {
		if n := d.f.policyStates.all[k]; n != nil && (k.Job != 0 || k.Project != 0) {
			return n.At
		}
	}
	return j.DepartureAtEnd
}

// GuaranteeViolated returns why the guarantee of a job or its project was violated, "" if it was not.
func (d Deadlines) GuaranteeViolated(j *Job) string {
	if p := d.f.projects[j.Project]; p != nil && j.GuaranteeViolated == "" && !j.HasEnded() {
		return p.GuaranteeViolated
	}
	return j.GuaranteeViolated
}

// Blob returns a blob, or nil. Only its Refs change.
func (f *Facts) Blob(digest string) *Blob { return f.blobs[digest] }

// EachBlob calls fn for every blob, in no order.
func (f *Facts) EachBlob(fn func(*Blob)) {
	for _, b := range f.blobs {
		fn(b)
	}
}

// Attempt returns an attempt of a job that has not been forgotten, or nil.
func (f *Facts) Attempt(k Key) *Attempt {
	if t := f.task(k); t != nil {
		return t.find(k.Attempt)
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

// PolicyStates returns the policy's stored state in key order. It allocates.
func (f *Facts) PolicyStates() []*PolicyState {
	return slices.SortedFunc(maps.Values(f.policyStates.all), func(a, b *PolicyState) int { return comparePolicyStateKeys(&a.PolicyStateKey, &b.PolicyStateKey) })
}

// Reservation returns the reservation of that id, or nil.
func (f *Facts) Reservation(id uint64) *droverv1.ReservationFact { return f.reservations.all[id] }

// Reservations returns the reservations by id. It allocates.
func (f *Facts) Reservations() []*droverv1.ReservationFact {
	out := make([]*droverv1.ReservationFact, 0, len(f.reservations.all))
	for _, id := range slices.Sorted(maps.Keys(f.reservations.all)) {
		out = append(out, f.reservations.all[id])
	}
	return out
}

// Result says what an entry changed.
type Result struct {
	Job      uint64 // the job accepted, or found under the idempotency key
	Name     string
	Node     int32
	Epoch    uint64
	Changed  int    // attempts, tenants or jobs that changed
	Violated int    // jobs and projects whose guarantee a scheduler violated for the first time
	Dropped  []Drop // stale actions or reports
	Err      error  // set if the entry was refused; has a class of package fault
}

// Drop is an action or report that has become stale.
type Drop struct {
	Index  int // position in the entry
	Reason string
}

// Apply applies the entry at index, which must be above all earlier ones. An
// invalid entry changes nothing; Result says why.
func (f *Facts) Apply(index uint64, e *droverv1.Entry) Result {
	f.index = index
	f.Clock().advance(e)
	r := Result{}
	if e.GetVersion() > EntryVersion || e.GetBody() == nil {
		f.unknownEntries++
		f.EventLog().add(e, "log.unknown", &Event{Text: fmt.Sprintf("entry of version %d is not known to this program: upgrade it", e.GetVersion())})
		r.Err = fault.New(fault.Unsupported, "entry of version %d and type %T is not known", e.GetVersion(), e.GetBody())
		return r
	}
	f.dispatch(e, &r)
	return r
}

// Refuse takes note of an entry that is not to be applied, and why.
func (f *Facts) Refuse(index uint64, why error) Result {
	f.index = index
	return Result{Err: why}
}

func (f *Facts) dispatch(e *droverv1.Entry, r *Result) {
	switch b := e.Body.(type) {
	case *droverv1.Entry_Cluster:
		clusterOf(f).applyCluster(b.Cluster)
	case *droverv1.Entry_Tenants:
		clusterOf(f).applyTenants(e, b.Tenants, r)
	case *droverv1.Entry_TenantDeleted:
		clusterOf(f).applyTenantDeleted(e, b.TenantDeleted, r)
	case *droverv1.Entry_Node:
		nodesOf(f).applyNode(e, b.Node, r)
	case *droverv1.Entry_NodeLost:
		nodesOf(f).applyNodeLost(e, b.NodeLost, r)
	case *droverv1.Entry_NodeDrain:
		nodesOf(f).applyNodeDrain(e, b.NodeDrain, r)
	case *droverv1.Entry_Maintenance:
		nodesOf(f).applyMaintenance(e, b.Maintenance, r)
	case *droverv1.Entry_Blob:
		clusterOf(f).applyBlob(e, b.Blob, r)
	case *droverv1.Entry_JobChunk:
		jobsOf(f).applyChunk(b.JobChunk, r)
	case *droverv1.Entry_JobAccepted:
		jobsOf(f).applyAccepted(e, b.JobAccepted, r)
	case *droverv1.Entry_Decision:
		decisionsOf(f).applyDecision(e, b.Decision, r)
	case *droverv1.Entry_Attempts:
		attemptsOf(f).applyAttempts(e, b.Attempts, r)
	case *droverv1.Entry_JobStop:
		jobsOf(f).applyStop(e, b.JobStop, r)
	case *droverv1.Entry_JobEnded:
		jobsOf(f).applyEnded(e, b.JobEnded, r)
	case *droverv1.Entry_Scheduler:
		clusterOf(f).applyScheduler(e, b.Scheduler)
	case *droverv1.Entry_LogsGathered:
		jobsOf(f).applyLogsGathered(e, b.LogsGathered, r)
	case *droverv1.Entry_JobCleaned:
		jobsOf(f).applyCleaned(e, b.JobCleaned, r)
	case *droverv1.Entry_Estimates:
		f.Deadlines().applyEstimates(b.Estimates, r)
	case *droverv1.Entry_DeadlineMiss:
		f.Deadlines().applyDeadlineMiss(e, b.DeadlineMiss, r)
	case *droverv1.Entry_Notice:
		f.EventLog().add(e, clip(b.Notice.GetKind(), 64), &Event{Node: clip(b.Notice.GetNode(), 255), Text: b.Notice.GetText()})
	case *droverv1.Entry_RefusalsExpired:
		levelsOf(f).applyRefusalsExpired(b.RefusalsExpired, r)
	case *droverv1.Entry_Restored:
		clusterOf(f).applyRestored(e, b.Restored)
	case *droverv1.Entry_Token:
		f.Tokens().add(e, b.Token, r)
	case *droverv1.Entry_TokenRevoked:
		f.Tokens().applyRevoked(e, b.TokenRevoked, r)
	case *droverv1.Entry_Secret:
		SecretsOf(f).apply(e, b.Secret, r)
	case *droverv1.Entry_SecretDeleted:
		SecretsOf(f).applyDeleted(e, b.SecretDeleted, r)
	case *droverv1.Entry_UnknownRuns:
		decisionsOf(f).applyUnknownRuns(e, b.UnknownRuns, r)
	case *droverv1.Entry_JobsForgotten:
		jobsOf(f).applyForgotten(b.JobsForgotten, r)
	default:
		f.unknownEntries++
		r.Err = fault.New(fault.Unsupported, "entry of type %T is not known", b)
	}
}

func (en clusterEntries) applyCluster(c *droverv1.ClusterFact) {
	if en.f.cluster == "" {
		en.f.cluster = clip(c.GetId(), 64)
	}
}

func (en clusterEntries) applyScheduler(e *droverv1.Entry, s *droverv1.SchedulerFact) {
	en.f.scheduler, en.f.params = clip(s.GetName(), 64), maps.Clone(s.GetParams())
	en.f.policyStates, en.f.reservations = newPolicyStates(), newReservations()
	for _, j := range en.f.jobs {
		if !j.HasEnded() && (j.GuaranteeRefused || j.GuaranteeViolated != "") { // the next scheduler decides again
			j = writerOf(en.f).writableJob(j)
			j.GuaranteeRefused, j.GuaranteeViolated = false, ""
		}
	}
	for id, p := range en.f.projects {
		if p.GuaranteeViolated != "" {
			c := *p
			c.GuaranteeViolated = ""
			en.f.projects[id] = &c
		}
	}
	en.f.EventLog().add(e, "scheduler.set", &Event{Text: "scheduler " + en.f.scheduler})
	writerOf(en.f).recordChange(Change{Kind: ChangeScheduler})
}

// nextSeq returns the next number in the order of placements, ends and output
// losses.
func (w writer) nextSeq() uint64 {
	w.f.seq++
	return w.f.seq
}

// clip returns at most n bytes of s, cut at a rune boundary.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}

// writableJob returns the job for writing: a copy if a snapshot still reads j.
func (w writer) writableJob(j *Job) *Job {
	if j.gen == w.f.gen {
		return j
	}
	c := *j
	c.gen = w.f.gen
	c.Stages = slices.Clone(j.Stages)
	for i := range c.Stages {
		c.Stages[i].chunks = slices.Clone(j.Stages[i].chunks)
	}
	w.f.jobs[c.ID] = &c
	return &c
}

// setTask stores t in a job returned by writableJob.
func (w writer) setTask(j *Job, stage, task int32, t *Task) {
	s := &j.Stages[stage]
	c := s.chunks[task/chunkTasks].writable(w.f.gen)
	c.tasks[task%chunkTasks] = t
	s.chunks[task/chunkTasks] = c
}

// withAttempt returns a copy of t with a in place of the attempt of its number,
// or appended.
func (t *Task) withAttempt(a *Attempt) *Task {
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
