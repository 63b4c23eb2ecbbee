// Package backfill plans reservations ahead of time. It holds a reservation profile,
// which records the free capacity of each bin (a node, or a pool of totals) at every
// future time, and the two-tier backfilling algorithms on top of it: 2TSB, 2TFB,
// 2TFB-SF and 2TPB (Two-tier Project and Job Scheduling for Cloud Computing
// Environments, sections 4.2 to 4.6, Alg. 1-3).
//
// Profile is the data structure: the paper's list of Table 5 and Fig. 7, kept as a
// B+tree over time with the minimum and maximum of every resource in each page. Adding
// a reservation costs O(log n); finding the earliest hole costs O(log n) for each
// change between fitting and not fitting before it. A Profile knows nothing of
// projects; policy 3dsf keeps accepted deadlines and projects in one.
//
// Planner plans projects of jobs in a Profile. It guarantees a departure time at
// submission, compresses the schedule when a job ends early, and reports which
// guarantees are violated, and why, when a job overruns its bound or a node is lost.
//
// The package reads no clock and does not decide for a State. The planning policies
// (two_tier in package policies, and package threedsf) do that. A caller
//
//  1. makes a Profile, adds its bins, and makes a Planner on it;
//  2. plans projects with Submit, or rebuilds a plan from a State with Restore and CompletePlan;
//  3. reports what happened: Start, End, MarkFreed, LoseBin and DrainBin;
//  4. calls Compress after tasks ended early, and Replan or Repair when work is late or a bin is over capacity; both return the violated guarantees;
//  5. reads the tasks whose reservation changed from DrainChanged or ScanMoved.
//
// With one job per project and one resource, 2TSB is conservative backfilling.
package backfill
