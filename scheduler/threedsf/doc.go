// Package threedsf is 3DSF (3DSF section 8, Alg. 6): one policy that sends each
// job through just the modules it needs. Enhanced DRF (package drf) picks the
// tenant, DLAforBT (package locality) the nodes of tasks that read much, and
// accepted deadlines go first (package deadline). With modules switched off it
// is the papers' single schedulers: drf, pdsonqueue.
//
// # A cycle
//
//  1. begin: nothing changed since a cycle that did nothing: the same answer.
//  2. sync: the tree of tenants is brought in line with what they hold.
//  3. lanes that do not ask whose turn it is: reservations due, deadline jobs,
//     suspended tasks.
//  4. a batch: whose turn it is, again and again, each task tried where it fits,
//     until nothing fits or the cycle is full. Then all is undone.
//  5. placement of the batch: tasks that read much by matching, shape by shape;
//     those that found no room at their data wait or move; the others go where
//     the least is left. What found no room is taken back.
//  6. 4 and 5 again until a batch is empty.
//  7. each stage left waiting gets its reason.
//
// All of it happens inside one try on the State, which is undone at the end.
// What must be remembered is in notes and reservations; all else is a cache.
package threedsf
