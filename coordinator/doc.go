// Package coordinator is the control plane: it accepts jobs, decides with a
// scheduler where their tasks run, tells the nodes, and makes every change a
// fact in a replicated log before it answers.
//
// # Parts
//
//	coordinator/facts      the state machine of durable facts (pure)
//	coordinator/replica    the facts under hashicorp/raft
//	coordinator/raftstore  raft's log on bbolt
//	coordinator/peer       the network between the coordinators of a cluster
//	coordinator/blobs      files and images by digest
//	coordinator/secrets    encrypts the secrets of tenants
//	coordinator/idtoken    verifies ID tokens of an OpenID provider
//	coordinator/history    ended jobs as lines of JSON, for users and the simulator
//	coordinator/past       ended jobs, and samples over time, for pages and queries
//	coordinator/audit      the audit log
//	coordinator/traces     the way of jobs as OpenTelemetry traces
//	coordinator/backup     archives of a coordinator's state
//	coordinator/bench      the engine of `drover bench coordinator`
//	coordinator/coordtest  a simulated node, for tests
//
// This package joins them:
//
//	loop.go        the leader's loop: follow, expire, decide, wait
//	follow.go      applies the changes of the facts to State, wanted sets and history
//	cycle.go       runs a cycle of the policy, and commits its decision
//	leadership.go, gate.go   the term in which this server leads; which calls it answers
//	peers.go, noleader.go   the other coordinators: who is one, what they have, why none leads
//	projection.go, projection_attempts.go, rebuild.go   facts -> scheduler.State
//	wanted.go      facts -> what each node shall run, with revisions
//	sessions.go    reports that are no facts: leases, progress, load
//	dispatcher.go  requests to nodes for work on the outside world
//	locations.go   which nodes store the splits of a job's input
//	locate.go      has nodes find the blocks of an input, and makes splits of them
//	predictor.go   predictions of run times, from the facts
//	submit.go      from a submission to an accepted job
//	submitchecks.go, submitfiles.go   what a job must satisfy: the facts, the file systems
//	quotes.go, dryrun.go   quotes of deadlines, by a dry run of the policy and simulation
//	expected.go    expected starts and ends, by simulation
//	jobs.go        intents: publish a result, remove leftovers
//	nodeservice.go, clientservice.go, clientjobs.go, uploads.go, status.go, proxy.go   the API
//	server.go, identity.go   listeners, limits, rights
//	pressure.go    escalates frozen tasks that occupy too much memory
//	quarantine.go, refusals.go   end quarantines and back-offs
//	drain.go, maintenance.go     move tasks off nodes, begin and end maintenance windows
//	unowned.go     deletes policy states and reservations that no scheduler owns
//	pastrecorder.go, pastsamples.go, pastreader.go   what coordinator/past gets, and how it is read
//	upkeep.go      history, forgetting ended jobs, collection of blobs
//
// # What it is not
//
// It accesses no file system and holds no credentials of one: nodes do that on
// its request. It runs no task. It is no store of time series: /metrics shows
// current values, and coordinator/past keeps a few samples, limited by size and age.
//
// # How a change travels
//
// An API handler proposes an entry and answers when it is applied. The loop is
// signalled, takes the changes from the facts' journal, and applies them to
// State, wanted sets and intents. If State changed it runs a scheduler.Cycle,
// whose commit is one more entry, or several if it is large (decisionParts). Nothing
// polls: from a submission to the message to a node there are two log entries and no
// wait, except for cycleInterval after an earlier cycle.
//
// # Ownership and locks
//
// The loop owns the projection. Facts are read under the replica's lock;
// sessions, wantedSets, dispatcher and locationCache each have their own lock.
// Lock order: the replica's lock, then one of these. While one of the small locks
// is held, nothing is proposed and nothing waited for.
//
// # What the caller must do
//
// Create the listeners (ListenLocal, net.Listen), call Run, and cancel its
// context to stop. A killed coordinator loses nothing that it has acknowledged,
// and tasks continue without it.
package coordinator
