package node

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/node/task"
)

// The kinds of a task, as the job specification names them.
const (
	kindMap    = string(jobspec.KindMap)
	kindReduce = string(jobspec.KindReduce)
	kindGroup  = string(jobspec.KindGroup)
)

// stderrTailBytes is how much of standard error is reported with a failure.
const stderrTailBytes = 4 << 10

// failure is why an attempt failed.
type failure struct {
	cause    droverv1.Cause
	message  string // one line for the user: what, where, and the cure
	exitCode int32
}

// outcome is a recorded end.
type outcome struct{ end *droverv1.SeenAttempt }

// succeeded reports whether the attempt succeeded; false for a nil outcome.
func (o *outcome) succeeded() bool {
	return o != nil && o.end.GetPhase() == droverv1.Phase_PHASE_SUCCEEDED
}

// causeOf returns the cause that an error of a step counts as. Failures of the
// infrastructure do not count towards the task's attempts.
func causeOf(err error) droverv1.Cause {
	switch {
	case errors.Is(err, fault.Invalid), errors.Is(err, fault.NotFound), errors.Is(err, fault.Denied), errors.Is(err, fault.Unsupported):
		return droverv1.Cause_CAUSE_SPEC
	default:
		return droverv1.Cause_CAUSE_INFRA
	}
}

// isPermanent reports whether repeating the step cannot help.
func isPermanent(err error) bool { return causeOf(err) == droverv1.Cause_CAUSE_SPEC }

// classifyCommandExit classifies the exit of a plain command; nil means success.
func (a *attempt) classifyCommandExit(spec *droverv1.TaskSpec) *failure {
	code := a.status.ExitCode
	if code == 0 {
		return nil
	}
	if f := a.memoryFailure(spec, code); f != nil {
		return f
	}
	f := &failure{cause: droverv1.Cause_CAUSE_EXIT, exitCode: int32(code), message: fmt.Sprintf("the command ended with exit code %d", code)}
	switch {
	case code == 127 && len(spec.GetCommand()) > 0:
		f.message += fmt.Sprintf(": a command was not found; %q must be in the image or among the files of stage %q", spec.GetCommand()[0], spec.GetStageName())
	case code == 126 && len(spec.GetCommand()) > 0:
		f.message += fmt.Sprintf(": %q is there but cannot be executed; check its mode and its first line", spec.GetCommand()[0])
	case code > 128 && code <= 128+64:
		f.message += fmt.Sprintf(" (killed by signal %d)", code-128)
	}
	return f
}

// memoryFailure returns the failure of a task that was killed at its memory
// limit, or nil.
func (a *attempt) memoryFailure(spec *droverv1.TaskSpec, code int) *failure {
	if a.oomKills > 0 {
		limit, peak := spec.GetDemand().GetMemory(), a.usage.GetMemoryPeak()
		return &failure{cause: droverv1.Cause_CAUSE_MEMORY, exitCode: int32(code), message: fmt.Sprintf(
			"killed over its memory limit: memory = %q of stage %q allows %s (with the harness %s), the peak was %s; set memory = %q",
			jobspec.FormatSize(limit), spec.GetStageName(), jobspec.FormatSize(limit), jobspec.FormatSize(limit+a.d.cfg.Info.GetTaskOverheadMemory()),
			jobspec.FormatSize(peak), jobspec.FormatSize(roundUp(max(limit, peak)+limit/2)))}
	}
	return nil
}

// roundUp rounds up to a multiple of 16 MiB.
func roundUp(b int64) int64 {
	const unit = 16 << 20
	return (b + unit - 1) / unit * unit
}

// finalFailure returns the failure to record at the step RecordEnd; nil means
// success.
func (a *attempt) finalFailure(wanted *droverv1.WantedAttempt, spec *droverv1.TaskSpec) *failure {
	switch {
	case a.failure != nil:
		return a.failure
	case a.timedOut:
		limit := time.Duration(spec.GetTimeLimitMs()) * time.Millisecond
		return &failure{cause: droverv1.Cause_CAUSE_TIME, exitCode: int32(a.status.ExitCode), message: fmt.Sprintf(
			"ended after its time limit: time_limit = %q of stage %q; raise it, or give each task less to do", limit, spec.GetStageName())}
	case goalOf(wanted) != task.GoalRun:
		return &failure{cause: droverv1.Cause_CAUSE_STOPPED, message: "stopped by request"}
	case a.container == task.ContainerNone && a.rec.Started:
		return &failure{cause: droverv1.Cause_CAUSE_INFRA, message: "its container is gone: the machine was rebooted, or the container was removed by hand"}
	case a.exitOK && (spec.GetOutput() == "" || a.upload.work == task.WorkDone):
		return nil
	case a.upload.work == task.WorkFailed:
		return a.upload.failure
	default:
		return &failure{cause: droverv1.Cause_CAUSE_INFRA, message: "the node lost track of the attempt: " + a.currentStep.String()}
	}
}

// recordEnd stores the end. From then on the record alone tells how the attempt
// ended.
func (a *attempt) recordEnd(f *failure) error {
	a.readCgroupUsage() // for the last time: the cgroup goes with the container
	end := a.buildReport()
	now := a.d.clock
	end.EndedMs, end.Step, end.Occupied = now.Now().UnixMilli(), "", nil
	if f == nil {
		end.Phase, end.Progress = droverv1.Phase_PHASE_SUCCEEDED, 1
		if a.output != nil {
			end.OutputLength, end.OutputChecksum = a.output.Bytes, fmt.Sprintf("crc32c:%08x", a.output.CRC32C)
		}
	} else {
		end.Phase, end.Cause, end.ExitCode, end.Message = droverv1.Phase_PHASE_FAILED, f.cause, f.exitCode, oneLine(joinTexts(f.message, end.GetMessage()))
		if f.exitCode == 0 && a.container == task.ContainerStopped {
			end.ExitCode = int32(a.status.ExitCode)
		}
		end.StderrTail = a.dir.tail("stderr", stderrTailBytes)
	}
	end = boundReport(end)
	rec := a.rec
	b, err := proto.Marshal(end)
	if err != nil {
		return err
	}
	rec.End, rec.Epoch = b, a.d.epoch()
	if err := a.d.store.PutRecord(a.id, rec); err != nil {
		return err
	}
	a.rec, a.recorded, a.outcome = rec, true, &outcome{end}
	a.suspension.staleDump = pathExists(a.d.dumpsDir(a.id))
	a.d.metrics.observeEnd(end)
	return nil
}

// joinTexts joins two sentences, of which either may be empty. It cuts the first
// so that the second stays below the coordinator's limit of 1 KiB.
func joinTexts(a, b string) string {
	const most = 700
	if a == "" || b == "" {
		return a + b
	}
	if len(a) > most {
		a = strings.ToValidUTF8(a[:most], "") + " …"
	}
	return a + "; " + b
}

// oneLine converts a message to one line of valid UTF-8 of bounded length.
func oneLine(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.Join(strings.Fields(s), " ")
	const most = 2000
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + " …"
	}
	return s
}
