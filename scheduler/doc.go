// Package scheduler is the vocabulary of scheduling: what a cluster looks like
// to a scheduler (State), what a scheduler may do (Action), how it says so
// (Decision), who decides (Policy), who judges (Check) and how a round goes
// (Cycle). It is pure: no clock, no global random source, no goroutine, no
// log, no file, no network. Time comes in as a value.
//
// It is not a scheduler: the policies are in package policies and in the
// packages beside it, each of one idea of a paper. It is not the truth about
// the cluster either: the coordinator's log is, or the simulator's world. A
// State is the projection of those facts at one index, kept up to date event
// by event and never copied for a cycle.
//
// The owner of a State (the coordinator's loop, a simulation, a test):
//
//  1. brings every fact in through one event method, in order: AddNode,
//     UpdateNode, NodeLost, NodeUp, SetDrain; PutTenant, PutProject;
//     SubmitJob, AddStage, CloseJob, UpdateJob, StopJob, EndJob; SetInput,
//     SetEstimate; AttemptStarted, AttemptProgress, AttemptSuspended,
//     AttemptResumed, AttemptEnded, OutputLost. Each refuses bad input with
//     an *Error and then changes nothing;
//  2. calls Cycle when Changes moved, or when the Wake of the last decision
//     has come;
//  3. carries the accepted actions out in the world and reports back as 1.
//
// All ids are the owner's. Every listing has a fixed order that depends on the
// facts alone, so that the same facts give the same decision, byte for byte.
//
// An attempt holds what it held until the world says that it does not: a
// suspended task's room is free when AttemptSuspended comes, a killed one's
// when AttemptEnded comes. Node.Releasing tells what is on its way.
package scheduler
