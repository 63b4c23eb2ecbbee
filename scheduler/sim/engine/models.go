package engine

import (
	"fmt"
	"math"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// Limits of the models. Beyond them a simulation would not end, or its numbers would mean nothing.
const (
	minHeartbeat = time.Millisecond // each report costs O(running tasks)
	minMTBF      = time.Second
	maxSigma     = 5.0 // of the logarithm: a task in 20 is then 18,000 times the median
)

// Check returns an error for models that cannot be simulated. It names the setting as ParseModels
// of package run does, its value and its range.
func (m *Models) Check() error {
	if m.Transfer > TransferShared {
		return fmt.Errorf("%v: use free, fixed or shared", m.Transfer)
	}
	if m.transferModel() != TransferFree && (m.LocalRate <= 0 || m.RackRate <= 0 || m.RemoteRate <= 0) {
		return fmt.Errorf("transfer %v: local_rate, rack_rate and remote_rate must be above 0", m.Transfer)
	}
	if m.transferModel() == TransferShared && (m.NodeLink <= 0 || m.RackLink <= 0) {
		return fmt.Errorf("transfer shared: node_link and rack_link must be above 0")
	}
	if m.Replicas < 0 || m.Replicas > scheduler.MaxReplicas {
		return fmt.Errorf("replicas is %d: expected 0 to %d", m.Replicas, scheduler.MaxReplicas)
	}
	if err := m.checkTimes(); err != nil {
		return err
	}
	return m.checkNumbers()
}

func (m *Models) checkTimes() error {
	for _, x := range []struct {
		name  string
		value time.Duration
		least time.Duration // unless 0, which is off
	}{
		{"launch", m.Launch, 0}, {"mtbf", m.MTBF, minMTBF}, {"repair", m.Repair, 0}, {"kill_delay", m.KillDelay, 0}, {"heartbeat", m.Heartbeat, minHeartbeat},
	} {
		if x.value < 0 || (x.value > 0 && x.value < x.least) {
			return fmt.Errorf("%s is %v: expected 0 (off) or at least %v", x.name, x.value, max(x.least, 1))
		}
	}
	return nil
}

func (m *Models) checkNumbers() error {
	for _, x := range []struct {
		name  string
		value float64
		most  float64
	}{
		{"spread", m.Spread, maxSigma}, {"estimate_error", m.EstimateError, maxSigma}, {"straggler_part", m.StragglerFraction, 1},
		{"straggler_factor", m.StragglerFactor, 1e6}, {"memory_used", m.MemoryUsedFraction, 1},
	} {
		if !(x.value >= 0 && x.value <= x.most) || math.IsInf(x.value, 0) {
			return fmt.Errorf("%s is %v: expected a number from 0 to %v", x.name, x.value, x.most)
		}
	}
	return nil
}
