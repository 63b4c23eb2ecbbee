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
	"github.com/drover-run/drover/node/store"
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

// causeOf returns the cause that an error of a step counts as. Failures of the infrastructure do
// not count as failures of the task. What is missing among a node's folders, quotas and cgroups is
// infrastructure, since no spec requested it by name.
func causeOf(do task.Do, err error) droverv1.Cause {
	lacks := errors.Is(err, fault.NotFound) || errors.Is(err, fault.Unsupported)
	ofNode := do == task.MakeFolder || do == task.MakeCgroup || do == task.Start
	if errors.Is(err, fault.Invalid) || errors.Is(err, fault.Denied) || lacks && !ofNode {
		return droverv1.Cause_CAUSE_SPEC
	}
	return droverv1.Cause_CAUSE_INFRA
}

// exit returns what is known about the end of the attempt's container.
func (a *attempt) exit(spec *droverv1.TaskSpec) *taskExit {
	return &taskExit{
		spec: spec, code: a.container.status.ExitCode, oomKills: a.cgroup.oomKills, memoryPeak: a.cgroup.usage.GetMemoryPeak(),
		overhead: a.d.cfg.harnessMemory(spec), hostPaths: a.d.cfg.usesHostPaths(), shared: a.container.status.Shared,
		rebooted: a.rec.isOfEarlierBoot(),
	}
}

// finalFailure returns the failure to record at the step RecordEnd; nil means
// success.
func (a *attempt) finalFailure(wanted *droverv1.WantedAttempt, spec *droverv1.TaskSpec) *failure {
	switch {
	case a.failure != nil:
		return a.failure
	case a.timedOut:
		limit := time.Duration(spec.GetTimeLimitMs()) * time.Millisecond
		return &failure{cause: droverv1.Cause_CAUSE_TIME, exitCode: int32(a.container.status.ExitCode), message: fmt.Sprintf(
			"ended after its time limit: time_limit = %q of stage %q; raise it, or give each task less to do", limit, spec.GetStageName())}
	case goalOf(wanted) != task.GoalRun:
		return &failure{cause: droverv1.Cause_CAUSE_STOPPED, message: "stopped by request"}
	case a.container.phase == task.ContainerNone && a.rec.Started:
		return a.exit(spec).lostContainer()
	case a.exitOK && (spec.GetOutput() == "" || a.helpers.upload.work == task.WorkDone):
		return nil
	case a.helpers.upload.work == task.WorkFailed:
		return a.helpers.upload.failure
	default:
		return &failure{cause: droverv1.Cause_CAUSE_INFRA, message: "the node lost track of the attempt: " + a.currentStep.String()}
	}
}

// recordEnd stores the end. From then on the record alone decides how the attempt ended.
func (a *attempt) recordEnd(f *failure) error {
	a.cgroup.read() // for the last time: the cgroup is removed with the container
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
		if f.exitCode == 0 && a.container.phase == task.ContainerStopped {
			end.ExitCode = int32(a.container.status.ExitCode)
		}
		end.StderrTail = a.dir.tail("stderr", stderrTailBytes)
	}
	end = boundReport(end)
	b, err := proto.Marshal(end)
	if err != nil {
		return err
	}
	epoch := a.d.attempts.epoch()
	if err := a.rec.change(func(r *store.Record) { r.End, r.Epoch = b, epoch }); err != nil {
		return err
	}
	a.outcome = &outcome{end}
	a.suspension.staleDump = a.dumps.exists()
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
