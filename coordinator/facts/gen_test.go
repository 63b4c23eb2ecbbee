package facts

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/jobspec"
)

// seeds returns the seeds of n runs of a property test: n numbers that follow on the one that
// seed.New returns, so that the seed that failed, given again, is the first.
func seeds(t *testing.T, n int) []uint64 {
	t.Helper()
	out, first := make([]uint64, n), seed.New(t)
	for i := range out {
		out[i] = first + uint64(i)
	}
	return out
}

// gen generates random entries that are mostly valid on the current facts, and
// sometimes not.
type gen struct {
	r  *rand.Rand
	f  *Facts
	at int64
	n  int
}

func newGen(seed uint64, f *Facts) *gen {
	return &gen{r: rand.New(rand.NewPCG(seed, 1)), f: f, at: 1_000_000}
}

func (g *gen) entry() *droverv1.Entry {
	g.n++
	g.at += int64(g.r.IntN(int(infraWindow / 20)))
	e := &droverv1.Entry{Version: EntryVersion, At: g.at - int64(g.r.IntN(1000)), Actor: "gen"}
	e.StepRules = uint32(e.At) % (lastRules + 1) // no draw of its own: seeds stay what they were
	if g.n > 1 && g.r.IntN(16) == 0 {
		g.secret(e)
		return e
	}
	if g.n > 1 && g.r.IntN(12) == 0 {
		g.unknownRun(e)
		return e
	}
	switch k := g.r.IntN(100); {
	case g.n == 1:
		e.Body = &droverv1.Entry_Cluster{Cluster: &droverv1.ClusterFact{Id: "abcdef0123456789"}}
	case k < 6:
		e.Body = &droverv1.Entry_Node{Node: g.node()}
	case k < 9:
		n := g.pickNode()
		e.Body = &droverv1.Entry_NodeLost{NodeLost: &droverv1.NodeLostFact{Node: n, Epoch: g.epoch(n), Reason: "gen"}}
	case k < 12:
		if g.r.IntN(3) == 0 {
			from := g.at + int64(g.r.IntN(5))*1e9
			e.Body = &droverv1.Entry_Maintenance{Maintenance: &droverv1.MaintenanceFact{Node: g.pickNode(), From: from / 4e9 * 4e9, To: from/4e9*4e9 + int64(1+g.r.IntN(5))*1e9, Change: droverv1.MaintenanceChange(g.r.IntN(6))}}
			break
		}
		e.Body = &droverv1.Entry_NodeDrain{NodeDrain: &droverv1.NodeDrainFact{Node: g.pickNode(), Draining: g.r.IntN(3) == 0, Automatic: g.r.IntN(2) == 0, Deadline: int64(g.r.IntN(3)) * g.at}}
	case k < 15:
		e.Body = &droverv1.Entry_Blob{Blob: &droverv1.BlobFact{Digest: digest(g.r.IntN(4)), Size: 5, Removed: g.r.IntN(3) == 0}}
	case k < 17:
		if g.r.IntN(4) == 0 {
			e.Body = &droverv1.Entry_TenantDeleted{TenantDeleted: &droverv1.TenantDeletedFact{Name: fmt.Sprint("t", g.r.IntN(4))}}
			break
		}
		e.Body = &droverv1.Entry_Tenants{Tenants: &droverv1.TenantsFact{Tenants: []*droverv1.Tenant{{Name: fmt.Sprint("t", g.r.IntN(3)), Weight: float64(g.r.IntN(4))}}}}
	case k < 27:
		e.Body = &droverv1.Entry_JobAccepted{JobAccepted: g.job()}
	case k < 28:
		if g.r.IntN(2) == 0 {
			e.Body = &droverv1.Entry_DeadlineMiss{DeadlineMiss: &droverv1.DeadlineMissFact{Job: g.pickJob(), Passed: g.r.IntN(2) == 0, Reason: "gen"}}
			break
		}
		e.Body = &droverv1.Entry_Estimates{Estimates: &droverv1.EstimatesFact{Stages: []*droverv1.StageEstimate{
			{Job: g.pickJob(), Stage: int32(g.r.IntN(3)), Ns: int64(g.r.IntN(100)) - 1, Source: "own tasks"}}}}
	case k < 29:
		e.Body = &droverv1.Entry_JobStop{JobStop: &droverv1.JobStopFact{Job: g.pickJob(), AfterCommit: g.r.IntN(2) == 0}}
	case k < 32:
		e.Body = &droverv1.Entry_JobEnded{JobEnded: &droverv1.JobEndedFact{Job: g.pickJob(), State: droverv1.JobState(4 + g.r.IntN(3))}}
	case k < 33:
		e.Body = &droverv1.Entry_RefusalsExpired{RefusalsExpired: g.refusalsExpired()}
	case k < 35:
		if g.r.IntN(3) == 0 {
			e.Body = &droverv1.Entry_LogsGathered{LogsGathered: &droverv1.LogsGatheredFact{Job: g.pickJob(), Folder: "hdfs:///logs", Missing: []string{"", "n1"}[g.r.IntN(2)]}}
			break
		}
		e.Body = &droverv1.Entry_JobCleaned{JobCleaned: &droverv1.JobCleanedFact{Job: g.pickJob()}}
	case k < 37:
		e.Body = &droverv1.Entry_JobsForgotten{JobsForgotten: &droverv1.JobsForgottenFact{Jobs: []uint64{g.pickJob()}}}
	case k < 65:
		e.Body = &droverv1.Entry_Decision{Decision: g.decision()}
	case k < 98:
		e.Body = &droverv1.Entry_Attempts{Attempts: g.report()}
	case k < 99 && g.r.IntN(2) == 0:
		id := fmt.Sprint("k", g.r.IntN(6))
		if g.r.IntN(4) == 0 {
			e.Body = &droverv1.Entry_TokenRevoked{TokenRevoked: &droverv1.TokenRevokedFact{Id: id}}
			break
		}
		e.Body = &droverv1.Entry_Token{Token: &droverv1.TokenFact{Hash: make([]byte, 32-g.r.IntN(8)/7),
			Token: &droverv1.Token{Id: id, User: "user/gen", ExpiresMs: g.at/1e6 + int64(g.r.IntN(100_000_000))}}}
	case k < 99:
		e.Body = &droverv1.Entry_Scheduler{Scheduler: &droverv1.SchedulerFact{Name: "fifo"}}
	default:
		e.Version = EntryVersion + 1
	}
	return e
}

// refusalsExpired claims that the back-off of every attempt of a job has
// expired, which is true for some.
func (g *gen) refusalsExpired() *droverv1.RefusalsExpiredFact {
	b := &droverv1.RefusalsExpiredFact{}
	if j := g.f.Job(g.pickJob()); j != nil {
		g.f.EachAttempt(j, func(k Key, _ *Task, a *Attempt) { b.Attempts = append(b.Attempts, k.Proto(a.Run)) })
	}
	return b
}

// unknownRun restores the log, has a node find a run of a task, or decides about one.
func (g *gen) unknownRun(e *droverv1.Entry) {
	if g.r.IntN(10) == 0 {
		e.Body = &droverv1.Entry_Restored{Restored: &droverv1.RestoredFact{What: "gen", SkipJobs: uint64(g.r.IntN(2)), SkipEvents: uint64(g.r.IntN(3)), ClusterEpoch: uint64(g.r.IntN(50))}}
		return
	}
	n := g.pickNode()
	u := &droverv1.UnknownRunsFact{Node: n, Epoch: g.epoch(n)}
	e.Body = &droverv1.Entry_UnknownRuns{UnknownRuns: u}
	key := &droverv1.AttemptKey{Job: g.pickJob(), Stage: int32(g.r.IntN(2)), Task: int32(g.r.IntN(4)), Attempt: int32(1 + g.r.IntN(2)), Run: int32(1 + g.r.IntN(3))}
	if j := g.f.Job(key.GetJob()); j != nil {
		g.f.EachActive(j, func(k Key, _ *Task, a *Attempt) {
			if a.Suspension.Unknown && g.r.IntN(2) == 0 {
				u.Node, u.Epoch, key = a.Node, a.Epoch, k.Proto(a.Run)
			}
		})
	}
	if g.r.IntN(2) == 0 {
		u.Key, u.Decision = key, droverv1.UnknownRunDecision(g.r.IntN(4))
		return
	}
	u.Found = []*droverv1.SeenAttempt{{Key: key, Phase: droverv1.Phase(g.r.IntN(4)), Level: droverv1.Level(g.r.IntN(6)),
		Occupied: &droverv1.Resources{Memory: int64(g.r.IntN(5))}, Unknown: &droverv1.UnknownRun{DiskName: "d"}}}
}

// secret puts, rotates or deletes one of a few secrets.
func (g *gen) secret(e *droverv1.Entry) {
	tenant, name := []string{DefaultTenant, "t1", "none"}[g.r.IntN(3)], fmt.Sprint("s", g.r.IntN(3))
	version := uint32(1)
	if x := SecretsOf(g.f).Get(tenant, name); x != nil {
		version = x.newest().Version + 1
	}
	switch g.r.IntN(4) {
	case 0:
		e.Body = &droverv1.Entry_SecretDeleted{SecretDeleted: &droverv1.SecretDeletedFact{Tenant: tenant, Name: name, Version: uint32(g.r.IntN(3))}}
	case 1:
		e.Body = &droverv1.Entry_Secret{Secret: &droverv1.SecretFact{Tenant: tenant, Name: name, Version: version - uint32(g.r.IntN(2)), Key: "k2", Ciphertext: []byte("c"), Rotated: true}}
	default:
		e.Body = &droverv1.Entry_Secret{Secret: &droverv1.SecretFact{Tenant: tenant, Name: name, Version: version, Key: "k1", Nonce: []byte("n"), Ciphertext: []byte("b")}}
	}
}

func digest(i int) string { return fmt.Sprintf("sha256:%064d", i) }

func (g *gen) node() *droverv1.NodeFact {
	name := fmt.Sprint("n", g.r.IntN(4))
	epoch := uint64(0)
	if n := g.f.NodeByName(name); n != nil && g.r.IntN(4) > 0 {
		epoch = n.Epoch
	}
	return &droverv1.NodeFact{Epoch: epoch, Info: &droverv1.NodeInfo{Name: name, Rack: "/r", Address: name + ":1", TaskOverheadMemory: 1,
		Allocatable: &droverv1.Resources{Cpu: 3000, Memory: 3 << 30, Io: 1 << 30}, Disks: []*droverv1.Disk{{Name: "d", Io: 1 << 30, Space: 1 << 40}},
		Levels: []droverv1.Level{droverv1.Level_LEVEL_RUNNING, droverv1.Level_LEVEL_FROZEN, droverv1.Level_LEVEL_SWAPPED, droverv1.Level_LEVEL_CHECKPOINTED}[:2+g.r.IntN(3)]}}
}

func (g *gen) pickNode() int32 { return int32(g.r.IntN(6)) }
func (g *gen) epoch(n int32) (e uint64) {
	if x := g.f.Node(n); x != nil {
		e = x.Epoch
	}
	return e + uint64(g.r.IntN(8)/7)
}

func (g *gen) pickJob() uint64 {
	ids := g.f.JobIDs()
	if len(ids) == 0 || g.r.IntN(20) == 0 {
		return uint64(g.r.IntN(50))
	}
	return ids[len(ids)-1-g.r.IntN(min(len(ids), 5))]
}

func (g *gen) job() *droverv1.JobAcceptedFact {
	res := jobspec.Resources{CPU: 1000, Memory: 1 << 28, IO: 1 << 20}
	spec := &jobspec.Job{Version: 1, Name: fmt.Sprint("j", g.r.IntN(12)), Tenant: []string{"default", "t0", "nobody"}[g.r.IntN(3)], Priority: jobspec.PriorityLow, KeepFailed: 1}
	if g.r.IntN(4) == 0 {
		spec.GatherLogs = "hdfs:///logs/"
	}
	a := &droverv1.JobAcceptedFact{ShuffleToken: "tok"}
	if g.r.IntN(2) == 0 {
		spec.Stages = []jobspec.Stage{{Name: "g", Kind: jobspec.KindGroup, Tasks: 1 + g.r.IntN(4), Command: []string{"x"}, Resources: res, Attempts: 2}}
	} else {
		spec.Input = &jobspec.Input{Paths: []string{"hdfs:///in"}}
		spec.Stages = []jobspec.Stage{{Name: "m", Kind: jobspec.KindMap, Command: []string{"x"}, Resources: res, Attempts: 3}}
		for range g.r.IntN(4) {
			a.Splits = append(a.Splits, &droverv1.FactSplit{Pieces: []*droverv1.SplitPiece{{Uri: "hdfs:///in", Length: 3}}})
		}
		if g.r.IntN(3) > 0 {
			spec.Stages = append(spec.Stages, jobspec.Stage{Name: "r", Kind: jobspec.KindReduce, Tasks: 1 + g.r.IntN(3), Command: []string{"y"}, Resources: res, Attempts: 2})
		}
		if g.r.IntN(3) > 0 {
			spec.Output = &jobspec.Output{Path: fmt.Sprint("hdfs:///out/", g.r.IntN(6))}
			a.Output = spec.Output.Path
		}
	}
	if g.r.IntN(3) == 0 {
		spec.Stages[0].Files = []jobspec.File{{Name: "f", Digest: digest(g.r.IntN(4))}}
	}
	if g.r.IntN(3) == 0 {
		a.IdempotencyKey = fmt.Sprint("key", g.r.IntN(10))
	}
	if g.r.IntN(3) == 0 {
		at := time.Unix(0, g.at+int64(g.r.IntN(int(time.Hour)))-int64(time.Minute)).UTC()
		spec.Deadline, spec.OnMiss = &at, []jobspec.OnMiss{jobspec.OnMissContinue, jobspec.OnMissLower, jobspec.OnMissStop}[g.r.IntN(3)]
		a.Quote = &droverv1.Quote{DeadlineMs: at.UnixMilli(), Probability: g.r.Float64()}
		a.Estimates = []*droverv1.StageEstimate{{Ns: 5, Source: "history"}}
	}
	if g.r.IntN(4) == 0 {
		spec.Project = fmt.Sprint("p", g.r.IntN(3))
	}
	b, err := jobspec.Encode(spec)
	if err != nil {
		panic(err)
	}
	a.Spec = string(b)
	if g.r.IntN(30) == 0 {
		a.Spec = "{"
	}
	return a
}

func (g *gen) decision() *droverv1.DecisionFact {
	d := &droverv1.DecisionFact{Base: g.f.Index()}
	for range 1 + g.r.IntN(4) {
		j := g.f.Job(g.pickJob())
		if j == nil {
			continue
		}
		stage := g.r.IntN(len(j.Stages))
		if j.Stages[stage].Tasks == 0 {
			continue
		}
		task := int32(g.r.IntN(int(j.Stages[stage].Tasks)))
		t := j.Stages[stage].Task(task)
		k := Key{j.ID, int32(stage), task, int32(len(t.Attempts)) + 1}
		a := &droverv1.ActionFact{Kind: int32(ActPlace), Key: k.Proto(1), Node: g.pickNode(), Disk: int32(g.r.IntN(2)) - 1, Locality: "node", Speculative: g.r.IntN(6) == 0}
		if len(t.Attempts) > 0 && g.r.IntN(2) == 0 {
			k.Attempt = int32(1 + g.r.IntN(len(t.Attempts)))
			a.Kind, a.PreemptorJob, a.Manual = int32(2+g.r.IntN(4)), g.pickJob(), g.r.IntN(4) == 0
			a.Key = k.Proto(g.run(k))
			if ActionKind(a.Kind) == ActMigrate {
				a.Key.Run++
			}
			a.Level, a.Drain = droverv1.Level(g.r.IntN(5)), !a.Manual && g.r.IntN(3) == 0
		}
		d.Actions = append(d.Actions, a)
	}
	if g.r.IntN(4) == 0 {
		d.PolicyStates = append(d.PolicyStates, &droverv1.PolicyStateFact{Kind: int32(1 + g.r.IntN(13)), Job: g.pickJob(), Value: int64(g.r.IntN(5)), Real: 0.5})
	}
	if g.r.IntN(8) == 0 {
		d.Actions = append(d.Actions, &droverv1.ActionFact{Kind: int32(ActReserve), Reservation: &droverv1.ReservationFact{Id: uint64(g.r.IntN(5)), Job: g.pickJob()}})
	}
	return d
}

func (g *gen) report() *droverv1.AttemptsFact {
	n := g.pickNode()
	af := &droverv1.AttemptsFact{Node: n, Epoch: g.epoch(n)}
	for range 1 + g.r.IntN(3) {
		j := g.f.Job(g.pickJob())
		if j == nil {
			continue
		}
		var all []Key
		var on []int32
		g.f.EachAttempt(j, func(k Key, _ *Task, a *Attempt) { all, on = append(all, k), append(on, a.Node) })
		if len(all) == 0 {
			continue
		}
		i := g.r.IntN(len(all))
		if g.r.IntN(8) > 0 { // the right node
			af.Node = on[i]
			af.Epoch = g.epoch(on[i])
		}
		af.Seen = append(af.Seen, g.seen(all[i]))
	}
	return af
}

// run returns the attempt's current run in most cases.
func (g *gen) run(k Key) int32 {
	if a := g.f.Attempt(k); a != nil && g.r.IntN(12) > 0 {
		return a.Run
	}
	return int32(1 + g.r.IntN(3))
}

func (g *gen) seen(k Key) *droverv1.SeenAttempt {
	s := &droverv1.SeenAttempt{Key: k.Proto(g.run(k)), Phase: droverv1.Phase(1 + g.r.IntN(5)), Level: droverv1.Level(g.r.IntN(5)), Message: "m",
		StderrTail: "tail", Counters: map[string]int64{fmt.Sprint("c", g.r.IntN(3)): 2}, RunningMs: 7, OutputLength: 11, Occupied: &droverv1.Resources{Memory: 1 << 20},
		Usage: &droverv1.Usage{CpuMs: 3, MemoryPeak: int64(g.r.IntN(100))}, Limits: &droverv1.Limits{CpuMax: "max"}}
	switch a := g.f.Attempt(k); {
	case g.r.IntN(2) == 0:
		s.Phase = droverv1.Phase_PHASE_SUCCEEDED
	case a != nil && a.Target != 0 && g.r.IntN(2) == 0: // the report of a node that was asked for a level
		s.Phase, s.Level = droverv1.Phase_PHASE_RUNNING, a.Target
		if g.r.IntN(3) == 0 {
			s.Level, s.TargetRefused, s.LevelNote = a.Level, a.Target, "no"
			if g.r.IntN(3) == 0 {
				s.LevelsRefused = []droverv1.Level{droverv1.Level(g.r.IntN(6))}
			}
		}
	}
	if s.Phase == droverv1.Phase_PHASE_FAILED {
		s.Cause = droverv1.Cause(g.r.IntN(10))
	}
	if g.r.IntN(5) == 0 {
		s.LostOutputs = []*droverv1.MapOutput{{Task: int32(g.r.IntN(4)) - 1, Attempt: int32(1 + g.r.IntN(2)), Run: int32(1 + g.r.IntN(2))}}
	}
	return s
}

// applyRandomEntries generates n entries and applies them to f.
func applyRandomEntries(seed uint64, f *Facts, n int, each func(i int, e *droverv1.Entry)) {
	g := newGen(seed, f)
	for i := range n {
		e := g.entry()
		// Entries in the log have been through their encoding.
		b, err := proto.Marshal(e)
		if err != nil {
			panic(err)
		}
		e = &droverv1.Entry{}
		if err := proto.Unmarshal(b, e); err != nil {
			panic(err)
		}
		f.Apply(uint64(i)+1, e)
		if each != nil {
			each(i, e)
		}
	}
}

func reproduce(t *testing.T, seed uint64) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
}
