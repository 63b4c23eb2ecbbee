// Package locality is DLAforBT on a State (3DSF section 6): which waiting tasks
// go to which nodes that hold their data (Alg. 2 and 3, by package match), and
// whether a task that found no room there waits or moves (Alg. 4).
//
// Matcher takes, for stages of one shape, how many tasks each may place now,
// and finds the tasks and nodes that make most of them node-local. Judge knows
// how long data travels (eq. 2 and 3, or a measured bandwidth), when a node
// will have room (eq. 8), and compares the two.
//
// What is tried and placed is the caller's business; nothing here changes the
// State. All work is bounded and allocates nothing once the workspaces have
// grown. Nothing is safe for concurrent use.
package locality
