package facts

// Facts is one struct, since every entry may change any part of it. Its methods are split over
// small types, each for one subject: a caller shows which one it uses, and no type grows too many
// methods, which internal/imports checks. Such a type is a value made of the pointer to the Facts,
// which costs nothing, and owns no data. Facts itself looks things up by their keys.

// Clock returns the time of the entries.
func (f *Facts) Clock() Clock { return Clock{f} }

// EndedLog returns what ended, for the history.
func (f *Facts) EndedLog() EndedLog { return EndedLog{f} }

// Deadlines returns the projects, and what became of guarantees.
func (f *Facts) Deadlines() Deadlines { return Deadlines{f} }

// Checks returns what is asked before an entry is proposed.
func (f *Facts) Checks() Checks { return Checks{f} }

// EventLog returns the events.
func (f *Facts) EventLog() EventLog { return EventLog{f} }

// Tokens returns the tokens of people without certificates.
func (f *Facts) Tokens() Tokens { return Tokens{f} }

// SecretsOf returns the encrypted secrets of tenants.
func SecretsOf(f *Facts) Secrets { return Secrets{f} }

// Tokens is the tokens of people without certificates, by their ids.
type Tokens struct{ f *Facts }

// Clock is the time of the entries. It follows the log when the log's time steps back.
type Clock struct{ f *Facts }

// EndedLog is what ended since it was last taken.
type EndedLog struct{ f *Facts }

// Deadlines is the projects, the guarantees and what became of them.
type Deadlines struct{ f *Facts }

// Checks answers whether an entry would be accepted. They change nothing.
type Checks struct{ f *Facts }

// EventLog is the newest events of jobs, and those of the cluster.
type EventLog struct{ f *Facts }

// attemptEntries applies what nodes report of attempts.
type attemptEntries struct{ f *Facts }

// nodeEntries applies what happens to nodes: registration, loss, quarantine, drain.
type nodeEntries struct{ f *Facts }

// clusterEntries applies what administrators set: tenants, files, the scheduler.
type clusterEntries struct{ f *Facts }

// decisionEntries applies the actions of the scheduler.
type decisionEntries struct{ f *Facts }

// jobEntries applies submissions, stops and ends of jobs.
type jobEntries struct{ f *Facts }

// levelEntries applies the levels that attempts reach, or fail to.
type levelEntries struct{ f *Facts }

// writer changes jobs and tasks where readers of older facts do not see it, and records what
// changed.
type writer struct{ f *Facts }

// snapshots reads facts back.
type snapshots struct{ f *Facts }

func attemptsOf(f *Facts) attemptEntries   { return attemptEntries{f} }
func nodesOf(f *Facts) nodeEntries         { return nodeEntries{f} }
func clusterOf(f *Facts) clusterEntries    { return clusterEntries{f} }
func decisionsOf(f *Facts) decisionEntries { return decisionEntries{f} }
func jobsOf(f *Facts) jobEntries           { return jobEntries{f} }
func levelsOf(f *Facts) levelEntries       { return levelEntries{f} }
func writerOf(f *Facts) writer             { return writer{f} }
func snapshotsOf(f *Facts) snapshots       { return snapshots{f} }
