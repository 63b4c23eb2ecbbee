package coordinator

import (
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// Bounds of the numbers that a node may report. They are far above those of real machines, and so low that
// sums of them, and milliseconds in nanoseconds, stay within 64 bits: what is a fact must be a state of the
// scheduler, now and whenever the log is read again.
const (
	maxReportedAmount = 1 << 48                    // bytes or millicores of one attempt
	maxReportedMS     = 10 * 365 * 24 * 60 * 60e3  // of a duration: ten years
	maxReportedUnixMS = 220 * 365 * 24 * 60 * 60e3 // of a time: in the year 2189
	maxTaskOverhead   = 1 << 30                    // bytes that a node adds to the demand of each task, of all jobs
	maxRegistration   = 256 << 10                  // bytes
)

// boundNumbers brings the numbers of an attempt's report into their bounds.
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

// boundLoad does the same for the load of a node.
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

// checkRegistration refuses what the scheduler's state takes and no machine is. The harness's memory is charged to
// each task of every job, whichever node it runs on.
func checkRegistration(i *droverv1.NodeInfo) error {
	if m := i.GetTaskOverheadMemory(); m < 0 || m > maxTaskOverhead {
		return fault.New(fault.Invalid, "its harness takes %d bytes of memory for each task: 0 to %d are possible", m, int64(maxTaskOverhead))
	}
	if n := proto.Size(i); n > maxRegistration {
		return fault.New(fault.Invalid, "its description has %d bytes, at most %d are allowed", n, maxRegistration)
	}
	return nil
}
