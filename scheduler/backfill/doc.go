// Package backfill plans reservations ahead of time: the two-tier backfilling algorithms 2TSB,
// 2TFB, 2TFB-SF and 2TPB (Two-tier Project and Job Scheduling for Cloud Computing Environments,
// sections 4.2 to 4.6, Alg. 1-3) on a profile of future free capacity (package timeline).
//
// Planner plans projects of jobs in a Profile. It guarantees a departure time at
// submission, compresses the schedule when a job ends early, and reports which
// guarantees are violated, and why, when a job overruns its bound or a node is lost.
//
// The package reads no clock and does not decide for a State. The planning policies
// (two_tier in package policies, and package threedsf) do that. Such a policy plans on the
// profile of a State, which it must leave as it was:
//
//  1. Reset makes a planner without projects on the State's profile;
//  2. Restore tells it each project and what is reserved for its tasks, Withdraw what is
//     reserved for nobody, MarkFreed where capacity was released;
//  3. LoseBins, Repair and Replan plan again what cannot stay, and return the
//     violated guarantees; Compress moves work forward; CompletePlan places new work;
//  4. Close takes all of it out of the profile again;
//  5. Scan reads where the tasks are planned, for actions that change the reservations;
//  6. NextRound, Forget and Restore replace 1 and 2 in a later round, for the projects that
//     changed. The others are planned as if all had been restored anew.
//
// A simulation without a State makes a Profile of its own and reports what happens with
// Restore, CompletePlan, Start and End.
//
// With one job per project and one resource, 2TSB is conservative backfilling.
package backfill
