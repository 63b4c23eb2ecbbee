package facts

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// SnapshotVersion is the version of the snapshot format; Restore refuses a
// higher one.
const SnapshotVersion = 8

// msg is an API message inside JSON: base64 of its protobuf encoding.
type msg[M proto.Message] struct{ m M }

// MarshalJSON returns the message's bytes, null for nil.
func (x msg[M]) MarshalJSON() ([]byte, error) {
	if !x.m.ProtoReflect().IsValid() {
		return []byte("null"), nil
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(x.m)
	if err != nil {
		return nil, err
	}
	return json.Marshal(b)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (x *msg[M]) UnmarshalJSON(b []byte) error {
	var raw []byte
	if err := json.Unmarshal(b, &raw); err != nil || raw == nil {
		return err
	}
	var zero M
	x.m = zero.ProtoReflect().New().Interface().(M)
	return proto.Unmarshal(raw, x.m)
}

func msgs[M proto.Message](list []M) []msg[M] {
	out := make([]msg[M], len(list))
	for i, m := range list {
		out[i] = msg[M]{m}
	}
	return out
}

func unmsgs[M proto.Message](list []msg[M]) []M {
	out := make([]M, len(list))
	for i, m := range list {
		out[i] = m.m
	}
	return out
}

type (
	header struct {
		Drover         string            `json:"drover"` // "facts"
		Version        int               `json:"version"`
		Index          uint64            `json:"index"`
		At             int64             `json:"at"`
		Cluster        string            `json:"cluster"`
		Scheduler      string            `json:"scheduler,omitempty"`
		Params         map[string]string `json:"params,omitempty"`
		NextJob        uint64            `json:"next_job"`
		Seq            uint64            `json:"seq"`
		EventSeq       uint64            `json:"event_seq"`
		UnknownEntries uint64            `json:"unknown_entries,omitempty"`
		Project        uint64            `json:"next_project,omitempty"`
		CompletionSeq  uint64            `json:"completion_seq,omitempty"`
		StepAt         int64             `json:"clock_step_at,omitempty"`
		StepBy         int64             `json:"clock_step_by,omitempty"`
		Restores       restores          `json:"restores,omitzero"`
	}
	// line is one record; T says which of the other fields is set.
	line struct {
		T           string                          `json:"t"`
		Tenant      *tenantLine                     `json:"tenant,omitempty"`
		Node        *nodeLine                       `json:"node,omitempty"`
		Blob        *Blob                           `json:"blob,omitempty"`
		Job         *jobLine                        `json:"job,omitempty"`
		Tasks       *tasksLine                      `json:"tasks,omitempty"`
		PolicyState *PolicyState                    `json:"policy_state,omitempty"`
		Reservation *msg[*droverv1.ReservationFact] `json:"reservation,omitempty"`
		Event       *Event                          `json:"event,omitempty"`
		Staging     *stagingLine                    `json:"staging,omitempty"`
		Key         *keyLine                        `json:"key,omitempty"`
		Project     *Project                        `json:"project,omitempty"`
		Completion  *Completion                     `json:"completion,omitempty"`
		Outcome     *Outcome                        `json:"outcome,omitempty"`
		Token       *tokenLine                      `json:"token,omitempty"`
		Secret      *Secret                         `json:"secret,omitempty"`
		SecretNum   *secretNumber                   `json:"secret_number,omitempty"`
		Lines       int                             `json:"lines,omitempty"` // of "end"
	}
	tenantLine struct {
		*Tenant
		Spec msg[*droverv1.Tenant] `json:"spec"`
	}
	tokenLine struct {
		Spec msg[*droverv1.Token] `json:"spec"`
		Hash []byte               `json:"hash"`
	}
	nodeLine struct {
		*Node
		Info msg[*droverv1.NodeInfo] `json:"info"`
	}
	jobLine struct {
		*Job
		Limits []msg[*droverv1.Limits] `json:"limits,omitempty"` // one per stage
		Quote  msg[*droverv1.Quote]    `json:"quote,omitzero"`
	}
	tasksLine struct {
		Job    uint64                     `json:"job"`
		Stage  int32                      `json:"stage"`
		First  int32                      `json:"first"`
		Tasks  []taskLine                 `json:"tasks,omitempty"`
		Sealed *sealedLine                `json:"sealed,omitempty"` // instead of Tasks
		Splits []msg[*droverv1.FactSplit] `json:"splits,omitempty"`
	}
	// sealedLine is a block in which nothing is active any more: see sealedTasks.
	sealedLine struct {
		Heads   []byte `json:"heads"`
		Reports []byte `json:"reports"`
	}
	taskLine struct {
		Index int32 `json:"i"`
		*Task
		Attempts []attemptLine `json:"attempts"`
	}
	attemptLine struct {
		*Attempt
		Seen msg[*droverv1.SeenAttempt] `json:"seen"`
	}
	stagingLine struct {
		ID     string                     `json:"id"`
		Chunk  int32                      `json:"chunk"`
		Splits []msg[*droverv1.FactSplit] `json:"splits"`
	}
	keyLine struct {
		Key string `json:"key"`
		keyedJob
	}
)

// Snapshot is an immutable copy of the facts. It may be encoded while Apply
// continues.
type Snapshot struct {
	head         header
	tenants      []*Tenant
	nodes        []*Node
	blobs        []Blob
	jobs         []*Job
	policyStates []*PolicyState
	reservations []*droverv1.ReservationFact
	events       []*Event
	staging      []*staging
	keys         []keyLine
	projects     []*Project
	completions  []*Completion
	outcomes     []Outcome
	tokens       []*Token
	secrets      []*Secret
	secretNums   []secretNumber
}

// Snapshot returns a snapshot. It needs the write lock; see the package comment
// for its cost.
func (f *Facts) Snapshot() *Snapshot {
	s := &Snapshot{
		head: header{Drover: "facts", Version: SnapshotVersion, Index: f.index, At: f.now, Cluster: f.cluster, Scheduler: f.scheduler,
			Params: f.params, NextJob: f.nextJob, Seq: f.seq, EventSeq: f.eventSeq, UnknownEntries: f.unknownEntries,
			Project: f.nextProject, CompletionSeq: f.completionSeq, StepAt: f.stepAt, StepBy: f.stepBy, Restores: f.restores},
		tenants: slices.Clone(f.tenants), nodes: slices.Clone(f.nodes), staging: slices.Clone(f.staging),
		policyStates: f.PolicyStates(), reservations: f.Reservations(), projects: f.Deadlines().projects(), outcomes: f.Deadlines().Outcomes(), tokens: f.Tokens().All(), secrets: SecretsOf(f).All(), secretNums: f.secrets.numbers(),
	}
	s.completions, _ = f.Deadlines().CompletionsSince(0)
	for _, d := range f.Blobs() {
		s.blobs = append(s.blobs, *f.blobs[d])
	}
	for _, id := range f.JobIDs() {
		s.jobs = append(s.jobs, f.jobs[id])
	}
	s.events = f.EventLog().Since(0, MaxEvents+MaxClusterEvents)
	for _, k := range f.keyRing {
		s.keys = append(s.keys, keyLine{k, f.keys[k]})
	}
	f.gen++
	return s
}

// Index returns the index of the last entry in the snapshot.
func (s *Snapshot) Index() uint64 { return s.head.Index }

// Digests returns the digests of the files in the snapshot, in ascending order:
// all of them, or those that its jobs need.
func (s *Snapshot) Digests(all bool) (out []string) {
	for i := range s.blobs {
		if b := &s.blobs[i]; all || b.Refs > 0 {
			out = append(out, b.Digest)
		}
	}
	return out
}

// Encode writes the snapshot as lines of JSON.
func (s *Snapshot) Encode(w io.Writer) error {
	b := bufio.NewWriterSize(w, 1<<16)
	enc := json.NewEncoder(b)
	lines := 0
	put := func(v any) error {
		lines++
		return enc.Encode(v)
	}
	for _, step := range []func(func(any) error) error{s.writeCluster, s.writeJobs, s.writeRest} {
		if err := step(put); err != nil {
			return fmt.Errorf("write the snapshot: %w", err)
		}
	}
	if err := enc.Encode(line{T: "end", Lines: lines}); err != nil {
		return fmt.Errorf("write the snapshot: %w", err)
	}
	return b.Flush()
}

func (s *Snapshot) writeCluster(put func(any) error) error {
	if err := put(s.head); err != nil {
		return err
	}
	for _, t := range s.tenants {
		if err := put(line{T: "tenant", Tenant: &tenantLine{t, msg[*droverv1.Tenant]{t.Spec}}}); err != nil {
			return err
		}
	}
	for _, n := range s.nodes {
		if err := put(line{T: "node", Node: &nodeLine{n, msg[*droverv1.NodeInfo]{n.Info}}}); err != nil {
			return err
		}
	}
	for _, t := range s.tokens {
		if err := put(line{T: "token", Token: &tokenLine{msg[*droverv1.Token]{t.Spec}, t.Hash}}); err != nil {
			return err
		}
	}
	for _, x := range s.secrets {
		if err := put(line{T: "secret", Secret: x}); err != nil {
			return err
		}
	}
	for i := range s.secretNums {
		if err := put(line{T: "secret_number", SecretNum: &s.secretNums[i]}); err != nil {
			return err
		}
	}
	for i := range s.blobs {
		if err := put(line{T: "blob", Blob: &s.blobs[i]}); err != nil {
			return err
		}
	}
	return nil
}

func (s *Snapshot) writeJobs(put func(any) error) error {
	for _, j := range s.jobs {
		l := &jobLine{Job: j, Quote: msg[*droverv1.Quote]{j.Quote}}
		for i := range j.Stages {
			l.Limits = append(l.Limits, msg[*droverv1.Limits]{j.Stages[i].Limits})
		}
		if err := put(line{T: "job", Job: l}); err != nil {
			return err
		}
		for i := range j.Stages {
			if err := writeStage(put, j, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeStage writes the tried tasks of a stage, and its splits, by chunk.
func writeStage(put func(any) error, j *Job, i int) error {
	s := &j.Stages[i]
	for c, ch := range s.chunks {
		l := &tasksLine{Job: j.ID, Stage: int32(i), First: int32(c * chunkTasks)}
		if s.Splits != nil {
			l.Splits = msgs(s.Splits[c*chunkTasks : min((c+1)*chunkTasks, len(s.Splits))])
		}
		switch {
		case ch == nil:
		case ch.sealed != nil:
			l.Sealed = &sealedLine{ch.sealed.heads, ch.sealed.reports}
		default:
			ch.each(func(k int, t *Task) {
				tl := taskLine{Index: int32(k), Task: t}
				for _, a := range t.Attempts {
					tl.Attempts = append(tl.Attempts, attemptLine{a, msg[*droverv1.SeenAttempt]{a.Seen()}})
				}
				l.Tasks = append(l.Tasks, tl)
			})
		}
		if len(l.Tasks) == 0 && len(l.Splits) == 0 && l.Sealed == nil {
			continue
		}
		if err := put(line{T: "tasks", Tasks: l}); err != nil {
			return err
		}
	}
	return nil
}

func (s *Snapshot) writeRest(put func(any) error) error {
	for _, n := range s.policyStates {
		if err := put(line{T: "policy_state", PolicyState: n}); err != nil {
			return err
		}
	}
	for _, r := range s.reservations {
		if err := put(line{T: "reservation", Reservation: &msg[*droverv1.ReservationFact]{r}}); err != nil {
			return err
		}
	}
	for _, st := range s.staging {
		for _, c := range slices.Sorted(maps.Keys(st.splits)) {
			if err := put(line{T: "staging", Staging: &stagingLine{st.id, c, msgs(st.splits[c])}}); err != nil {
				return err
			}
		}
	}
	for i := range s.keys {
		if err := put(line{T: "key", Key: &s.keys[i]}); err != nil {
			return err
		}
	}
	for _, p := range s.projects {
		if err := put(line{T: "project", Project: p}); err != nil {
			return err
		}
	}
	for _, r := range s.completions {
		if err := put(line{T: "completion", Completion: r}); err != nil {
			return err
		}
	}
	for i := range s.outcomes {
		if err := put(line{T: "outcome", Outcome: &s.outcomes[i]}); err != nil {
			return err
		}
	}
	for _, e := range s.events {
		if err := put(line{T: "event", Event: e}); err != nil {
			return err
		}
	}
	return nil
}

// SnapshotIndex returns the index of the last entry that a snapshot contains, from
// its header.
func SnapshotIndex(r io.Reader) (uint64, error) {
	h, err := readHeader(json.NewDecoder(r))
	return h.Index, err
}

func readHeader(d *json.Decoder) (header, error) {
	var h header
	if err := d.Decode(&h); err != nil {
		return h, fault.New(fault.Corrupt, "read the snapshot's header: %w", err)
	}
	if h.Drover != "facts" {
		return h, fault.New(fault.Corrupt, "the file is no snapshot of Drover's facts")
	}
	if h.Version > SnapshotVersion {
		return h, fault.New(fault.Unsupported, "the snapshot has version %d, this program knows up to %d: upgrade it", h.Version, SnapshotVersion)
	}
	return h, nil
}

// Restore reads a snapshot. The journal of the facts returned contains one
// ChangeReset. Corrupt: not a complete snapshot; Unsupported: written by a
// newer program.
func Restore(r io.Reader) (*Facts, error) {
	d := json.NewDecoder(bufio.NewReaderSize(r, 1<<16))
	h, err := readHeader(d)
	if err != nil {
		return nil, err
	}
	f := New()
	f.tenants, f.tenantName = nil, map[string]*Tenant{}
	f.index, f.now, f.cluster, f.scheduler = h.Index, h.At, h.Cluster, h.Scheduler
	f.nextJob, f.seq, f.eventSeq, f.unknownEntries = h.NextJob, h.Seq, h.EventSeq, h.UnknownEntries
	f.nextProject, f.completionSeq, f.stepAt, f.stepBy = h.Project, h.CompletionSeq, h.StepAt, h.StepBy
	f.restores = h.Restores
	if h.Params != nil {
		f.params = h.Params
	}
	for n := 1; ; n++ {
		var l line
		if err := d.Decode(&l); err != nil {
			return nil, fault.New(fault.Corrupt, "snapshot, record %d: %w", n, err)
		}
		if l.T == "end" {
			if l.Lines != n {
				return nil, fault.New(fault.Corrupt, "the snapshot has %d records and says %d", n, l.Lines)
			}
			break
		}
		if err := snapshotsOf(f).restoreLine(&l); err != nil {
			return nil, fault.New(fault.Corrupt, "snapshot, record %d: %w", n, err)
		}
	}
	snapshotsOf(f).restoreIndexes()
	f.EventLog().keepOfJobs()
	f.journal = []Change{{Kind: ChangeReset, At: f.now}}
	return f, nil
}

func (s snapshots) restoreLine(l *line) error {
	switch {
	case l.T == "tenant" && l.Tenant != nil && l.Tenant.Tenant != nil:
		t := l.Tenant.Tenant
		t.Spec = l.Tenant.Spec.m
		if int(t.ID) != len(s.f.tenants) {
			return fmt.Errorf("tenant %d is not the next", t.ID)
		}
		s.f.tenants = append(s.f.tenants, t)
		s.f.tenantName[t.Spec.GetName()] = t
	case l.T == "node" && l.Node != nil && l.Node.Node != nil:
		n := l.Node.Node
		n.Info = l.Node.Info.m
		if int(n.ID) != len(s.f.nodes)+1 {
			return fmt.Errorf("node %d is not the next", n.ID)
		}
		s.f.nodes = append(s.f.nodes, n)
		s.f.nodeName[n.Info.GetName()] = n.ID
	case l.T == "token" && l.Token != nil && l.Token.Spec.m != nil:
		s.f.tokens[l.Token.Spec.m.GetId()] = &Token{l.Token.Spec.m, l.Token.Hash}
	case l.T == "secret" && l.Secret != nil && len(l.Secret.Versions) > 0 && !slices.Contains(l.Secret.Versions, nil):
		s.f.secrets.set(secretKey{l.Secret.Tenant, l.Secret.Name}, l.Secret)
	case l.T == "secret_number" && l.SecretNum != nil:
		s.f.secrets.restoreNumber(l.SecretNum)
	case l.T == "blob" && l.Blob != nil:
		s.f.blobs[l.Blob.Digest] = l.Blob
	case l.T == "job" && l.Job != nil && l.Job.Job != nil:
		return s.restoreJob(l.Job)
	case l.T == "tasks" && l.Tasks != nil:
		return s.restoreTasks(l.Tasks)
	case l.T == "policy_state" && l.PolicyState != nil:
		s.f.policyStates[l.PolicyState.PolicyStateKey] = l.PolicyState
	case l.T == "reservation" && l.Reservation != nil:
		s.f.reservations[l.Reservation.m.GetId()] = l.Reservation.m
	case l.T == "project" && l.Project != nil:
		s.f.projects[l.Project.ID] = l.Project
		s.f.projectName[projectKey(l.Project.Tenant, l.Project.Name)] = l.Project.ID
	case l.T == "completion" && l.Completion != nil:
		s.f.completions = append(s.f.completions, l.Completion)
	case l.T == "outcome" && l.Outcome != nil:
		s.f.outcomes = append(s.f.outcomes, *l.Outcome)
	case l.T == "event" && l.Event != nil:
		s.f.EventLog().keep(l.Event)
	case l.T == "key" && l.Key != nil:
		s.f.keys[l.Key.Key] = l.Key.keyedJob
		s.f.keyRing = append(s.f.keyRing, l.Key.Key)
	case l.T == "staging" && l.Staging != nil:
		if n := len(s.f.staging); n == 0 || s.f.staging[n-1].id != l.Staging.ID {
			s.f.staging = append(s.f.staging, &staging{id: l.Staging.ID, splits: map[int32][]*droverv1.FactSplit{}})
		}
		s.f.staging[len(s.f.staging)-1].splits[l.Staging.Chunk] = unmsgs(l.Staging.Splits)
	default:
		return fmt.Errorf("record of unknown type %q", l.T)
	}
	return nil
}

func (sn snapshots) restoreJob(l *jobLine) error {
	j := l.Job
	spec, err := jobspec.DecodeStored([]byte(j.SpecJSON))
	if err != nil {
		return err
	}
	if len(j.Stages) != len(spec.Stages) || len(l.Limits) != len(spec.Stages) {
		return fmt.Errorf("job %d has %d stages, its spec %d", j.ID, len(j.Stages), len(spec.Stages))
	}
	j.Spec, j.Quote = spec, l.Quote.m
	for i := range j.Stages {
		s := &j.Stages[i]
		if s.Tasks < 0 || s.Tasks > jobspec.MaxTasks {
			return fmt.Errorf("job %d: stage %d has %d tasks", j.ID, i, s.Tasks)
		}
		s.Limits = l.Limits[i].m
		s.chunks = make([]*chunk, (int(s.Tasks)+chunkTasks-1)/chunkTasks)
		if spec.Stages[i].Kind == jobspec.KindMap {
			s.Splits = make([]*droverv1.FactSplit, s.Tasks)
		}
	}
	sn.f.jobs[j.ID] = j
	return nil
}

func (sn snapshots) restoreTasks(l *tasksLine) error {
	j := sn.f.jobs[l.Job]
	if j == nil || l.Stage < 0 || int(l.Stage) >= len(j.Stages) {
		return fmt.Errorf("tasks of job %d stage %d, which is not there", l.Job, l.Stage)
	}
	s := &j.Stages[l.Stage]
	first := int(l.First)
	if first < 0 || first%chunkTasks != 0 || first/chunkTasks >= len(s.chunks) || (len(l.Splits) > 0 && first+len(l.Splits) > len(s.Splits)) {
		return fmt.Errorf("tasks of job %d stage %d from %d are out of range", l.Job, l.Stage, l.First)
	}
	if len(l.Splits) > 0 {
		copy(s.Splits[first:], unmsgs(l.Splits))
	}
	if l.Sealed != nil {
		return s.restoreSealed(l)
	}
	if len(l.Tasks) == 0 {
		return nil
	}
	c := &chunk{tasks: new([chunkTasks]*Task)}
	for _, t := range l.Tasks {
		if t.Task == nil || t.Index < 0 || l.First+t.Index >= s.Tasks || t.Index >= chunkTasks {
			return fmt.Errorf("task %d of job %d stage %d is out of range", l.First+t.Index, l.Job, l.Stage)
		}
		for _, a := range t.Attempts {
			if a.Attempt == nil {
				return fmt.Errorf("an attempt of job %d is empty", l.Job)
			}
			a.Attempt.seen = a.Seen.m
			t.Task.Attempts = append(t.Task.Attempts, a.Attempt)
		}
		c.tasks[t.Index] = t.Task
	}
	s.chunks[l.First/chunkTasks] = c
	return nil
}

// restoreSealed adds a sealed block of tasks.
func (s *Stage) restoreSealed(l *tasksLine) error {
	sealed, err := restoreSealed(l.Sealed.Heads, l.Sealed.Reports)
	if err != nil {
		return fmt.Errorf("tasks of job %d stage %d from %d: %w", l.Job, l.Stage, l.First, err)
	}
	for i := max(0, s.Tasks-l.First); i < chunkTasks; i++ {
		if len(sealed.task(i).Attempts) > 0 {
			return fmt.Errorf("task %d of job %d stage %d is out of range", l.First+i, l.Job, l.Stage)
		}
	}
	s.chunks[l.First/chunkTasks] = &chunk{sealed: sealed}
	return nil
}

// restoreIndexes rebuilds the indexes that snapshots leave out.
func (s snapshots) restoreIndexes() {
	for _, id := range s.f.JobIDs() {
		j := s.f.jobs[id]
		if !j.HasEnded() {
			s.f.live.add(j.Spec.Tenant, j.Name, id)
		}
		if j.Output != "" && (!j.HasEnded() || j.OutputReserved) {
			s.f.outputs[j.Output] = id
		}
		for _, d := range Digests(j.Spec) {
			if b := s.f.blobs[d]; b != nil {
				b.Refs++
			}
		}
		s.f.EachAttempt(j, func(k Key, t *Task, a *Attempt) {
			n := s.f.Node(a.Node)
			if n == nil || !n.Up || n.Epoch != a.Epoch || !j.occupiesNode(k, t, a) {
				return
			}
			if s.f.onNode[a.Node] == nil {
				s.f.onNode[a.Node] = map[Key]struct{}{}
			}
			s.f.onNode[a.Node][k] = struct{}{}
		})
	}
}

// EachAttempt calls fn for every attempt of a job in key order.
func (f *Facts) EachAttempt(j *Job, fn func(Key, *Task, *Attempt)) {
	snapshotsOf(f).eachAttempt(j, true, fn)
}

// EachActive calls fn for every active attempt of a job in key order. It passes
// over blocks of tasks in which nothing is active.
func (f *Facts) EachActive(j *Job, fn func(Key, *Task, *Attempt)) {
	snapshotsOf(f).eachAttempt(j, false, func(k Key, t *Task, a *Attempt) {
		if a.State.IsActive() {
			fn(k, t, a)
		}
	})
}

func (sn snapshots) eachAttempt(j *Job, sealed bool, fn func(Key, *Task, *Attempt)) {
	for s := range j.Stages {
		for c, ch := range j.Stages[s].chunks {
			if ch == nil || ch.sealed != nil && !sealed {
				continue
			}
			ch.each(func(i int, t *Task) {
				for _, a := range t.Attempts {
					fn(Key{j.ID, int32(s), int32(c*chunkTasks + i), a.Attempt}, t, a)
				}
			})
		}
	}
}
