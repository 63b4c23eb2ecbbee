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
	GoalStop                 // end it, with its grace period; keep its logs
	GoalKeep                 // it has ended: keep its outputs and logs
	GoalGone                 // remove everything of it
)

// String names the goal.
func (g Goal) String() string { return nameIn(goalNames, int(g), "goal") }

var goalNames = []string{"run", "stop", "keep", "gone"}

// Level is how much of the node's resources an attempt occupies while its goal
// is GoalRun. The numbers are those of the protocol.
type Level int

// The levels, from the one that occupies most.
const (
	LevelRunning      Level = iota + 1
	LevelFrozen             // its processes are frozen
	LevelSwapped            // frozen, and its memory is in swap
	LevelCheckpointed       // a dump on the disk, without a container
)

// String names the level.
func (l Level) String() string { return nameIn(levelNames, int(l), "level") }

var levelNames = []string{"running", "frozen", "swapped", "checkpointed"}

// Levels is a set of levels.
type Levels uint8

// With returns the set with l added.
func (s Levels) With(l Level) Levels { return s | 1<<l }

// Has reports whether l is in the set.
func (s Levels) Has(l Level) bool { return s&(1<<l) != 0 }

// ReachableLevel returns the level that the attempt can be brought to: the
// deepest one down to want that is not refused, or running.
func ReachableLevel(want Level, refused Levels) Level {
	for l := want; l > LevelRunning; l-- {
		if !refused.Has(l) {
			return l
		}
	}
	return LevelRunning
}

// Wanted is the goal, and the parts of the spec that change the path to it.
type Wanted struct {
	Goal         Goal
	Level        Level         // with GoalRun; 0 is LevelRunning
	Resume       bool          // it starts from a dump on another node
	StartBlocked bool          // it must not start or be thawed now; what exists may stay
	StartPause   time.Duration // until a first start is due; everything else is prepared meanwhile
	Fetch        bool          // a helper fetches its input
	Upload       bool          // a helper uploads its result
	TimeLimit    time.Duration // running time allowed; 0 = none
	Grace        time.Duration // between TERM and KILL; 0 = KILL at once
}

// Container is the engine's state of the attempt's container.
type Container int

// The states of a container.
const (
	ContainerNone    Container = iota + 1 // the engine does not have it
	ContainerCreated                      // made but not started
	ContainerRunning                      // its first process is alive
	ContainerStopped                      // its first process has exited
	ContainerUnknown                      // the engine cannot tell now
)

// String names the state.
func (c Container) String() string { return nameIn(containerNames, int(c), "container") }

var containerNames = []string{"none", "created", "running", "stopped", "unknown"}

// Work is the state of a helper.
type Work int

// The states of a helper.
const (
	WorkIdle   Work = iota + 1 // not started since the daemon started
	WorkBusy                   // working
	WorkDone                   // finished
	WorkFailed                 // given up
)

// String names the state.
func (w Work) String() string { return nameIn(workNames, int(w), "work") }

var workNames = []string{"idle", "busy", "done", "failed"}

// Seen is the observed state of the attempt.
type Seen struct {
	// Durable, from the node's store.
	Recorded bool // the store knows the attempt
	Started  bool // its container was started, or was about to be
	Ended    bool // its end is recorded
	Dumping  bool // a dump was begun and may have ended the container
	Dumped   bool // that dump is complete and was not restored according to the store

	// Observed. Folder and Cgroup mean that a start may continue. For an attempt that has ended, or
	// whose goal is GoalGone, they mean that something exists that must be removed, complete or
	// not.
	Folder    bool // its folder is complete, with its quota; or, to remove: it exists
	Image     bool // its image is in the engine, or it needs none
	Files     bool // its files and its spec are in the folder
	Cgroup    bool // its limits were written and read back since the daemon started; or, to remove: its cgroup exists
	Container Container
	Frozen    bool // its processes are frozen
	Unstored  bool // frozen, and the store does not have that yet
	Swapped   bool // frozen, and its memory was swapped out
	StaleDump bool // the disk holds a dump that the attempt no longer needs
	Scratch   bool // an ended attempt has files that are not needed besides outputs and logs

	// From memory; zero again after a restart.
	Fetch     Work
	Upload    Work
	ExitOK    bool          // the stopped container was classified as successful; the upload is left
	Failed    bool          // a step failed permanently, or the attempt exceeds a limit that the node checks
	TermSent  bool          // TERM was sent
	SinceTerm time.Duration // time since TERM was sent
	Running   time.Duration // unfrozen running time so far
	Refused   Levels        // levels that were tried and cannot be reached; LevelRunning: its dump cannot be restored here
}

// Do names a step.
type Do int

// The steps. All are safe to repeat. The order matters: package node treats
// MakeFolder to Start as the steps that prepare a start, and Freeze to FetchDump
// as the steps between levels.
const (
	Rest            Do = iota + 1 // the goal is reached; nothing to do until something changes
	Wait                          // something is under way; call Next when it changes, or after RecheckAfter
	MakeFolder                    // record the attempt, then make its folder with owner and quota
	GetImage                      // import the image into the engine
	MakeCgroup                    // make the cgroup, write the limits, read them back
	GetFiles                      // put the files and the spec into the folder
	StartFetch                    // start the helper that fetches the input
	CreateContainer               // create the container
	Start                         // record the start, then start the container
	Terminate                     // send TERM and remember when
	Kill                          // send KILL
	ClassifyExit                  // classify the exit of the stopped container: set ExitOK or record its end
	StartUpload                   // start the helper that uploads the result
	RecordEnd                     // record how the attempt ended
	StopHelpers                   // stop the helpers and wait for them
	DeleteContainer               // remove the container
	Trim                          // remove what an ended attempt does not need
	RemoveFolder                  // remove the folder, then the cgroup that was charged for its files
	DeleteRecord                  // remove the record; the attempt is gone
	Freeze                        // freeze its processes
	Thaw                          // write the limits of a running task, read them back, thaw it
	SwapOut                       // swap out the memory of a frozen attempt
	Checkpoint                    // dump it to the disk, which ends its processes
	Restore                       // make its container from the dump, under its limits
	FetchDump                     // fetch dump and folder from another node
	RemoveDumps                   // remove dumps that are not needed any more
	RemoveCgroup                  // remove the cgroup of an ended attempt; its counters are in the record
	RemoveDumped                  // remove the container that a complete dump has ended
)

// String names the step.
func (d Do) String() string { return nameIn(doNames, int(d), "step") }

var doNames = []string{
	"rest", "wait", "make folder", "get image", "make cgroup", "get files", "start fetch",
	"create container", "start", "terminate", "kill", "classify exit", "start upload", "record end",
	"stop helpers", "delete container", "trim", "remove folder", "delete record",
	"freeze", "thaw", "swap out", "checkpoint", "restore", "fetch dump", "remove dumps", "remove cgroup", "remove dumped",
}

// Step is what to do next.
type Step struct {
	Do           Do
	RecheckAfter time.Duration // with Wait: call Next after this time at the latest; 0 = only on a change
}

func nameIn(names []string, v int, set string) string {
	if v < 1 || v > len(names) {
		return fmt.Sprintf("%s(%d)", set, v)
	}
	return names[v-1]
}

// engineRecheck is how soon to query an engine again that could not answer.
const engineRecheck = time.Second

// Next returns the one step from seen towards wanted. It panics on a goal or a
// container state outside their sets. O(1).
func Next(w Wanted, s Seen) Step {
	switch w.Goal {
	case GoalGone:
		return nextRemoval(s)
	case GoalRun, GoalStop, GoalKeep:
	default:
		panic("task: unknown " + w.Goal.String())
	}
	switch {
	case s.Ended:
		return nextCleanup(s)
	case w.Goal != GoalRun || s.Failed || isOverTime(w, s):
		return nextToEnd(w, s)
	case s.Container == ContainerUnknown && s.Started && w.StartBlocked && w.Level >= LevelFrozen && !s.Frozen && !s.Dumping && !s.Refused.Has(LevelFrozen):
		// Freezing uses only the cgroup and needs no engine, while another attempt may start
		// elsewhere. An attempt that is being dumped is frozen already and held by criu: another
		// freeze would stop criu's own code in it, and nothing would thaw it.
		return Step{Do: Freeze}
	case s.Container == ContainerUnknown:
		return Step{Do: Wait, RecheckAfter: engineRecheck}
	case s.Container == ContainerStopped && s.Dumped:
		return Step{Do: RemoveDumped}
	case s.Container == ContainerStopped && s.Dumping:
		return Step{Do: Checkpoint} // it was ended by the dump: finish that
	case s.Container == ContainerStopped:
		return nextAfterExit(w, s)
	case s.Dumped && (s.Container == ContainerNone || s.Container == ContainerCreated):
		return nextToRestore(w, s) // never Start: that would lose the dump's work
	case s.Container == ContainerNone && s.Dumping:
		return Step{Do: Checkpoint}
	case s.Started && s.Container == ContainerNone:
		return Step{Do: RecordEnd} // the container vanished: a reboot, or it was removed by hand
	default:
		return nextToRunning(w, s)
	}
}

func isOverTime(w Wanted, s Seen) bool { return w.TimeLimit > 0 && s.Running >= w.TimeLimit }

// nextToRunning returns the next step towards a running container.
func nextToRunning(w Wanted, s Seen) Step {
	switch {
	case w.Resume && !s.Started && s.Refused.Has(LevelRunning):
		return Step{Do: Wait} // for the coordinator, which may choose another node
	case !s.Recorded || !s.Folder:
		return Step{Do: MakeFolder}
	case s.Container == ContainerRunning:
		return nextToLevel(w, s)
	case w.Resume && !s.Started:
		if w.Level > LevelRunning || w.StartBlocked {
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
	case s.Container == ContainerCreated && w.StartBlocked:
		return Step{Do: Wait}
	case s.Container == ContainerCreated && w.StartPause > 0:
		return Step{Do: Wait, RecheckAfter: w.StartPause}
	case s.Container == ContainerCreated:
		return Step{Do: Start}
	default:
		panic("task: unknown " + s.Container.String())
	}
}

// nextToLevel returns the next step of a live container towards the wanted level. It freezes first,
// since that frees the processor, and then stops the helpers of the attempt. An attempt at a deeper
// level than wanted stays there, unless it must run.
func nextToLevel(w Wanted, s Seen) Step {
	to := ReachableLevel(max(w.Level, LevelRunning), s.Refused)
	switch {
	case to == LevelRunning && s.Frozen:
		return Step{Do: Thaw}
	case to == LevelRunning && s.StaleDump:
		return Step{Do: RemoveDumps}
	case to == LevelRunning && w.Fetch && s.Fetch == WorkIdle:
		return Step{Do: StartFetch} // the daemon was restarted during the fetch
	case to == LevelRunning && w.TimeLimit > 0:
		return Step{Do: Wait, RecheckAfter: w.TimeLimit - s.Running}
	case to == LevelRunning:
		return Step{Do: Wait}
	case !s.Frozen || s.Unstored:
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

// nextToRestore restores a dumped attempt if it must run.
func nextToRestore(w Wanted, s Seen) Step {
	switch {
	case w.Level > LevelRunning || w.StartBlocked || s.Refused.Has(LevelRunning):
		return Step{Do: Wait}
	case !s.Image:
		return Step{Do: GetImage}
	default:
		return Step{Do: Restore}
	}
}

// nextAfterExit classifies, uploads and records a stopped container.
func nextAfterExit(w Wanted, s Seen) Step {
	switch {
	case !s.ExitOK:
		return Step{Do: ClassifyExit}
	case !w.Upload:
		return Step{Do: RecordEnd}
	case s.Upload == WorkIdle:
		return Step{Do: StartUpload}
	case s.Upload == WorkBusy:
		return Step{Do: Wait}
	default: // done or failed: RecordEnd distinguishes them
		return Step{Do: RecordEnd}
	}
}

// nextToEnd ends an attempt early: on request, over a limit, or because a step
// failed permanently.
func nextToEnd(w Wanted, s Seen) Step {
	switch s.Container {
	case ContainerNone, ContainerCreated, ContainerStopped:
		if s.Fetch == WorkBusy || s.Upload == WorkBusy {
			return Step{Do: StopHelpers}
		}
		return Step{Do: RecordEnd}
	case ContainerUnknown:
		return Step{Do: Wait, RecheckAfter: engineRecheck}
	case ContainerRunning:
	default:
		panic("task: unknown " + s.Container.String())
	}
	switch {
	case s.Frozen: // a frozen process does not receive TERM
		return Step{Do: Kill}
	case !s.TermSent:
		return Step{Do: Terminate}
	case s.SinceTerm < w.Grace:
		return Step{Do: Wait, RecheckAfter: w.Grace - s.SinceTerm}
	default:
		return Step{Do: Kill}
	}
}

// nextCleanup removes what an ended attempt does not need.
func nextCleanup(s Seen) Step {
	switch {
	case s.Fetch == WorkBusy || s.Upload == WorkBusy:
		return Step{Do: StopHelpers}
	case s.Container == ContainerUnknown:
		return Step{Do: Wait, RecheckAfter: engineRecheck}
	case s.Container != ContainerNone:
		return Step{Do: DeleteContainer}
	case s.Cgroup: // the kernel has 65,535 memory cgroups, and a node keeps more ended attempts
		return Step{Do: RemoveCgroup}
	case s.StaleDump:
		return Step{Do: RemoveDumps}
	case s.Folder && s.Scratch:
		return Step{Do: Trim}
	default:
		return Step{Do: Rest}
	}
}

// nextRemoval removes everything. The record goes last: while it exists, a
// restarted daemon knows that something may be left.
func nextRemoval(s Seen) Step {
	switch {
	case s.Fetch == WorkBusy || s.Upload == WorkBusy:
		return Step{Do: StopHelpers}
	case s.Container == ContainerUnknown:
		return Step{Do: Wait, RecheckAfter: engineRecheck}
	case s.Container != ContainerNone:
		return Step{Do: DeleteContainer}
	case s.Folder || s.Cgroup || s.StaleDump:
		return Step{Do: RemoveFolder}
	case s.Recorded:
		return Step{Do: DeleteRecord}
	default:
		return Step{Do: Rest}
	}
}
