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

// The kinds of a task, as the specification names them.
const (
	kindMap    = string(jobspec.KindMap)
	kindReduce = string(jobspec.KindReduce)
	kindGroup  = string(jobspec.KindGroup)
)

// tailBytes is how much of standard error travels with a failure.
const tailBytes = 4 << 10

// verdict is why an attempt failed.
type verdict struct {
	cause   droverv1.Cause
	message string // one line for the user: the thing, the place, the cure
	exit    int32
}

// outcome is a recorded end.
type outcome struct{ end *droverv1.SeenAttempt }

// succeeded of a nil outcome is false.
func (o *outcome) succeeded() bool {
	return o != nil && o.end.GetPhase() == droverv1.Phase_PHASE_SUCCEEDED
}

// causeOf says whose failure an error of a step is. The infrastructure's do
// not count towards the attempts.
func causeOf(err error) droverv1.Cause {
	switch {
	case errors.Is(err, fault.Invalid), errors.Is(err, fault.NotFound), errors.Is(err, fault.Denied), errors.Is(err, fault.Unsupported):
		return droverv1.Cause_CAUSE_SPEC
	default:
		return droverv1.Cause_CAUSE_INFRA
	}
}

// permanent tells whether repeating the step cannot help.
func permanent(err error) bool { return causeOf(err) == droverv1.Cause_CAUSE_SPEC }

// judgeExit reads how the container of a plain command ended; nil means that
// it did its work.
func (a *attempt) judgeExit(spec *droverv1.TaskSpec) *verdict {
	code := a.status.ExitCode
	if code == 0 {
		return nil
	}
	if v := a.killed(spec, code); v != nil {
		return v
	}
	v := &verdict{cause: droverv1.Cause_CAUSE_EXIT, exit: int32(code), message: fmt.Sprintf("the command ended with exit code %d", code)}
	switch {
	case code == 127 && len(spec.GetCommand()) > 0:
		v.message += fmt.Sprintf(": a command was not found; %q must be in the image or among the files of stage %q", spec.GetCommand()[0], spec.GetStageName())
	case code == 126 && len(spec.GetCommand()) > 0:
		v.message += fmt.Sprintf(": %q is there but cannot be executed; check its mode and its first line", spec.GetCommand()[0])
	case code > 128 && code <= 128+64:
		v.message += fmt.Sprintf(" (killed by signal %d)", code-128)
	}
	return v
}

// killed explains an end that a limit brought about, or nil.
func (a *attempt) killed(spec *droverv1.TaskSpec, code int) *verdict {
	if a.oomKills > 0 {
		limit, peak := spec.GetDemand().GetMemory(), a.usage.GetMemoryPeak()
		return &verdict{cause: droverv1.Cause_CAUSE_MEMORY, exit: int32(code), message: fmt.Sprintf(
			"killed over its memory limit: memory = %q of stage %q allows %s (with the harness %s), the peak was %s; set memory = %q",
			jobspec.FormatSize(limit), spec.GetStageName(), jobspec.FormatSize(limit), jobspec.FormatSize(limit+a.d.cfg.Info.GetTaskOverheadMemory()),
			jobspec.FormatSize(peak), jobspec.FormatSize(roundUp(max(limit, peak)+limit/2)))}
	}
	return nil
}

// roundUp gives the next multiple of 16 MiB.
func roundUp(b int64) int64 {
	const unit = 16 << 20
	return (b + unit - 1) / unit * unit
}

// finalVerdict is the verdict at the step End; nil is success.
func (a *attempt) finalVerdict(wanted *droverv1.WantedAttempt, spec *droverv1.TaskSpec) *verdict {
	switch {
	case a.fault != nil:
		return a.fault
	case a.over:
		limit := time.Duration(spec.GetTimeLimitMs()) * time.Millisecond
		return &verdict{cause: droverv1.Cause_CAUSE_TIME, exit: int32(a.status.ExitCode), message: fmt.Sprintf(
			"ended after its time limit: time_limit = %q of stage %q; raise it, or give each task less to do", limit, spec.GetStageName())}
	case goalOf(wanted) != task.GoalRun:
		return &verdict{cause: droverv1.Cause_CAUSE_STOPPED, message: "stopped as asked"}
	case a.container == task.ContainerNone && a.rec.Started:
		return &verdict{cause: droverv1.Cause_CAUSE_INFRA, message: "its container is gone: the machine was started again, or somebody removed it"}
	case a.passed && (spec.GetOutput() == "" || a.upload.work == task.WorkDone):
		return nil
	case a.upload.work == task.WorkFailed:
		return a.upload.verdict
	default:
		return &verdict{cause: droverv1.Cause_CAUSE_INFRA, message: "the node lost track of the attempt: " + a.doing.String()}
	}
}

// record makes the end durable. After it nothing of the attempt is needed any
// more to tell how it ended.
func (a *attempt) record(v *verdict) error {
	end := a.report()
	now := a.d.clock
	end.EndedMs, end.Step, end.Held = now.Now().UnixMilli(), "", nil
	if v == nil {
		end.Phase, end.Progress = droverv1.Phase_PHASE_SUCCEEDED, 1
		if a.product != nil {
			end.OutputLength, end.OutputChecksum = a.product.Bytes, fmt.Sprintf("crc32c:%08x", a.product.CRC32C)
		}
	} else {
		end.Phase, end.Cause, end.ExitCode, end.Message = droverv1.Phase_PHASE_FAILED, v.cause, v.exit, oneLine(v.message)
		if v.exit == 0 && a.container == task.ContainerStopped {
			end.ExitCode = int32(a.status.ExitCode)
		}
		end.StderrTail = a.dir.tail("stderr", tailBytes)
	}
	rec := a.rec
	b, err := proto.Marshal(end)
	if err != nil {
		return err
	}
	rec.End, rec.Epoch = b, a.d.epoch()
	if err := a.d.store.PutRecord(a.id, rec); err != nil {
		return err
	}
	a.rec, a.recorded, a.result = rec, true, &outcome{end}
	a.sus.oldDump = there(a.d.dumpsOf(a.id))
	a.d.metrics.ended(end)
	return nil
}

// oneLine makes a message fit one line of valid text.
func oneLine(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.Join(strings.Fields(s), " ")
	const most = 2000
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + " …"
	}
	return s
}
