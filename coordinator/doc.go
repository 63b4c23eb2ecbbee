// Package coordinator is the live world's centre: it accepts jobs, decides
// with a scheduler where their tasks run, tells the nodes, and makes every
// change a fact in a replicated log before anybody hears of it.
//
// # Parts
//
//	coordinator/facts      the state machine of durable facts (pure)
//	coordinator/replica    the facts under hashicorp/raft
//	coordinator/raftstore  raft's log on bbolt
//	coordinator/blobs      files and images by digest
//	coordinator/history    ended jobs as lines of JSON, for people and the simulator
//	coordinator/coordtest  a node that is not there, for tests
//
// This package joins them:
//
//	loop.go        the leader's loop: follow, expire, decide, wait
//	projection.go  facts -> scheduler.State
//	wanted.go      facts -> what each node shall have, with revisions
//	sessions.go    what nodes said that is no fact: leases, progress, load
//	orders.go      work on the outside world, by way of a node
//	hosts.go       where inputs lie, asked of nodes; splits
//	submit.go      from a submission to an accepted job
//	jobs.go        intents: publish a result, remove leftovers
//	nodeservice.go, clientservice.go, status.go, proxy.go   the API
//	server.go, identity.go   listeners, limits, rights
//	pressure.go    frozen tasks that hold too much memory go deeper
//	upkeep.go      history, forgetting, collection of files
//
// # What it is not
//
// It speaks to no file system and holds no credentials of one: nodes do, by
// order. It runs no task. It keeps no time series: /metrics shows the present.
//
// # How a change travels
//
// A handler of the API proposes an entry and answers when it is applied. The
// loop gets a token, takes the changes from the facts' journal, and brings
// them into State, wanted sets and intents. If State changed it runs a
// scheduler.Cycle, whose commit is one more entry. Nothing polls: from a
// submission to the message that tells a node there are two entries of the log
// and no wait, but for CycleInterval after an earlier cycle.
//
// # Who owns what
//
// The loop owns the projection. Facts are read under the replica's lock;
// sessions, wantedSets, orderBook and hostBook have a lock of their own each.
// Lock order: the replica's lock, then one of these; core.mu last. While one of
// the small locks is held, nothing is proposed and nothing waited for.
//
// # What the caller must do
//
// Make the listeners (ListenLocal, net.Listen), call Run, and cancel its
// context to stop. A killed coordinator loses nothing that it told anybody:
// tasks run on without it.
package coordinator
