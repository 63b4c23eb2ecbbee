package facts

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// SnapshotVersion is the version of the snapshot format; Restore refuses a
// higher one.
const SnapshotVersion = 8

// header is the first line of a snapshot.
type header struct {
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
	for _, d := range slices.Sorted(maps.Keys(f.blobs)) {
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

// ForgetUnneededFiles removes the files that no job of the snapshot needs: an archive without their bytes must not
// name them, or coordinators that are restored from it would look for them in vain.
func (s *Snapshot) ForgetUnneededFiles() {
	s.blobs = slices.DeleteFunc(s.blobs, func(b Blob) bool { return b.Refs == 0 })
}

// Digests returns the digests of the files in the snapshot, in ascending order.
func (s *Snapshot) Digests() (out []string) {
	for i := range s.blobs {
		out = append(out, s.blobs[i].Digest)
	}
	return out
}

// Encode writes the snapshot as lines of JSON.
func (s *Snapshot) Encode(w io.Writer) error {
	b := bufio.NewWriterSize(w, 1<<16)
	enc := json.NewEncoder(b)
	if err := enc.Encode(s.head); err != nil {
		return fmt.Errorf("write the snapshot: %w", err)
	}
	lines := 1
	for _, t := range recordTypes {
		err := t.write(s, func(l *line) error {
			lines++
			return enc.Encode(l)
		})
		if err != nil {
			return fmt.Errorf("write the snapshot: %w", err)
		}
	}
	if err := enc.Encode(line{T: "end", Lines: lines}); err != nil {
		return fmt.Errorf("write the snapshot: %w", err)
	}
	return b.Flush()
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

// restoreIndexes rebuilds what snapshots leave out: indexes, and what is derived from splits.
func (sn snapshots) restoreIndexes() {
	for _, id := range sn.f.JobIDs() {
		j := sn.f.jobs[id]
		for i := range j.Stages {
			j.Stages[i].MeanSplit = MeanSplit(j.Stages[i].Splits)
		}
		if !j.HasEnded() {
			sn.f.live.add(j.Spec.Tenant, j.Name, id)
		}
		if j.Output != "" && (!j.HasEnded() || j.OutputReserved) {
			sn.f.outputs.add(j.Output, id)
		}
		for _, d := range Digests(j.Spec) {
			if b := sn.f.blobs[d]; b != nil {
				b.Refs++
			}
		}
		sn.f.EachAttempt(j, func(k Key, t *Task, a *Attempt) {
			n := sn.f.Node(a.Node)
			if n == nil || !n.Up || n.Epoch != a.Epoch || !j.occupiesNode(k, t, a) {
				return
			}
			if sn.f.onNode[a.Node] == nil {
				sn.f.onNode[a.Node] = map[Key]struct{}{}
			}
			sn.f.onNode[a.Node][k] = struct{}{}
		})
	}
}
