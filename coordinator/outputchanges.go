package coordinator

import "github.com/drover-run/drover/coordinator/facts"

// missingMapsDivisor is how much smaller the number of missing map outputs must have become before live
// reduces are told of the new ones: each time they get all outputs, which may be a megabyte.
const missingMapsDivisor = 4

// outputChanges is what the leader has told live reduces of the outputs of their jobs' maps.
type outputChanges struct {
	dirty   map[uint64]bool  // jobs of which outputs came or were lost
	missing map[uint64]int32 // outputs that live reduces were last told to be missing, by job
}

// tellReduces updates the live reduce attempts of jobs whose map outputs changed: if one was lost, if
// all are there, and a few times before. O(active attempts of those jobs).
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
