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
//  4. turns: the tenant whose turn it is, again and again, until nothing fits or
//     the cycle is full. Each task gets its node at its turn: one that reads much
//     a node with its data, several of one stage in a row by matching; the
//     others go where the least is left.
//  5. a stage that finds no room at its data is put off until all others had
//     their turn; then each of its tasks waits, takes the room at its data from a
//     task of this decision that can go elsewhere, or moves.
//  6. 3 to 5 again as long as that changes what is left.
//  7. each stage left waiting gets its reason.
//
// All of it happens inside one try on the State, which is undone at the end.
// What must be remembered is in notes and reservations; all else is a cache.
package threedsf
