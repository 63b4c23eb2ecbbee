package facts

import "fmt"

// ChangeKind is the kind of a Change.
type ChangeKind uint8

// The kinds of changes.
const (
	ChangeReset       ChangeKind = iota + 1 // everything may have changed: rebuild
	ChangeTenant                            // Node is the tenant's id
	ChangeNode                              // registered, changed, drained, quarantined or up again
	ChangeNodeLost                          // a ChangeEnded follows for each of its attempts
	ChangeJob                               // accepted, or its state or counts changed
	ChangePlaced                            // an attempt was placed
	ChangeLevel                             // a level was requested of an attempt, reached or refused
	ChangeStopping                          // an attempt was told to stop
	ChangeEnded                             // an attempt ended
	ChangeOutput                            // the output of a done task was lost; the task is pending again
	ChangeForgotten                         // a job was forgotten; Nodes had attempts of it
	ChangeBlobGone                          // the file of Digest may be removed
	ChangeScheduler                         // another policy, or other parameters
	ChangePolicyState                       // policy state or reservations
	ChangeEstimate                          // the predicted run time of stage Key.Stage of job Key.Job
)

// String returns the kind's name.
func (k ChangeKind) String() string {
	names := [...]string{ChangeReset: "reset", ChangeTenant: "tenant", ChangeNode: "node", ChangeNodeLost: "node lost",
		ChangeJob: "job", ChangePlaced: "placed", ChangeLevel: "level", ChangeStopping: "stopping", ChangeEnded: "ended",
		ChangeOutput: "output lost", ChangeForgotten: "forgotten", ChangeBlobGone: "blob gone", ChangeScheduler: "scheduler", ChangePolicyState: "policy state",
		ChangeEstimate: "estimate"}
	if int(k) < len(names) && names[k] != "" {
		return names[k]
	}
	return fmt.Sprintf("change(%d)", uint8(k))
}

// Change is one entry of the journal. It says what changed and when; the new
// value is read from the facts, which may be newer.
type Change struct {
	Kind   ChangeKind
	At     int64 // Unix ns, of the entry
	Key    Key   // of the attempt; Key.Job of the job
	Node   int32 // of the node, tenant or attempt
	Digest string
	Nodes  []int32 // of ChangeForgotten; otherwise other nodes that the attempt concerns, under Run
	Run    int32   // of the attempt on Nodes
}

// maxJournal bounds the changes kept for a reader that does not come. Beyond it
// they are replaced by one ChangeReset.
const maxJournal = 1 << 16

func (w writer) recordChange(c Change) {
	c.At = w.f.now
	if len(w.f.journal) >= maxJournal {
		w.f.journal = append(w.f.journal[:0], Change{Kind: ChangeReset, At: w.f.now})
	}
	if len(w.f.journal) == 1 && w.f.journal[0].Kind == ChangeReset {
		// A reader that rebuilds learns of removed blobs only from the journal.
		if c.Kind != ChangeBlobGone {
			return
		}
	}
	w.f.journal = append(w.f.journal, c)
}

// TakeJournal returns and clears the changes since its last call. It needs the
// write lock. The caller owns the slice.
func (f *Facts) TakeJournal() []Change {
	j := f.journal
	f.journal = nil
	return j
}
