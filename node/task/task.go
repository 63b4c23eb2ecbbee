package task

import (
	"fmt"
	"time"
)

// Goal is what the coordinator wants of the attempt.
type Goal int

// The goals, in the order in which an attempt passes them.
const (
	GoalRun  Goal = iota + 1 // run it to its end
	GoalStop                 // end it, with its grace; keep its logs
	GoalKeep                 // it has ended: keep its outputs and logs
	GoalGone                 // nothing of it shall be left
)

// String names the goal.
func (g Goal) String() string { return word(goalNames, int(g), "goal") }

var goalNames = []string{"run", "stop", "keep", "gone"}

// Wanted is the goal and those facts of the spec that change the path to it.
type Wanted struct {
	Goal      Goal
	Fetch     bool          // a helper brings its input
	Upload    bool          // a helper takes its result to the output path
	TimeLimit time.Duration // running time allowed; 0 = none
	Grace     time.Duration // between TERM and KILL; 0 = KILL at once
}

// Container is what the engine says of the attempt's container.
type Container int

// The states of a container.
const (
	ContainerNone    Container = iota + 1 // the engine does not have it
	ContainerCreated                      // made, not started
	ContainerRunning                      // its first process lives
	ContainerStopped                      // its first process is gone
	ContainerUnknown                      // the engine cannot say now
)

// String names the state.
func (c Container) String() string { return word(containerNames, int(c), "container") }

var containerNames = []string{"none", "created", "running", "stopped", "unknown"}

// Work is the state of a helper.
type Work int

// The states of a helper.
const (
	WorkIdle   Work = iota + 1 // not started since the daemon runs
	WorkBusy                   // at work
	WorkDone                   // all of it is in place
	WorkFailed                 // gave up
)

// String names the state.
func (w Work) String() string { return word(workNames, int(w), "work") }

var workNames = []string{"idle", "busy", "done", "failed"}

// Seen is what is true of the attempt now.
type Seen struct {
	// Durable, from the node's store.
	Recorded bool // the store knows the attempt
	Started  bool // its container was started, or was about to be
	Ended    bool // a verdict is recorded

	// From the world.
	Folder    bool // its folder is there, with its quota
	Image     bool // its image is in the engine, or it needs none
	Files     bool // its files and its spec are in the folder
	Cgroup    bool // its cgroup is there and the limits were read back
	Container Container
	Scratch   bool // besides outputs and logs there are files that an ended attempt does not need

	// From memory; zero again after a restart.
	Fetch     Work
	Upload    Work
	Passed    bool          // the stopped container was judged and did its work; the upload is left
	Fault     bool          // a step failed for good, or the attempt is over a limit that the node watches
	Terminate bool          // TERM was sent
	SinceTerm time.Duration // since then
	Running   time.Duration // thawed running time so far
}

// Do names a step.
type Do int

// The steps. All are safe to repeat.
const (
	Rest            Do = iota + 1 // the goal is reached; nothing to do until something changes
	Wait                          // something is under way; look again when it changes, or after Again
	MakeFolder                    // record the attempt, then make its folder with owner and quota
	GetImage                      // bring the image into the engine
	GetFiles                      // put files and spec into the folder
	MakeCgroup                    // make the cgroup, write the limits, read them back
	StartFetch                    // start the helper that brings the input
	CreateContainer               // make the container
	Start                         // record the start, then start the container
	Terminate                     // send TERM, remember when
	Kill                          // send KILL
	Judge                         // read how the stopped container ended: Passed, or record its end
	StartUpload                   // start the helper that takes the result away
	End                           // record the verdict
	StopHelpers                   // end the helpers and wait for them
	DeleteContainer               // remove the container
	Trim                          // remove what an ended attempt does not need
	RemoveFolder                  // remove the folder, then the cgroup that was charged for its files
	Forget                        // remove the record; the attempt is gone
)

// String names the step.
func (d Do) String() string { return word(doNames, int(d), "step") }

var doNames = []string{
	"rest", "wait", "make folder", "get image", "get files", "make cgroup", "start fetch",
	"create container", "start", "terminate", "kill", "judge", "start upload", "end",
	"stop helpers", "delete container", "trim", "remove folder", "forget",
}

// Step is what to do next.
type Step struct {
	Do    Do
	Again time.Duration // with Wait: look again after this long at the latest; 0 = only on a change
}

func word(names []string, v int, set string) string {
	if v < 1 || v > len(names) {
		return fmt.Sprintf("%s(%d)", set, v)
	}
	return names[v-1]
}

// unknownAgain is how soon to ask an engine again that could not say.
const unknownAgain = time.Second

// Next gives the one step from seen towards wanted. It panics on a goal or a
// container state outside their sets. O(1).
func Next(w Wanted, s Seen) Step {
	switch w.Goal {
	case GoalGone:
		return remove(s)
	case GoalRun, GoalStop, GoalKeep:
	default:
		panic("task: unknown " + w.Goal.String())
	}
	switch {
	case s.Ended:
		return clean(s)
	case w.Goal != GoalRun || s.Fault || overTime(w, s):
		return finish(w, s)
	case s.Container == ContainerUnknown:
		return Step{Do: Wait, Again: unknownAgain}
	case s.Container == ContainerStopped:
		return settle(w, s)
	case s.Started && s.Container == ContainerNone:
		return Step{Do: End} // the container vanished: a restart of the machine, or somebody removed it
	default:
		return advance(w, s)
	}
}

func overTime(w Wanted, s Seen) bool { return w.TimeLimit > 0 && s.Running >= w.TimeLimit }

// advance goes from nothing to a running container.
func advance(w Wanted, s Seen) Step {
	switch {
	case !s.Recorded || !s.Folder:
		return Step{Do: MakeFolder}
	case s.Container == ContainerRunning:
		if w.Fetch && s.Fetch == WorkIdle {
			return Step{Do: StartFetch} // the daemon was started again in the middle
		}
		if w.TimeLimit > 0 {
			return Step{Do: Wait, Again: w.TimeLimit - s.Running}
		}
		return Step{Do: Wait}
	case !s.Image:
		return Step{Do: GetImage}
	case !s.Files:
		return Step{Do: GetFiles}
	case !s.Cgroup:
		return Step{Do: MakeCgroup}
	case w.Fetch && s.Fetch == WorkIdle:
		return Step{Do: StartFetch}
	case s.Container == ContainerNone:
		return Step{Do: CreateContainer}
	case s.Container == ContainerCreated:
		return Step{Do: Start}
	default:
		panic("task: unknown " + s.Container.String())
	}
}

// settle turns a stopped container into a verdict.
func settle(w Wanted, s Seen) Step {
	switch {
	case !s.Passed:
		return Step{Do: Judge}
	case !w.Upload:
		return Step{Do: End}
	case s.Upload == WorkIdle:
		return Step{Do: StartUpload}
	case s.Upload == WorkBusy:
		return Step{Do: Wait}
	default: // done or failed: the verdict says which
		return Step{Do: End}
	}
}

// finish ends an attempt before its time: asked for, over a limit, or because
// a step failed for good.
func finish(w Wanted, s Seen) Step {
	switch s.Container {
	case ContainerNone, ContainerCreated, ContainerStopped:
		if s.Fetch == WorkBusy || s.Upload == WorkBusy {
			return Step{Do: StopHelpers}
		}
		return Step{Do: End}
	case ContainerUnknown:
		return Step{Do: Wait, Again: unknownAgain}
	case ContainerRunning:
	default:
		panic("task: unknown " + s.Container.String())
	}
	switch {
	case !s.Terminate:
		return Step{Do: Terminate}
	case s.SinceTerm < w.Grace:
		return Step{Do: Wait, Again: w.Grace - s.SinceTerm}
	default:
		return Step{Do: Kill}
	}
}

// clean removes what an ended attempt does not need.
func clean(s Seen) Step {
	switch {
	case s.Fetch == WorkBusy || s.Upload == WorkBusy:
		return Step{Do: StopHelpers}
	case s.Container == ContainerUnknown:
		return Step{Do: Wait, Again: unknownAgain}
	case s.Container != ContainerNone:
		return Step{Do: DeleteContainer}
	case s.Folder && s.Scratch:
		return Step{Do: Trim}
	default:
		return Step{Do: Rest}
	}
}

// remove leaves nothing. The record goes last: while it is there, a restarted
// daemon knows that something may be left.
func remove(s Seen) Step {
	switch {
	case s.Fetch == WorkBusy || s.Upload == WorkBusy:
		return Step{Do: StopHelpers}
	case s.Container == ContainerUnknown:
		return Step{Do: Wait, Again: unknownAgain}
	case s.Container != ContainerNone:
		return Step{Do: DeleteContainer}
	case s.Folder || s.Cgroup:
		return Step{Do: RemoveFolder}
	case s.Recorded:
		return Step{Do: Forget}
	default:
		return Step{Do: Rest}
	}
}
