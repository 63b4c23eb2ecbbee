package simcluster

import (
	"math/rand/v2"
	"slices"
	"time"
)

// The faults of this file are of the machines beneath the programs. They have a source of their own, as those of rare_test.go
// have.

// addHardware adds such faults to one of three plans. None with an old copy of a coordinator's disk has them: a node that is
// down, or cannot store a term, does not know that the copy's have passed.
func (p *plan) addHardware() {
	r := rand.New(rand.NewPCG(p.seed, 7))
	if r.IntN(3) > 0 || slices.ContainsFunc(p.faults, func(f plannedFault) bool { return f.kind == staleDisk }) {
		return
	}
	count := 1
	if p.focus == "" {
		count += r.IntN(3)
	}
	kinds := []faultKind{cutPower, fillNodeDisk}
	for range count {
		f := plannedFault{kind: kinds[r.IntN(len(kinds))], n: 1 + r.IntN(6), at: p.whileAJobRuns(r), length: between(r, 50*time.Millisecond, 2*lease), a: machineName(r.IntN(p.machines))}
		if f.kind == cutPower && r.IntN(2) == 0 { // with tasks that are dumps then, and go on from them
			j := p.jobs[r.IntN(len(p.jobs))]
			s := plannedFault{kind: suspend, a: j.spec.Name, n: 2, at: j.at + between(r, 50*time.Millisecond, lease), length: 2 * lease}
			f.at = s.at + between(r, lease/5, lease)
			p.faults = append(p.faults, s)
		}
		p.faults = append(p.faults, f)
	}
}
