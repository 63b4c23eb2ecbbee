package node

import (
	"testing"
	"time"
)

// The load says what the machine uses: rates of at least a second, made of the
// kernel's counters.
func TestLoadSaysWhatTheMachineUses(t *testing.T) {
	m := &machineLoad{counts: newKernelCounts("/proc")}
	first := m.read(time.Hour)
	if first.GetMemoryUsed() <= 0 || first.GetCpuUsed() != 0 || first.GetIoUsed() != 0 {
		t.Errorf("at first %v", first)
	}
	before := m.counts.busy()
	for m.counts.busy()-before < 200*time.Millisecond { // the test itself makes the processor busy
		continue
	}
	if early := m.read(time.Hour + ratesOver/2); early.GetCpuUsed() != 0 {
		t.Errorf("a rate of half a second: %v", early)
	}
	m.before.io -= 3 << 20
	if next := m.read(time.Hour + 2*ratesOver); next.GetCpuUsed() < 100 || next.GetIoUsed() < 1<<20 {
		t.Errorf("after 200 ms of work and 3 MiB in 2 s: %v", next)
	}
	m.before.busy += time.Hour // as after a restore of the machine
	if back := m.read(time.Hour + 4*ratesOver); back.GetCpuUsed() != 0 {
		t.Errorf("when the counters go back: %v", back)
	}
}
