package coordinator

import "github.com/drover-run/drover/coordinator/facts"

// missingMapsDivisor limits how often live reduces are told of new map outputs: the number of
// missing outputs must have shrunk by this factor. Each update contains all outputs, which may be a
// megabyte.
const missingMapsDivisor = 4

// outputChanges is what the leader has told live reduces about the map outputs of their jobs.
type outputChanges struct {
	dirty   map[uint64]bool  // jobs of which outputs came or were lost
	missing map[uint64]int32 // outputs that live reduces still lacked at the last update, by job
}

// tellReduces updates the live reduce attempts of jobs whose map outputs changed: when an output
// was lost, when all are complete, and a few times in between. O(active attempts of those jobs).
func (o outputChanges) tellReduces(f *facts.Facts, w *wantedSets) {
	for id := range o.dirty {
		j := f.Job(id)
		if j == nil || j.HasEnded() || j.ReduceStage() < 0 || j.Stages[j.ReduceStage()].Live == 0 {
			delete(o.missing, id)
			continue
		}
		maps := &j.Stages[j.MapStage()]
		missing := maps.Tasks - maps.Done
		if told, ok := o.missing[id]; ok && missing > told/missingMapsDivisor && missing < told {
			continue
		}
		o.missing[id] = missing
		f.EachActive(j, func(k facts.Key, _ *facts.Task, a *facts.Attempt) {
			if int(k.Stage) == j.ReduceStage() && a.State == facts.AttemptLive {
				w.recordChange(f, nodeEpoch{a.Node, a.Epoch}, k, a.Run)
			}
		})
	}
	clear(o.dirty)
}
