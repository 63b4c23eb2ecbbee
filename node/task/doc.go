// Package task is the state machine of one attempt on a node. Next looks at
// what is wanted of the attempt and at what is seen of it, and names the one
// step that brings the world nearer to the goal. It does nothing itself: the
// node daemon (package node) carries the step out, looks again, and asks again.
//
// # Duties of the daemon
//
//  1. Fill Seen from the world, not from memory of what was done: after a
//     restart the fields come from the record in the node's store, from the
//     container engine and from the file system; what only memory knew (a busy
//     helper, a signal that was sent) is zero again.
//  2. Carry out exactly the step that Next gave; every step is safe to repeat,
//     also when a crash hid its effect.
//  3. Write down before acting: MakeFolder records the attempt before it makes
//     anything, Start records the start before it starts the container, and
//     End records the verdict before anything that proves it goes away.
//  4. When a step fails for good, say so with Seen.Fault; when it may pass,
//     repeat it after a pause, within a limit.
//  5. Call Next again after every step, whenever a wanted or seen value
//     changes, and after Step.Again.
//
// # What it is not
//
// It has no clock, no goroutine, no logger and no I/O; times come as values. It
// knows nothing of other attempts, of engines or of the protocol. A repeated
// Next reaches Rest from any wanted and any seen state; the property test in
// this package holds that, with crashes between any two steps.
package task
