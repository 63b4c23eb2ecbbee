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

// Level is how much of its node an attempt holds while its goal is GoalRun. The
// numbers are those of the protocol.
type Level int

// The levels, from the one that holds most.
const (
	LevelRunning      Level = iota + 1
	LevelFrozen             // its processes stand still
	LevelSwapped            // and their memory is in swap
	LevelCheckpointed       // it is an image on the disk, without a container
)

// String names the level.
func (l Level) String() string { return word(levelNames, int(l), "level") }

var levelNames = []string{"running", "frozen", "swapped", "checkpointed"}

// Levels is a set of levels.
type Levels uint8

// With adds a level.
func (s Levels) With(l Level) Levels { return s | 1<<l }

// Has tells whether a level is in the set.
func (s Levels) Has(l Level) bool { return s&(1<<l) != 0 }

// Reach gives the level that an attempt is brought to: the deepest one down to
// want that is not barred; running where none is.
func Reach(want Level, barred Levels) Level {
	for l := want; l > LevelRunning; l-- {
		if !barred.Has(l) {
			return l
		}
	}
	return LevelRunning
}

// Wanted is the goal and those facts of the spec that change the path to it.
type Wanted struct {
	Goal      Goal
	Level     Level         // with GoalRun; 0 is LevelRunning
	Resume    bool          // it begins with a dump that another node holds
	Hold      bool          // it shall not begin or go on now, though what is there may stay
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
	Dumping  bool // a dump was begun, and may have ended the container
	Dumped   bool // that dump is whole, and was not restored yet as far as the store knows

	// From the world.
	Folder    bool // its folder is there, with its quota
	Image     bool // its image is in the engine, or it needs none
	Files     bool // its files and its spec are in the folder
	Cgroup    bool // its cgroup is there and the limits were read back
	Container Container
	Frozen    bool // its processes stand still
	Swapped   bool // and their memory was pushed out
	OldDump   bool // the disk holds a dump that a running container has left behind
	Scratch   bool // besides outputs and logs there are files that an ended attempt does not need

	// From memory; zero again after a restart.
	Fetch     Work
	Upload    Work
	Passed    bool          // the stopped container was judged and did its work; the upload is left
	Fault     bool          // a step failed for good, or the attempt is over a limit that the node watches
	Terminate bool          // TERM was sent
	SinceTerm time.Duration // since then
	Running   time.Duration // thawed running time so far
	Barred    Levels        // levels that were tried and cannot be reached; LevelRunning: its dump cannot be restored here
}

// Do names a step.
type Do int

// The steps. All are safe to repeat.
const (
	Rest            Do = iota + 1 // the goal is reached; nothing to do until something changes
	Wait                          // something is under way; look again when it changes, or after Again
	MakeFolder                    // record the attempt, then make its folder with owner and quota
	GetImage                      // bring the image into the engine
	MakeCgroup                    // make the cgroup, write the limits, read them back
	GetFiles                      // put files and spec into the folder
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
	Freeze                        // have its processes stand still
	Thaw                          // put the limits of a running task in force, read them back, let it go on
	SwapOut                       // push the memory of a frozen one to swap
	Checkpoint                    // dump it to the disk, which ends its container
	Restore                       // make its container from the dump, under its limits
	FetchDump                     // bring dump and folder from the node that holds them
	DropDump                      // remove a dump that is not needed any more
)

// String names the step.
func (d Do) String() string { return word(doNames, int(d), "step") }

var doNames = []string{
	"rest", "wait", "make folder", "get image", "make cgroup", "get files", "start fetch",
	"create container", "start", "terminate", "kill", "judge", "start upload", "end",
	"stop helpers", "delete container", "trim", "remove folder", "forget",
	"freeze", "thaw", "swap out", "checkpoint", "restore", "fetch dump", "drop dump",
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
	case s.Container == ContainerStopped && s.Dumping:
		return Step{Do: Checkpoint} // it was ended for the dump: finish that
	case s.Container == ContainerStopped:
		return settle(w, s)
	case s.Dumped && (s.Container == ContainerNone || s.Container == ContainerCreated):
		return wake(w, s) // never Start: that would begin its work anew
	case s.Container == ContainerNone && s.Dumping:
		return Step{Do: Checkpoint}
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
		return atLevel(w, s)
	case w.Resume && !s.Started:
		if s.Barred.Has(LevelRunning) || w.Level > LevelRunning || w.Hold {
			return Step{Do: Wait}
		}
		return Step{Do: FetchDump}
	case !s.Image:
		return Step{Do: GetImage}
	case !s.Cgroup: // before the files, which are charged to it
		return Step{Do: MakeCgroup}
	case !s.Files:
		return Step{Do: GetFiles}
	case w.Fetch && s.Fetch == WorkIdle:
		return Step{Do: StartFetch}
	case s.Container == ContainerNone:
		return Step{Do: CreateContainer}
	case s.Container == ContainerCreated && w.Hold:
		return Step{Do: Wait}
	case s.Container == ContainerCreated:
		return Step{Do: Start}
	default:
		panic("task: unknown " + s.Container.String())
	}
}

// atLevel brings a live container to the level that is wanted of it. Freezing
// comes first, since it is what frees the processor; then our helpers end, which
// work for it. What is deeper than wanted stays as it is, unless it shall run.
func atLevel(w Wanted, s Seen) Step {
	to := Reach(max(w.Level, LevelRunning), s.Barred)
	switch {
	case to == LevelRunning && s.Frozen:
		return Step{Do: Thaw}
	case to == LevelRunning && s.OldDump:
		return Step{Do: DropDump}
	case to == LevelRunning && w.Fetch && s.Fetch == WorkIdle:
		return Step{Do: StartFetch} // the daemon was started again in the middle
	case to == LevelRunning && w.TimeLimit > 0:
		return Step{Do: Wait, Again: w.TimeLimit - s.Running}
	case to == LevelRunning:
		return Step{Do: Wait}
	case !s.Frozen:
		return Step{Do: Freeze}
	case s.Fetch == WorkBusy || s.Upload == WorkBusy:
		return Step{Do: StopHelpers}
	case to == LevelSwapped && !s.Swapped:
		return Step{Do: SwapOut}
	case to == LevelCheckpointed:
		return Step{Do: Checkpoint}
	default:
		return Step{Do: Wait}
	}
}

// wake brings an attempt that is a dump back, if it shall run.
func wake(w Wanted, s Seen) Step {
	switch {
	case w.Level > LevelRunning || w.Hold || s.Barred.Has(LevelRunning):
		return Step{Do: Wait}
	case !s.Image:
		return Step{Do: GetImage}
	default:
		return Step{Do: Restore}
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
	case s.Frozen: // it hears no TERM
		return Step{Do: Kill}
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
	case s.OldDump:
		return Step{Do: DropDump}
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
	case s.Folder || s.Cgroup || s.OldDump:
		return Step{Do: RemoveFolder}
	case s.Recorded:
		return Step{Do: Forget}
	default:
		return Step{Do: Rest}
	}
}
