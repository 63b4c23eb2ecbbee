package coordinator

import (
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// Bounds of the numbers that a node may report. They are far above those of real machines, and low
// enough that their sums, and milliseconds converted to nanoseconds, fit into 64 bits: State must
// accept every fact, now and whenever the log is replayed.
const (
	maxReportedAmount = 1 << 48                    // bytes or millicores of one attempt
	maxReportedMS     = 10 * 365 * 24 * 60 * 60e3  // of a duration: ten years
	maxReportedUnixMS = 220 * 365 * 24 * 60 * 60e3 // of a time: in the year 2189
	maxTaskOverhead   = 1 << 30                    // bytes that a node adds to the demand of each task, of all jobs
	maxRegistration   = 256 << 10                  // bytes
)

// boundNumbers clips the numbers of an attempt's report to their bounds.
func boundNumbers(a *droverv1.SeenAttempt) {
	bound(maxReportedAmount, &a.OutputLength, &a.InputBytes, &a.SwapOccupied, &a.DiskOccupied, &a.ImageOccupied)
	bound(maxReportedMS, &a.RunningMs, &a.StartPauseMs, &a.FetchingMs, &a.CommittingMs)
	bound(maxReportedUnixMS, &a.StartedMs, &a.EndedMs, &a.LevelSinceMs)
	boundResources(a.Occupied)
	if u := a.Usage; u != nil {
		bound(maxReportedAmount, &u.MemoryPeak, &u.ReadBytes, &u.WriteBytes)
		bound(maxReportedUnixMS, &u.CpuMs, &u.CpuThrottledMs) // of many processors
	}
	if l := a.Limits; l != nil {
		bound(maxReportedAmount, &l.DiskQuota)
	}
	for _, s := range a.LevelSteps {
		bound(maxReportedMS, &s.DurationUs)
		bound(maxReportedAmount, &s.Bytes)
		bound(maxReportedUnixMS, &s.StartedMs)
	}
}

// boundLoad clips the numbers of a node's load to their bounds.
func boundLoad(l *droverv1.NodeLoad) {
	if l == nil {
		return
	}
	bound(maxReportedAmount, &l.MemoryAvailable, &l.MemoryUsed, &l.IoUsed, &l.CpuUsed)
	for _, p := range []*float64{&l.CpuPressure, &l.IoPressure, &l.MemoryPressure} {
		if !(*p >= 0 && *p <= 100) {
			*p = 0
		}
	}
}

func boundResources(r *droverv1.Resources) {
	if r != nil {
		bound(maxReportedAmount, &r.Cpu, &r.Memory, &r.Io)
	}
}

func bound(most int64, numbers ...*int64) {
	for _, n := range numbers {
		*n = min(max(*n, 0), most)
	}
}

// checkRegistration refuses amounts that State accepts but no machine has. The harness's memory is
// charged to each task of every job, whatever node it runs on.
func checkRegistration(i *droverv1.NodeInfo) error {
	if m := i.GetTaskOverheadMemory(); m < 0 || m > maxTaskOverhead {
		return fault.New(fault.Invalid, "its harness takes %d bytes of memory for each task: 0 to %d are possible", m, int64(maxTaskOverhead))
	}
	if n := proto.Size(i); n > maxRegistration {
		return fault.New(fault.Invalid, "its description has %d bytes, at most %d are allowed", n, maxRegistration)
	}
	return nil
}
