package node

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/runtime"
)

// taskExit is what is known of the end of a task's container. Its methods decide how the end
// counts; they read and change nothing else.
type taskExit struct {
	spec       *droverv1.TaskSpec
	code       int // exit code, as the engine saw it
	oomKills   OOMKills
	memoryPeak int64 // bytes
	overhead   int64 // bytes of memory that a task has on top of its demand
	hostPaths  bool  // the task had no container of its own
	shared     bool  // the container is shared: another task's processes can end its first process
	rebooted   bool  // the machine was rebooted since the start
}

// ofCommand classifies the exit of a plain command; nil means success.
func (e *taskExit) ofCommand() *failure {
	code, spec := e.code, e.spec
	if code == 0 {
		return nil
	}
	if f := e.memoryFailure(); f != nil {
		return f
	}
	if code == runtime.ExitLost {
		return e.unseenEnd()
	}
	f := &failure{cause: droverv1.Cause_CAUSE_EXIT, exitCode: int32(code), message: fmt.Sprintf("the command ended with exit code %d", code)}
	switch {
	case code == 127: // from a shell: if the command itself does not exist, it does not start and has no exit code
		f.message += fmt.Sprintf(": a program that it runs was not found (standard error names it); it must be in the image or among the files of stage %q", spec.GetStageName())
	case code == 126:
		f.message += ": a program that it runs is there but cannot be executed (standard error names it); check its mode and its first line"
	case code > 128 && code <= 128+64:
		f.message += fmt.Sprintf(" (killed by signal %d)", code-128)
	}
	return f
}

// A reboot of the machine says nothing about what the node can run.
const rebootedText = "the machine was rebooted while it ran"

// unseenEnd returns the failure of a container whose exit code is lost. The engine keeps containers
// across a reboot, without their processes. Apart from a reboot, no process of a task can cause
// that in a container of its own. In a shared one it can send the first process a queued signal
// that the Go runtime takes for a fault (SEGV).
func (e *taskExit) unseenEnd() *failure {
	if e.rebooted {
		return &failure{cause: droverv1.Cause_CAUSE_REBOOT, exitCode: runtime.ExitLost, message: rebootedText}
	}
	if e.shared {
		return &failure{cause: e.ownCause(), exitCode: runtime.ExitLost, message: "nobody saw how it ended: the first process of the container, which other tasks used too, was ended by a process of the task, or from outside"}
	}
	return &failure{cause: droverv1.Cause_CAUSE_INFRA, exitCode: runtime.ExitLost, message: "nobody saw how it ended: the shim of its container was killed, or containerd lost it; see their messages in the node's journal"}
}

// lostContainer returns the failure of an attempt whose container is gone. A container of the
// process driver ends with its daemon.
func (e *taskExit) lostContainer() *failure {
	switch {
	case e.rebooted:
		return &failure{cause: droverv1.Cause_CAUSE_REBOOT, message: rebootedText}
	case e.hostPaths:
		return &failure{cause: droverv1.Cause_CAUSE_REBOOT, message: "it was a process of a daemon that has ended, and ended with it"}
	default:
		return &failure{cause: droverv1.Cause_CAUSE_INFRA, message: "its container is gone: it was removed by hand, or containerd lost it"}
	}
}

// memoryFailure returns the failure of a task that the kernel has killed for want of memory, or
// nil.
func (e *taskExit) memoryFailure() *failure {
	limit, peak := e.spec.GetDemand().GetMemory(), e.memoryPeak
	switch {
	case e.oomKills.atLimit > 0:
		return &failure{cause: droverv1.Cause_CAUSE_MEMORY, exitCode: int32(e.code), message: fmt.Sprintf(
			"killed over its memory limit: memory = %q of stage %q allows %s (with the harness %s), the peak was %s; set memory = %q",
			jobspec.FormatSize(limit), e.spec.GetStageName(), jobspec.FormatSize(limit), jobspec.FormatSize(limit+e.overhead),
			jobspec.FormatSize(peak), jobspec.FormatSize(roundUp(max(limit, peak)+limit/2)))}
	case e.oomKills.outside > 0:
		return &failure{cause: droverv1.Cause_CAUSE_INFRA, exitCode: int32(e.code), message: fmt.Sprintf(
			"killed because the machine had no memory left; the task itself was within its limit of %s: something else on the node takes more than it leaves to tasks",
			jobspec.FormatSize(limit+e.overhead))}
	default:
		return nil
	}
}

// roundUp rounds up to a multiple of 16 MiB.
func roundUp(b int64) int64 {
	const unit = 16 << 20
	return (b + unit - 1) / unit * unit
}

// ofHarness classifies the exit of a harness that failed and left the result r.
func (e *taskExit) ofHarness(r *mapreduce.Result) *failure {
	if f := e.memoryFailure(); f != nil {
		return f
	}
	f := &failure{cause: e.causeOfClass(r.Class), message: r.Error, exitCode: int32(r.UserExit)}
	switch {
	case r.Class == mapreduce.ClassUserExit && (r.UserExit == 127 || r.Permanent):
		f.cause = droverv1.Cause_CAUSE_SPEC
	case r.Class == mapreduce.ClassUserData && r.Permanent:
		f.cause = droverv1.Cause_CAUSE_DATA
	}
	if f.message == "" {
		f.message = "the task failed: " + r.Class.String()
	}
	return f
}

// disagrees returns a failure if a result contradicts the exit code. The engine observed the exit
// code, and no process of the task can choose it; one of them has written the result, or ended the
// harness after it had.
func (e *taskExit) disagrees(r *mapreduce.Result) *failure {
	code := e.code
	if code == r.Class.ExitCode() || code == runtime.ExitLost {
		return nil
	}
	if f := e.memoryFailure(); f != nil {
		return f
	}
	return &failure{cause: e.ownCause(), exitCode: int32(code), message: fmt.Sprintf("the harness ended with code %d, but its result says %q: a process of the task has written it, or ended the harness", code, r.Class)}
}

// withoutResult classifies a harness's exit by its code alone.
func (e *taskExit) withoutResult(why error) *failure {
	code := e.code
	if v := e.memoryFailure(); v != nil {
		return v
	}
	class, known := mapreduce.ClassOfExitCode(code)
	switch {
	case code == runtime.ExitLost && errors.Is(why, fs.ErrNotExist):
		return e.unseenEnd()
	case code == 0 || !errors.Is(why, fs.ErrNotExist):
		return &failure{cause: droverv1.Cause_CAUSE_OUTPUT, exitCode: int32(code), message: fmt.Sprintf("the harness ended with code %d, but its result cannot be read: %v", code, why)}
	case known:
		return &failure{cause: e.causeOfClass(class), exitCode: int32(code), message: fmt.Sprintf("the harness ended with code %d (%s) and left no result", code, class)}
	case code == 128+int(syscall.SIGKILL) && !e.hostPaths && !e.shared: // the kernel delivers no KILL to a container's first process from inside; in a shared container the harness is another process
		return &failure{cause: droverv1.Cause_CAUSE_INFRA, exitCode: int32(code), message: "killed by signal 9 from outside its container"}
	case code > 128:
		return &failure{cause: e.ownCause(), exitCode: int32(code), message: fmt.Sprintf("the harness was ended by signal %d: a process of the task sent it", code-128)}
	default:
		return &failure{cause: e.ownCause(), exitCode: int32(code), message: fmt.Sprintf("the harness ended with code %d and left no result, as after a signal (QUIT) of a process of the task", code)}
	}
}

// ownCause returns the cause of a failure that the task's own processes can bring about, by a
// signal to the harness or a forged result. If it counted against the infrastructure, it would be
// retried without end and take nodes out of service. From outside, only a reboot ends a harness in
// the same ways.
func (e *taskExit) ownCause() droverv1.Cause {
	if e.rebooted {
		return droverv1.Cause_CAUSE_INFRA
	}
	return droverv1.Cause_CAUSE_EXIT
}

func (e *taskExit) causeOfClass(c mapreduce.ExitClass) droverv1.Cause {
	switch c {
	case mapreduce.ClassUserExit:
		return droverv1.Cause_CAUSE_EXIT
	case mapreduce.ClassUserData:
		return droverv1.Cause_CAUSE_OUTPUT
	case mapreduce.ClassQuota:
		return droverv1.Cause_CAUSE_DISK
	case mapreduce.ClassSpec:
		return droverv1.Cause_CAUSE_SPEC
	case mapreduce.ClassInput:
		return droverv1.Cause_CAUSE_INPUT
	case mapreduce.ClassIO, mapreduce.ClassKilled, mapreduce.ClassInternal:
		return e.ownCause()
	default:
		return e.ownCause()
	}
}
