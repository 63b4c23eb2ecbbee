// Package locality implements DLAforBT on a State (3DSF section 6): which waiting tasks are placed
// on which nodes that hold their data (Alg. 2 and 3, by package match), and whether a task without
// capacity at its data waits or moves (Alg. 4).
//
// Matcher takes the number of tasks that a stage may place now, and finds the tasks and nodes that
// make the most of them node-local. WaitEstimator estimates when a node will have capacity (eq. 8)
// and compares that with the transfer time of the data (eq. 2 and 3, or a measured bandwidth).
//
// The caller places the tasks; nothing here changes the State. All work is bounded, and nothing is
// allocated once the workspaces have grown. No type is safe for concurrent use.
package locality
