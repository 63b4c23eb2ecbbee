package helper

import (
	"encoding/json"

	"github.com/drover-run/drover/internal/fault"
)

// outputList is a list of map outputs. Its JSON names each node once, so that the million outputs
// of the largest job fit into a line. After decoding, the outputs of a node are adjacent.
type outputList []MapOutput

// storedOutputs are the outputs of a stage on one node: task, attempt and run of each, in turn.
type storedOutputs struct {
	Stage   int32   `json:"stage"`
	Address string  `json:"address"`
	Numbers []int32 `json:"numbers"`
}

const numbersOfOutput = 3

// MarshalJSON implements json.Marshaler.
func (l outputList) MarshalJSON() ([]byte, error) {
	type place struct {
		stage   int32
		address string
	}
	groups, at := []storedOutputs{}, map[place]int{}
	for _, o := range l {
		p := place{o.Stage, o.Address}
		i, known := at[p]
		if !known {
			i = len(groups)
			at[p], groups = i, append(groups, storedOutputs{Stage: o.Stage, Address: o.Address})
		}
		groups[i].Numbers = append(groups[i].Numbers, o.Task, o.Attempt, o.Run)
	}
	return json.Marshal(groups)
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *outputList) UnmarshalJSON(b []byte) error {
	var groups []storedOutputs
	if err := json.Unmarshal(b, &groups); err != nil {
		return err
	}
	*l = nil
	for _, g := range groups {
		if len(g.Numbers)%numbersOfOutput != 0 {
			return fault.New(fault.Invalid, "%d numbers are not those of map outputs", len(g.Numbers))
		}
		for n := g.Numbers; len(n) > 0; n = n[numbersOfOutput:] {
			*l = append(*l, MapOutput{Stage: g.Stage, Task: n[0], Attempt: n[1], Run: n[2], Address: g.Address})
		}
	}
	return nil
}
