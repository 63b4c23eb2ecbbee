// Package drf picks the tenant whose turn it is: enhanced dominant resource
// fairness (3DSF section 5, Alg. 1) over three resources and a tree of weighted
// tenants, as a data structure of its own.
//
// A Tree holds for each tenant what its subtree has, and for tenants with work
// the demand of their next task. Tenants are compared by the dominant share
// that they would have with that task, divided by their weight, ties by the
// order in which they were added; present shares would miss the sharing
// incentive by up to three tasks. A tenant with children stands for its best
// child: its share is that of its subtree with that child's next task.
//
// The tree knows neither nodes nor caps. Whoever asks it for the next tenant
// finds that task a place, and tells the tree: Charge it, or SetNext another of
// the tenant's shapes, or ClearNext when none fits. Skipping in this way is
// what keeps Pareto efficiency; 3DSF's Alg. 1 line 13 stops at the first task
// that does not fit instead, which a caller does by not asking again.
//
// What holds, for one pool, one shape a tenant, level 1, a flat tree, no caps:
// sharing incentive exactly, Pareto efficiency exactly, envy of at most one own
// task. Strategy-proofness does not hold for whole tasks, and levels 2 and 3
// have none of these properties.
package drf
