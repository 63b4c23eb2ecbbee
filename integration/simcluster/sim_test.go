package simcluster

import (
	"cmp"
	"context"
	"fmt"
	mathrand "math/rand"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/jobspec"
)

// simulationsVar is how many simulations run, also after a given seed.
const simulationsVar = "DROVER_SIMULATIONS"

// sizeVar is "large" or "small" for plans of that size alone, or "restore" for plans of both sizes that have a restore.
const sizeVar = "DROVER_SIMULATION_SIZE"

// planSize is the size of plans.
type planSize string

// The sizes of plans.
const (
	mixedPlans planSize = ""
	largePlan  planSize = "large"
	smallPlan  planSize = "small"

	restorePlan planSize = "restore" // of both sizes, and each that can has a restore
)

// isMixed reports whether plans are of both sizes.
func (s planSize) isMixed() bool { return s == mixedPlans || s == restorePlan }

// String implements fmt.Stringer.
func (s planSize) String() string { return cmp.Or(string(s), "mixed") }

func sizeOfPlans(t *testing.T) planSize {
	switch size := planSize(os.Getenv(sizeVar)); size {
	case mixedPlans, largePlan, smallPlan, restorePlan:
		return size
	default:
		t.Fatalf("%s=%s: give %s, %s, %s, or nothing for both", sizeVar, size, largePlan, smallPlan, restorePlan)
		return ""
	}
}

// seeds returns the seeds of the simulations: a new one and those that follow it, or
// the given one alone.
func seeds(t *testing.T) (all []uint64) {
	count := 40 // some 5 s of a processor
	if testing.Short() {
		count = 15
	}
	switch text := os.Getenv(simulationsVar); {
	case text != "":
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", simulationsVar, err)
		}
	case os.Getenv("RAPID_SEED") != "":
		count = 1
	}
	first := seed.New(t)
	for i := range count {
		all = append(all, first+uint64(i))
	}
	return all
}

// seedsFile has the seeds that failed once.
const seedsFile = "testdata/seeds"

// knownSeeds returns the seeds of the file, whose lines say why each has failed.
func knownSeeds(t *testing.T) (all []uint64) {
	text, err := os.ReadFile(seedsFile)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		number, why, _ := strings.Cut(line, " ")
		s, err := strconv.ParseUint(number, 10, 64)
		if err != nil || why == "" {
			t.Fatalf("%s: %q: want a seed and why it failed", seedsFile, line)
		}
		all = append(all, s)
	}
	return all
}

// TestSimulatedCluster runs clusters with jobs and faults from seeds, and checks
// what must hold whatever happens: see check. Those that failed once come first, unless a seed or a number is given.
func TestSimulatedCluster(t *testing.T) {
	if os.Getenv("RAPID_SEED") == "" && os.Getenv(simulationsVar) == "" {
		for _, s := range knownSeeds(t) {
			t.Run(fmt.Sprint("known seed=", s), func(t *testing.T) { simulate(t, newPlan(s, mixedPlans)) })
		}
	}
	sum, began, size := contents{}, cpuTime(), sizeOfPlans(t)
	for _, s := range seeds(t) {
		if !t.Run(fmt.Sprint("seed=", s), func(t *testing.T) { sum.add(simulate(t, newPlan(s, size))) }) {
			t.Fatalf("RAPID_SEED=%d repeats the jobs and faults of the simulation that failed", s)
		}
	}
	each := (cpuTime() - began).Seconds() / max(1, sum["simulations"])
	t.Logf("%s; %.3f s of CPU time, so %.0f an hour on each processor", sum, each, 3600/each)
}

// simulate runs one plan and returns what it contained.
func simulate(t *testing.T, p *plan) (has contents) {
	dir := memoryFolder(t)
	issueAll(t)
	cryptotest.SetGlobalRandom(t, p.seed)
	defer beginExact(p.seed)()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, p.seed, dir)
		c.scheduler, c.election, c.reports, c.plain, c.speculate = p.scheduler, p.election, p.reports, !p.secure, p.speculate
		c.snapshots, c.ahead = p.snapshots, p.clocksAhead()
		defer func() {
			if t.Failed() || testing.Verbose() && os.Getenv("RAPID_SEED") != "" && os.Getenv(simulationsVar) == "" {
				t.Logf("%s%s", p, c.trace.String())
			}
		}()
		//lint:ignore SA1019 raft draws its timeouts there, nodes and clients their pauses: from no source that they are given
		mathrand.Seed(int64(p.seed))
		c.addServers(p.servers)
		for i := range p.machines {
			c.addMachine(machineName(i))
			time.Sleep(time.Millisecond) // no two do the same thing at one instant, whose order no seed decides
		}
		c.prepareFiles(p)
		c.restores.begin(p)
		c.run(p)
		c.wg.Wait()
		ended := c.awaitEnd()
		c.restores.end(p)
		if ended {
			if p.restarts {
				c.restartServers()
			}
			c.check(p)
			if p.forget {
				c.checkKeys(p)
			}
		}
		history := c.historyHash()
		c.close()
		c.checkLogs()
		for _, b := range c.bad {
			t.Error(b)
		}
		t.Logf("order of events %016x, history %016x", c.order, history)
		has = c.contents(p)
	})
	return has
}

// memoryFolder returns a folder in memory if there is one.
func memoryFolder(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "drover-sim-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// submit submits a job until it is accepted, perhaps again later, and stops it if
// the plan says so.
func (c *cluster) submit(p plannedJob) {
	c.prepare(p)
	leader := ""
	if p.stopsAtOnce {
		leader = c.leader()
	}
	if !c.upload(p) {
		return
	}
	id, ok := c.accept(p)
	if !ok {
		return
	}
	c.setAccepted(p, id)
	if c.restores.planned != nil {
		c.wg.Go(func() { c.submitAfterRestore(p, id) })
	}
	if p.stopsAtOnce {
		c.stopWhileHeld(p, leader)
	}
	if w := p.wordCount; w != nil {
		c.disturb(p.spec.Name, w)
	}
	if p.againAt > 0 {
		time.Sleep(time.Until(c.began.Add(p.againAt)))
		c.acceptAgain(p, id)
	}
	if p.stopAt > 0 {
		time.Sleep(time.Until(c.began.Add(p.stopAt)))
		c.stop(p)
	}
	if p.stopsAt != "" && c.awaitEvent(p.spec.Name, p.stopsAt) != nil {
		c.stop(p)
	}
}

// prepare makes the tenant of a job, if it has one.
func (c *cluster) prepare(p plannedJob) {
	if p.wordCount != nil {
		c.applyTenant()
	}
}

// acceptAgain submits a job again that was accepted: it is the same one, unless the coordinators have lost it since.
func (c *cluster) acceptAgain(p plannedJob, id uint64) {
	again, ok := c.accept(p)
	switch {
	case c.restores.hasLost(id):
		c.setAccepted(p, again) // 0 if it is refused by now
	case ok && again != id:
		c.violated("job %s was accepted as %d, and under the same key as %d", p.spec.Name, id, again)
	}
}

func (c *cluster) setAccepted(p plannedJob, id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.accepted[p.spec.Name] = id
}

// acceptedAs returns the number of a job, as its user knows it.
func (c *cluster) acceptedAs(p plannedJob) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.accepted[p.spec.Name]
}

// awaitEvent follows the events of a job up to one of a kind, and returns it; nil if the job or the connection ends
// before it.
func (c *cluster) awaitEvent(job, kind string) *droverv1.Event {
	ctx, cancel := context.WithTimeout(context.Background(), faultTime)
	defer cancel()
	events, err := c.client.Events(ctx, connect.NewRequest(&droverv1.EventsRequest{Job: job, Follow: true}))
	if err != nil {
		return nil
	}
	defer events.Close()
	for events.Receive() {
		switch events.Msg().Kind {
		case kind:
			return events.Msg()
		case "job.succeeded", "job.failed", "job.stopped":
			return nil
		}
	}
	return nil
}

// accept submits a job until it is accepted, always under one key.
func (c *cluster) accept(p plannedJob) (uint64, bool) {
	jobspec.SetDefaults(p.spec)
	text, err := jobspec.Encode(p.spec)
	if err != nil {
		c.violated("job %s: %v", p.spec.Name, err)
		return 0, false
	}
	uploaded := false // since a restore
	for {
		res, err := call(c.client.SubmitJob, &droverv1.SubmitJobRequest{Spec: string(text), IdempotencyKey: "key-" + p.spec.Name})
		if err == nil {
			c.log("user: %s accepted as %d", p.spec.Name, res.Job)
			return res.Job, true
		}
		c.log("user: %s: %v", p.spec.Name, err)
		if p.spec.Deadline != nil && !time.Now().Add(c.ahead).Before(*p.spec.Deadline) && strings.Contains(err.Error(), "is in the past") {
			return 0, false
		}
		switch c.restores.afterRefusal(p, wire.FromError(err), &uploaded) {
		case goOn:
			continue
		case giveUp:
			return 0, false
		}
		if err := wire.FromError(err); isRefused(err) && !isBusy(err) {
			c.violated("submission of %s: %v", p.spec.Name, err)
			return 0, false
		}
		if !c.mayRepeat("job %s is not accepted", p.spec.Name) {
			return 0, false
		}
	}
}

// mayRepeat waits for a second after a call that failed, and reports whether the call may be repeated. A call that still
// fails endLimit after the faults is a violation, which the rest of the arguments describe.
func (c *cluster) mayRepeat(format string, args ...any) bool {
	if time.Since(c.began) > faultTime+endLimit {
		c.violated("%s after the faults: %s", endLimit, fmt.Sprintf(format, args...))
		return false
	}
	time.Sleep(time.Second)
	return true
}

// setScheduler has an operator set the scheduler.
func (c *cluster) setScheduler(name string) {
	for {
		_, err := call(c.client.SetScheduler, &droverv1.SetSchedulerRequest{Name: name})
		c.log("operator: scheduler %s: %v", name, err)
		if err == nil || !c.mayRepeat("scheduler %s is not set", name) {
			return
		}
	}
}

// stop stops a job.
func (c *cluster) stop(p plannedJob) {
	for {
		id := c.acceptedAs(p)
		if id == 0 { // the coordinators have lost it, and it was not accepted again
			return
		}
		_, err := call(c.client.StopJob, &droverv1.StopJobRequest{Job: fmt.Sprint(id)})
		c.log("user: stop %s: %v", p.spec.Name, err)
		if err == nil || !c.mayRepeat("job %s is not stopped", p.spec.Name) {
			return
		}
	}
}
