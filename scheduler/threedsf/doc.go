// Package threedsf implements 3DSF (3DSF section 8, Alg. 6): one policy in which each job passes only the modules that
// it needs. Enhanced DRF (package drf) picks the tenant, DLAforBT (package locality) picks nodes near the input of map
// tasks, and accepted deadlines take precedence (package deadline). With modules switched off, the policy becomes one
// of the papers' single schedulers: drf or pdsonqueue.
//
// # A cycle
//
//  1. Decide: if nothing has changed since a cycle that decided nothing, return the same answer.
//  2. begin: synchronise the tree of tenants with what they use.
//  3. planGuarantees: read the plan of the guarantees from the State, repair and compress it, accept or refuse new
//     requests.
//  4. runPass, the lanes that ignore fair shares: guarantees that are due, other preemption reservations whose capacity
//     is free, tasks that were suspended for long, deadline jobs, other suspended tasks, a task of each overdue job.
//  5. runPass, serveTenants: serve the next tenant by fair share until nothing fits or the cycle has no actions left. A
//     task with much input gets a node that stores it, several tasks of one stage by matching; other tasks get the
//     fullest node that fits them.
//  6. A stage without a free node at its input is delayed until all others were served. Then each of its tasks waits,
//     exchanges nodes with a task that this decision placed (exchange.go), or goes to a remote node.
//  7. Repeat 4 to 6 while a pass changes something that another can use.
//  8. explain: give each stage that still waits a reason.
//
// The State is changed inside one transaction, which is rolled back at the end. What must survive a cycle is in policy
// states and reservations; everything else in Policy is a cache that can be rebuilt.
//
// # Parts
//
// Policy makes the parts and calls them in this order. A part owns what it changes, and knows only the parts that New
// gives it:
//
//   - view answers questions about the State; cycle is the decision in the making, by which all others change State and
//     decision;
//   - jobCache, guaranteeSurvey, planning and obsoleteReservations know and plan guarantees;
//   - preemptReservations, reservedNodes and guaranteeCheck say what is reserved, openNodes and nodeFinder which nodes
//     that leaves to a task;
//   - inputWaits, exchanger, placer and preemption place tasks and make place for them;
//   - reservedLane, suspendedLane, deadlineLane, overdueLane and tenantOrder (with queues and shares) are the lanes;
//   - explainer says why the rest waits.
package threedsf
