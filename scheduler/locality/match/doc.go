// Package match assigns tasks to the nodes that hold their data: the maximum weight bipartite
// matching of DLAforBT (3DSF section 6, Alg. 2 line 15 and Alg. 3), where a node takes several
// tasks.
//
// It is only the solver. The caller decides which tasks and nodes take part, what fits where, and
// whether a task without a place waits or moves (Alg. 4).
//
// # What is optimal
//
// Solver takes tasks of one equivalence class, best priority first, and nodes with slots and a
// decreasing idle weight w(j) = 1 - max_r (used_r + j step_r), the weight of 3DSF section 6.1
// before the j-th further task. Its result is optimal in this order:
//
//  1. most tasks on a node with a replica of their data (hops 0 of eq. 7);
//  2. greatest sum of idle weights over all slots used;
//  3. of all results equal in these, the one that places the best set of tasks: the first task if any can, then the second if any still can, and so on.
//
// # Why it is optimal, and fast
//
// Tasks with the same replicas form one group with a count. The node with the greatest next weight
// pulls a task: it searches backwards for a task that is not placed yet, through tasks that can
// move to other nodes. If there is none, all that the search visited is closed for good, because no
// unplaced task can ever reach it. Loads only grow, and the loads of matchings are the independent
// sets of a polymatroid, so this greedy order is optimal for decreasing weights. Most pulls end at
// the first task.
//
// Priority: with the loads fixed, sets of placed tasks are the bases of a matroid, so exchanging
// lower for higher ones along alternating paths, best first, ends at the best set. That both sides
// can be best at once is the theorem of Mendelsohn and Dulmage.
//
// All work is bounded and deterministic, and nothing is allocated once a workspace has grown to the
// size of its problems. A Solver is not safe for concurrent use.
package match
