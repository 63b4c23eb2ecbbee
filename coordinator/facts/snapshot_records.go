package facts

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
)

// recordTypes is what a snapshot consists of, in the order in which it is written: what a record names
// comes before it. Readers take the records of earlier versions, which have them in other orders.
var recordTypes = []recordType{
	newRecordType("tenant", func(l *line) **tenantLine { return &l.Tenant }, (*Snapshot).tenantLines, snapshots.restoreTenant),
	newRecordType("node", func(l *line) **nodeLine { return &l.Node }, (*Snapshot).nodeLines, snapshots.restoreNode),
	newRecordType("token", func(l *line) **tokenLine { return &l.Token }, (*Snapshot).tokenLines, snapshots.restoreToken),
	newRecordType("secret", func(l *line) **Secret { return &l.Secret }, func(s *Snapshot) iter.Seq[*Secret] { return slices.Values(s.secrets) }, snapshots.restoreSecret),
	newRecordType("secret_number", func(l *line) **secretNumber { return &l.SecretNum }, func(s *Snapshot) iter.Seq[*secretNumber] { return pointers(s.secretNums) }, snapshots.restoreSecretNumber),
	newRecordType("blob", func(l *line) **Blob { return &l.Blob }, func(s *Snapshot) iter.Seq[*Blob] { return pointers(s.blobs) }, snapshots.restoreBlob),
	newRecordType("job", func(l *line) **jobLine { return &l.Job }, (*Snapshot).jobLines, snapshots.restoreJob),
	newRecordType("tasks", func(l *line) **tasksLine { return &l.Tasks }, (*Snapshot).tasksLines, snapshots.restoreTasks),
	newRecordType("policy_state", func(l *line) **PolicyState { return &l.PolicyState }, func(s *Snapshot) iter.Seq[*PolicyState] { return slices.Values(s.policyStates) }, snapshots.restorePolicyState),
	newRecordType("reservation", func(l *line) **reservationLine { return &l.Reservation }, (*Snapshot).reservationLines, snapshots.restoreReservation),
	newRecordType("staging", func(l *line) **stagingLine { return &l.Staging }, (*Snapshot).stagingLines, snapshots.restoreStaging),
	newRecordType("key", func(l *line) **keyLine { return &l.Key }, func(s *Snapshot) iter.Seq[*keyLine] { return pointers(s.keys) }, snapshots.restoreKey),
	newRecordType("project", func(l *line) **Project { return &l.Project }, func(s *Snapshot) iter.Seq[*Project] { return slices.Values(s.projects) }, snapshots.restoreProject),
	newRecordType("completion", func(l *line) **Completion { return &l.Completion }, func(s *Snapshot) iter.Seq[*Completion] { return slices.Values(s.completions) }, snapshots.restoreCompletion),
	newRecordType("outcome", func(l *line) **Outcome { return &l.Outcome }, func(s *Snapshot) iter.Seq[*Outcome] { return pointers(s.outcomes) }, snapshots.restoreOutcome),
	newRecordType("event", func(l *line) **Event { return &l.Event }, func(s *Snapshot) iter.Seq[*Event] { return slices.Values(s.events) }, snapshots.restoreEvent),
}

// recordType is how the records of one type are written and read.
type recordType struct {
	name  string
	write func(*Snapshot, func(*line) error) error
	read  func(snapshots, *line) error
}

// newRecordType returns the type of the records that field has: all of a snapshot, and what takes
// one back.
func newRecordType[P any](name string, field func(*line) **P, all func(*Snapshot) iter.Seq[*P], restore func(snapshots, *P) error) recordType {
	return recordType{
		name: name,
		write: func(s *Snapshot, put func(*line) error) error {
			for p := range all(s) {
				l := line{T: name}
				*field(&l) = p
				if err := put(&l); err != nil {
					return err
				}
			}
			return nil
		},
		read: func(sn snapshots, l *line) error {
			p := *field(l)
			if p == nil {
				return errIncomplete
			}
			return restore(sn, p)
		},
	}
}

// errIncomplete is the error of a record that lacks what its type has.
var errIncomplete = errors.New("the record is incomplete")

func (sn snapshots) restoreLine(l *line) error {
	i := slices.IndexFunc(recordTypes, func(t recordType) bool { return t.name == l.T })
	if i < 0 {
		return fmt.Errorf("record of unknown type %q", l.T)
	}
	if err := recordTypes[i].read(sn, l); err != nil {
		return fmt.Errorf("%s: %w", l.T, err)
	}
	return nil
}

// pointers returns the addresses of a list's elements.
func pointers[T any](list []T) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := range list {
			if !yield(&list[i]) {
				return
			}
		}
	}
}

// each returns what of makes of a list's elements.
func each[T, R any](list []T, of func(T) R) iter.Seq[R] {
	return func(yield func(R) bool) {
		for _, x := range list {
			if !yield(of(x)) {
				return
			}
		}
	}
}

type (
	// line is one record; T says which of the other fields is set.
	line struct {
		T           string           `json:"t"`
		Tenant      *tenantLine      `json:"tenant,omitempty"`
		Node        *nodeLine        `json:"node,omitempty"`
		Blob        *Blob            `json:"blob,omitempty"`
		Job         *jobLine         `json:"job,omitempty"`
		Tasks       *tasksLine       `json:"tasks,omitempty"`
		PolicyState *PolicyState     `json:"policy_state,omitempty"`
		Reservation *reservationLine `json:"reservation,omitempty"`
		Event       *Event           `json:"event,omitempty"`
		Staging     *stagingLine     `json:"staging,omitempty"`
		Key         *keyLine         `json:"key,omitempty"`
		Project     *Project         `json:"project,omitempty"`
		Completion  *Completion      `json:"completion,omitempty"`
		Outcome     *Outcome         `json:"outcome,omitempty"`
		Token       *tokenLine       `json:"token,omitempty"`
		Secret      *Secret          `json:"secret,omitempty"`
		SecretNum   *secretNumber    `json:"secret_number,omitempty"`
		Lines       int              `json:"lines,omitempty"` // of "end"
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
	reservationLine = msg[*droverv1.ReservationFact]
	stagingLine     struct {
		ID     string                     `json:"id"`
		Chunk  int32                      `json:"chunk"`
		Splits []msg[*droverv1.FactSplit] `json:"splits"`
	}
	keyLine struct {
		Key string `json:"key"`
		keyedJob
	}
)

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

func (s *Snapshot) tenantLines() iter.Seq[*tenantLine] {
	return each(s.tenants, func(t *Tenant) *tenantLine { return &tenantLine{t, msg[*droverv1.Tenant]{t.Spec}} })
}

func (sn snapshots) restoreTenant(l *tenantLine) error {
	t := l.Tenant
	if t == nil {
		return errIncomplete
	}
	t.Spec = l.Spec.m
	if int(t.ID) != len(sn.f.tenants) {
		return fmt.Errorf("tenant %d is not the next", t.ID)
	}
	sn.f.tenants = append(sn.f.tenants, t)
	sn.f.tenantName[t.Spec.GetName()] = t
	return nil
}

func (s *Snapshot) nodeLines() iter.Seq[*nodeLine] {
	return each(s.nodes, func(n *Node) *nodeLine { return &nodeLine{n, msg[*droverv1.NodeInfo]{n.Info}} })
}

func (sn snapshots) restoreNode(l *nodeLine) error {
	n := l.Node
	if n == nil {
		return errIncomplete
	}
	n.Info = l.Info.m
	if int(n.ID) != len(sn.f.nodes)+1 {
		return fmt.Errorf("node %d is not the next", n.ID)
	}
	sn.f.nodes = append(sn.f.nodes, n)
	sn.f.nodeName[n.Info.GetName()] = n.ID
	return nil
}

func (s *Snapshot) tokenLines() iter.Seq[*tokenLine] {
	return each(s.tokens, func(t *Token) *tokenLine { return &tokenLine{msg[*droverv1.Token]{t.Spec}, t.Hash} })
}

func (sn snapshots) restoreToken(l *tokenLine) error {
	if l.Spec.m == nil {
		return errIncomplete
	}
	sn.f.tokens[l.Spec.m.GetId()] = &Token{l.Spec.m, l.Hash}
	return nil
}

func (sn snapshots) restoreSecret(x *Secret) error {
	if len(x.Versions) == 0 || slices.Contains(x.Versions, nil) {
		return errIncomplete
	}
	sn.f.secrets.set(secretKey{x.Tenant, x.Name}, x)
	return nil
}

func (sn snapshots) restoreSecretNumber(n *secretNumber) error {
	sn.f.secrets.restoreNumber(n)
	return nil
}

func (sn snapshots) restoreBlob(b *Blob) error {
	sn.f.blobs[b.Digest] = b
	return nil
}

func (s *Snapshot) jobLines() iter.Seq[*jobLine] {
	return each(s.jobs, func(j *Job) *jobLine {
		l := &jobLine{Job: j, Quote: msg[*droverv1.Quote]{j.Quote}}
		for i := range j.Stages {
			l.Limits = append(l.Limits, msg[*droverv1.Limits]{j.Stages[i].Limits})
		}
		return l
	})
}

func (sn snapshots) restoreJob(l *jobLine) error {
	j := l.Job
	if j == nil {
		return errIncomplete
	}
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

// tasksLines returns the tried tasks of all stages, and their splits, by chunk.
func (s *Snapshot) tasksLines() iter.Seq[*tasksLine] {
	return func(yield func(*tasksLine) bool) {
		for _, j := range s.jobs {
			for i := range j.Stages {
				for c := range j.Stages[i].chunks {
					if l := newTasksLine(j, i, c); l != nil && !yield(l) {
						return
					}
				}
			}
		}
	}
}

// newTasksLine returns the record of chunk c of a stage; nil if it would be empty.
func newTasksLine(j *Job, stage, c int) *tasksLine {
	s := &j.Stages[stage]
	l := &tasksLine{Job: j.ID, Stage: int32(stage), First: int32(c * chunkTasks)}
	if s.Splits != nil {
		l.Splits = msgs(s.Splits[c*chunkTasks : min((c+1)*chunkTasks, len(s.Splits))])
	}
	switch ch := s.chunks[c]; {
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
		return nil
	}
	return l
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

func (sn snapshots) restorePolicyState(p *PolicyState) error {
	sn.f.policyStates.put(p)
	return nil
}

func (s *Snapshot) reservationLines() iter.Seq[*reservationLine] {
	return each(s.reservations, func(r *droverv1.ReservationFact) *reservationLine { return &reservationLine{r} })
}

func (sn snapshots) restoreReservation(r *reservationLine) error {
	sn.f.reservations.put(r.m)
	return nil
}

func (s *Snapshot) stagingLines() iter.Seq[*stagingLine] {
	return func(yield func(*stagingLine) bool) {
		for _, st := range s.staging {
			for _, c := range slices.Sorted(maps.Keys(st.splits)) {
				if !yield(&stagingLine{st.id, c, msgs(st.splits[c])}) {
					return
				}
			}
		}
	}
}

func (sn snapshots) restoreStaging(l *stagingLine) error {
	if n := len(sn.f.staging); n == 0 || sn.f.staging[n-1].id != l.ID {
		sn.f.staging = append(sn.f.staging, &staging{id: l.ID, splits: map[int32][]*droverv1.FactSplit{}})
	}
	sn.f.staging[len(sn.f.staging)-1].splits[l.Chunk] = unmsgs(l.Splits)
	return nil
}

func (sn snapshots) restoreKey(l *keyLine) error {
	sn.f.keys[l.Key] = l.keyedJob
	sn.f.keyRing = append(sn.f.keyRing, l.Key)
	return nil
}

func (sn snapshots) restoreProject(p *Project) error {
	sn.f.projects[p.ID] = p
	sn.f.projectName[projectKey(p.Tenant, p.Name)] = p.ID
	return nil
}

func (sn snapshots) restoreCompletion(c *Completion) error {
	sn.f.completions = append(sn.f.completions, c)
	return nil
}

func (sn snapshots) restoreOutcome(o *Outcome) error {
	sn.f.outcomes = append(sn.f.outcomes, *o)
	return nil
}

func (sn snapshots) restoreEvent(e *Event) error {
	sn.f.EventLog().keep(e)
	return nil
}
