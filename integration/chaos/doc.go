// Package chaos has the test of `make chaos`: three coordinators and three emulated machines
// with MapReduce, group, exclusive and suspended jobs, and faults drawn from a seed, of which up
// to three meet. It skips outside a test bed. Command integration/cmd/chaos keeps what its runs did.
package chaos

// Run is what a run of the test did. The test prints it as one line of JSON after RunPrefix.
type Run struct {
	Seed   uint64         `json:"seed"`
	Faults map[string]int `json:"faults"`  // by kind
	AtOnce map[string]int `json:"at_once"` // faults that began while a submission, a commit or a suspension was under way

	Accepted    int `json:"accepted"`    // jobs
	Ended       int `json:"ended"`       // of them, all well
	Outputs     int `json:"outputs"`     // folders of MapReduce jobs that were compared with the reference
	Logs        int `json:"logs"`        // of tasks of other jobs, compared as well
	Suspensions int `json:"suspensions"` // that the cluster agreed to
	Limits      int `json:"limits"`      // times that the limits of a container that ran were looked at
	Exclusive   int `json:"exclusive"`   // of them, those of exclusive tasks
	Attempts    int `json:"attempts"`    // of exclusive tasks, that were seen to act
	Leftovers   int `json:"leftovers"`   // at the end

	Times         int     `json:"times,omitempty"` // that faults met; as many as faults where it is 0
	Seconds       float64 `json:"seconds"`         // of all faults with what is between them
	MedianSeconds float64 `json:"median_seconds"`  // from faults that meet to the next that do
	Failure       string  `json:"failure,omitempty"`

	Commit string `json:"commit"` // of these the command knows
	Date   string `json:"date"`
}

// RunPrefix begins the line with a Run.
const RunPrefix = "chaos run: "
