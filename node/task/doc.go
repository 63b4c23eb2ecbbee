// Package task is the state machine of one attempt on a node. Next compares the
// wanted state with the observed state and returns the one step that leads
// towards the goal. It performs nothing itself: the node daemon (package node)
// performs the step, observes again, and calls Next again.
//
// # Duties of the daemon
//
//  1. Fill Seen by observation, not from the memory of earlier steps: after a
//     restart its fields come from the record in the node's store, from the
//     container engine and from the file system; fields that only memory holds
//     (a busy helper, a signal that was sent) are zero again.
//  2. Perform exactly the step that Next returned; every step is safe to repeat,
//     also when a crash hid its effect.
//  3. Record before acting: MakeFolder records the attempt before it makes
//     anything, Start records the start before it starts the container, and
//     RecordEnd records the end before anything that proves it is removed.
//  4. When a step fails permanently, set Seen.Failed; when it may succeed later,
//     repeat it after a pause, within a limit.
//  5. Call Next again after every step, whenever a wanted or observed value
//     changes, and after Step.RecheckAfter.
//
// # What it is not
//
// It has no clock, no goroutine, no logger and no I/O; times come as values. It
// knows nothing of other attempts, of engines or of the protocol. Repeated calls
// of Next reach Rest from every wanted and observed state; the property test of
// this package checks that, with crashes between any two steps.
package task
