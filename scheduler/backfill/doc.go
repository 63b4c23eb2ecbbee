// Package backfill plans work ahead of time: a reservation profile that says
// what is free on each node (or in a pool of totals) at every instant to come,
// and the two-tier backfilling algorithms on top of it (Two-tier Project and
// Job Scheduling for Cloud Computing Environments, sections 4.2 to 4.6,
// Alg. 1-3): 2TSB, 2TFB, 2TFB-SF and 2TPB.
//
// Profile is the data structure. It is the paper's list of Table 5 and Fig. 7
// kept as a B+tree over time with the minimum and maximum of every resource in
// each page, so that adding a reservation costs O(log n) and the earliest hole
// is found in O(log n) for each alternation between room and no room before
// it. It knows nothing of projects: 3dsf keeps accepted deadlines and projects
// in one of them.
//
// Planner keeps projects of jobs in a Profile: it promises a departure time at
// submission, gives holes forward when a job ends early, and says which promise
// breaks, and why, when a job overruns its bound or a node is lost.
//
// Nothing here reads a clock or decides for a State: package policies does.
// Who uses a Planner
//
//  1. makes a Profile and adds its bins, then the Planner;
//  2. calls Submit for each project (or Quote, which only asks), Start when a
//     planned instant has come, End, Overrun and Lose as they happen;
//  3. reads from Changed which items moved.
//
// With one job a project and one resource 2TSB is conservative backfilling.
package backfill
