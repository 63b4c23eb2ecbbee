// Package drf picks the next tenant by enhanced dominant resource fairness (3DSF section 5, Alg. 1) over three resources
// and a tree of weighted tenants. It is a data structure of its own.
//
// A Tree stores what each tenant's subtree uses and, for tenants with work, the demand of their next task. Tenants are
// compared by the dominant share that they would have with that task, divided by their weight; ties go to the tenant
// added first. Comparing present shares would miss the sharing incentive by up to three tasks. A tenant with children is
// represented by its best child: its share is that of its subtree with that child's next task.
//
// The tree knows neither nodes nor caps. The caller places the next tenant's task and then calls Charge, or SetNext with
// another demand, or ClearNext if none fits. This skipping preserves Pareto efficiency; 3DSF's Alg. 1 line 13 stops at
// the first task that does not fit instead, for which a caller stops calling Next.
//
// For one pool, one demand a tenant, level 1, a flat tree and no caps, the following holds: sharing incentive exactly,
// Pareto efficiency exactly, envy of at most one own task. Strategy-proofness does not hold for whole tasks, and levels
// 2 and 3 have none of these properties.
package drf
