// Package scheduler is the vocabulary of scheduling: the cluster as a scheduler sees it (State), the steps a scheduler
// may take (Action), their result (Decision), the interface of all schedulers (Policy), the independent validation of a
// decision (Check) and one round of scheduling (Cycle). It is pure: no clock, no global random source, no goroutine, no
// log, no file, no network. Time comes in as a value.
//
// The package holds no scheduling policy: policies are in package policies and the packages beside it. A State is not
// the source of truth either: that is the coordinator's log or the simulated cluster. A State is the projection of those
// facts at one log index, updated event by event and never copied for a cycle.
//
// The owner of a State (the coordinator's loop, a simulation, a test):
//
//  1. applies every fact through one method of State.Events, in order: AddNode,
//     UpdateNode, NodeLost, NodeUp, SetDrain, SetWindows; PutTenant; PutProject,
//     DropProject; SubmitJob, UpdateJob, StopJob, EndJob;
//     SetInput, SetEstimate, SetAvoided; AttemptStarted, AttemptProgress, AttemptSuspended,
//     AttemptResumed, AttemptEnded, SetParked, SetRefusedLevels, SetTimes, OutputLost;
//     and State.ApplyFact and PolicyStates.Apply for decisions committed
//     elsewhere. Each returns an *Error for bad input and then changes nothing;
//  2. calls Cycle when Stamp has changed, or when the Wake time of the last
//     decision has come;
//  3. executes the accepted actions and reports their results as in step 1.
//
// All ids are the owner's. Every listing has a fixed order that depends on the facts alone, so that the same facts
// produce the same decision, byte for byte.
//
// An attempt occupies its resources until the owner reports that they are free: those of a suspended task with
// AttemptSuspended, those of a killed task with AttemptEnded. Node.Releasing is the sum of what will be freed that way.
package scheduler
