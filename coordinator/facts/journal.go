package facts

import "fmt"

// ChangeKind says what changed.
type ChangeKind uint8

// The kinds of changes.
const (
	ChangeReset     ChangeKind = iota + 1 // everything: build anew
	ChangeTenant                          // Node is the tenant's id
	ChangeNode                            // registered, changed, drained, up again
	ChangeNodeLost                        // its attempts' ends follow as changes of their own
	ChangeJob                             // accepted, its state or its counts
	ChangePlaced                          // an attempt was made
	ChangeLevel                           // an attempt was asked for a level, or confirmed one
	ChangeStopping                        // an attempt was told to end
	ChangeEnded                           // an attempt ended
	ChangeOutput                          // the output of a done task was lost; the task waits again
	ChangeForgotten                       // a job left the facts; its nodes are in Nodes
	ChangeBlobGone                        // Digest may go from the disk
	ChangeScheduler                       // another policy or other parameters
	ChangeNotes                           // notes or reservations
	ChangeEstimate                        // the prediction for stage Key.Stage of job Key.Job
)

// String names the kind.
func (k ChangeKind) String() string {
	names := [...]string{ChangeReset: "reset", ChangeTenant: "tenant", ChangeNode: "node", ChangeNodeLost: "node lost",
		ChangeJob: "job", ChangePlaced: "placed", ChangeLevel: "level", ChangeStopping: "stopping", ChangeEnded: "ended",
		ChangeOutput: "output lost", ChangeForgotten: "forgotten", ChangeBlobGone: "blob gone", ChangeScheduler: "scheduler", ChangeNotes: "notes",
		ChangeEstimate: "estimate"}
	if int(k) < len(names) && names[k] != "" {
		return names[k]
	}
	return fmt.Sprintf("change(%d)", uint8(k))
}

// Change is one line of the journal that a projection follows. It says what
// changed and when; the value is read from the facts, which may be newer.
type Change struct {
	Kind   ChangeKind
	At     int64 // Unix ns, of the entry
	Key    Key   // for attempts; Key.Job for jobs
	Node   int32 // for nodes, tenants and attempts
	Digest string
	Nodes  []int32 // for ChangeForgotten; else other nodes that an attempt concerns, under Run
	Run    int32   // of the attempt on Nodes
}

// MaxJournal bounds the changes kept for a reader that does not come; beyond
// it they are replaced by one ChangeReset.
const MaxJournal = 1 << 16

func (f *Facts) record(c Change) {
	c.At = f.at
	if len(f.journal) >= MaxJournal {
		f.journal = append(f.journal[:0], Change{Kind: ChangeReset, At: f.at})
	}
	if len(f.journal) == 1 && f.journal[0].Kind == ChangeReset {
		// Whoever builds anew sees blobs that went only by this line.
		if c.Kind != ChangeBlobGone {
			return
		}
	}
	f.journal = append(f.journal, c)
}

// TakeJournal gives the changes since it was last called and keeps none. It
// needs the write lock. The slice belongs to the caller.
func (f *Facts) TakeJournal() []Change {
	j := f.journal
	f.journal = nil
	return j
}
