package chaos

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/integration/cluster"
	"github.com/drover-run/drover/integration/testbed"
	"github.com/drover-run/drover/internal/seed"
)

var (
	droverPath = flag.String("drover", "../../bin/drover", "the binary under test")
	faultCount = flag.Int("faults", 6, "faults to inject")
	onlyKinds  = flag.String("only", "", "expression that the names of the faults' kinds match, such as 'machine: disk'")
)

// Limits of a run. Machines are emulated and slow; what is lost is done again.
const (
	startLimit  = 12 * time.Minute
	perFault    = 6 * time.Minute
	jobLimit    = 15 * time.Minute
	acceptLimit = 4 * time.Minute
	backLimit   = 6 * time.Minute
	cleanLimit  = 5 * time.Minute
	requestTime = 8 * time.Second // for an answer to a suspension, which may be long in coming
	momentLimit = 5 * time.Second // that a fault waits for a commit to be under way
	keepLogs    = "60s"           // of jobs that ended: as long as it takes until they are compared
)

// TestChaos injects faults while jobs run. Each job that was accepted ends once, with the output that a
// reference computes; each container has its limits whenever the machines are looked at; of an exclusive
// task no attempt acts after a later one has; and at the end nothing is left on the machines. RAPID_SEED
// repeats the faults where -only is the same, though not the instants at which they meet the jobs.
func TestChaos(t *testing.T) {
	bed, err := testbed.FromEnv()
	if err != nil {
		t.Skip("not proved here: that accepted jobs survive faults of three coordinators and three machines; ", err)
	}
	only, err := regexp.Compile(*onlyKinds)
	if err != nil {
		t.Fatal("-only: ", err)
	}
	s := seed.New(t)
	t.Logf("%d faults (-faults) of kinds that match %q (-only)", *faultCount, only)
	ctx, cancel := context.WithTimeout(context.Background(), startLimit+jobLimit+time.Duration(*faultCount)*perFault)
	t.Cleanup(cancel)
	c, err := cluster.Start(ctx, cluster.Config{Testbed: bed, Drover: *droverPath, Dir: t.TempDir(), Servers: 3,
		CoordinatorFlags: []string{"-keep-logs", keepLogs}, OnStep: func(step string, took time.Duration) { t.Logf("%s: %s", step, took.Round(time.Second)) }})
	if c != nil {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			if err := c.Stop(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	h := &chaos{T: t, ctx: ctx, cluster: c, bed: bed, began: time.Now(), watch: newWatch(), booting: map[int]<-chan error{}, dir: t.TempDir(),
		doing: "before the first fault", faults: rand.New(rand.NewPCG(s, 0)), asks: rand.New(rand.NewPCG(s, 1)),
		run: Run{Seed: s, Faults: map[string]int{}, AtOnce: map[string]int{}}}
	t.Cleanup(h.tell)
	makers := h.makersOf(only)
	if len(makers) == 0 {
		t.Fatalf("no kind of fault matches %q (-only)", only)
	}
	h.prepare()
	h.injectAll(makers)
	if t.Failed() {
		return
	}
	h.doing = "at the end, when all faults were over"
	for k := range bed.Nodes {
		h.awaitMachine(k + 1)
	}
	for _, j := range h.jobs {
		h.finish(j)
	}
	h.awaitLogs()
	h.checkNothingTwice()
	h.awaitClean()
	h.readWatches()
	if err := h.watch.sawNothing(h.alone); err != nil {
		h.Error(err)
	}
}

// chaos is a run of the test.
type chaos struct {
	*testing.T
	ctx     context.Context
	cluster *cluster.Cluster
	bed     *testbed.Bed
	faults  *rand.Rand // of the faults
	asks    *rand.Rand // of the suspensions
	dir     string
	counts  string // the reference's output
	began   time.Time
	watch   *watch
	booting map[int]<-chan error // machines whose power was cut
	run     Run
	took    []float64 // seconds of the faults that met, each time
	doing   string    // now, for what is said of a failure

	accepted []string   // names of jobs, oldest first
	jobs     []*job     // accepted and not yet seen to end
	alone    []string   // exclusive tasks of jobs that have ended well
	logs     []*taskLog // of jobs that have ended well, not yet compared
	lossy    int        // faults so far with which files are lost
}

// job is a job that the cluster accepted.
type job struct {
	*jobKind
	name        string
	number      string
	lossyBefore int // faults with which files are lost, until it was submitted
}

// task returns the name that a task of the job's stage has on machines.
func (j *job) task(k int) string { return fmt.Sprintf("%s.%d.%d", j.number, j.index, k) }

// tell prints what the run did, and the daemons' last lines if it failed.
func (h *chaos) tell() {
	if h.Failed() {
		h.run.Failure = h.doing
		h.logDaemons()
	}
	slices.Sort(h.took)
	if n := len(h.took); n > 0 {
		h.run.Times, h.run.MedianSeconds = n, h.took[n/2]
	}
	line, err := json.Marshal(h.run)
	if err != nil {
		h.Error(err)
	}
	h.Logf("%s%s", RunPrefix, line)
}

// injectAll injects all faults, those that meet together.
func (h *chaos) injectAll(makers []func(plan) injection) {
	h.Helper()
	began := time.Now()
	for done := 0; done < *faultCount && !h.Failed(); {
		start := time.Now()
		all := drawFaults(h.faults, makers, len(h.cluster.Servers()), len(h.bed.Nodes), *faultCount-done)
		h.inject(done, all)
		done += len(all)
		h.took = append(h.took, time.Since(start).Seconds())
		h.run.Seconds = time.Since(began).Seconds()
	}
}

func (h *chaos) waitUntil(limit time.Duration, what string, cond func(context.Context) error) {
	h.Helper()
	if err := testbed.WaitFor(h.ctx, limit, what, cond); err != nil {
		h.Fatal(err)
	}
}

func (h *chaos) drover(args ...string) cluster.Result {
	h.Helper()
	r, err := h.cluster.Drover(h.ctx, args...)
	if err != nil {
		h.Fatal(err)
	}
	return r
}

// prepare makes tenant, input and reference, and waits for the machines' levels.
func (h *chaos) prepare() {
	h.Helper()
	tenants := h.write("tenants.hcl", "tenant \"chaos\" {\n  uid = 2001\n  hdfs_user = \"root\"\n}\n")
	if err := h.drover("tenant", "apply", tenants).Err(); err != nil {
		h.Fatal(err)
	}
	text := inputText(h.asks, 3<<20)
	h.counts = wordCounts(text)
	if err := h.bed.HDFS.Load(h.ctx, h.write("input", text), "/chaos/input.txt", 1<<20, 1, 2, 3); err != nil {
		h.Fatal(err)
	}
	if err := h.cluster.AwaitLevels(h.ctx); err != nil {
		h.Fatal(err)
	}
	for _, n := range h.bed.Nodes {
		if err := startWatch(h.ctx, n); err != nil {
			h.Fatal(err)
		}
	}
	if err := h.submitMissing(); err != nil {
		h.Fatal(err)
	}
}

func (h *chaos) write(name, text string) string {
	h.Helper()
	path := filepath.Join(h.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		h.Fatal(err)
	}
	return path
}

// inject injects faults that meet, the first of them with the given number, while jobs are submitted and tasks suspended,
// and ends them. A machine that had one may still come back as this returns; the coordinators answer.
func (h *chaos) inject(first int, all []injection) {
	h.Helper()
	var what []string
	for _, f := range all {
		what = append(what, f.what)
	}
	h.doing = fmt.Sprintf("at fault %d, %s", first, strings.Join(what, ", "))
	for k := range h.bed.Nodes {
		if err := h.startBooted(k+1, false); err != nil {
			h.Fatal(err)
		}
	}
	for _, v := range h.cluster.Servers() { // one may end a moment after its disk was emptied
		if ended, err := v.Restart(); err != nil {
			h.Fatal(err)
		} else if ended {
			h.Logf("  %s had ended, and is started again", v.ID)
		}
	}
	for _, f := range all {
		for _, k := range f.machines {
			h.awaitMachine(k)
		}
	}
	ready := time.Now()
	live, load, agreed := slices.Clone(h.jobs), make(chan error, 1), make(chan bool, 1)
	var wanted *suspension
	if all[0].plan.when == "suspension" {
		wanted = h.runningTask()
	}
	go func() { load <- h.load(all[0].plan.when, wanted, agreed) }()
	moment := h.awaitMoment(all[0].plan, live, agreed)
	for i, f := range all {
		h.Logf("fault %d: %s for %s%s", first+i, f.what, f.plan.length.Round(time.Second), moment)
		h.run.Faults[f.kind]++
		moment = fmt.Sprintf(", with fault %d", first)
	}
	meeting := time.Now()
	h.beginAndEnd(all)
	ended := time.Now()
	h.waitUntil(acceptLimit, "an answer after: "+strings.Join(what, ", "), func(ctx context.Context) error {
		r, err := h.cluster.Drover(ctx, "status")
		return errors.Join(err, r.Err())
	})
	if err := <-load; err != nil {
		h.Fatalf("during: %s: %v", strings.Join(what, ", "), err)
	}
	for _, f := range all { // jobs that were submitted meanwhile have met it
		if f.lossy {
			h.lossy++
		}
	}
	answered := time.Now()
	h.readWatches()
	h.collect()
	h.Logf("  until it began %.1f s, from the first's beginning to the last's end %.1f s, answers %.1f s, checks %.1f s; free MiB: %s", meeting.Sub(ready).Seconds(),
		ended.Sub(meeting).Seconds(), answered.Sub(ended).Seconds(), time.Since(answered).Seconds(), h.diskLeft())
}

// beginAndEnd begins each fault its lead after the one before, the first at once, and ends each after its length.
func (h *chaos) beginAndEnd(all []injection) {
	h.Helper()
	type step struct {
		at   time.Duration
		what string
		do   func() error
	}
	var (
		steps []step
		begin time.Duration
	)
	for i, f := range all {
		if i > 0 {
			begin += f.plan.lead
		}
		steps = append(steps, step{begin, f.what, f.begin}, step{begin + f.plan.length, "the end of " + f.what, f.end})
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	for began, i := time.Now(), 0; i < len(steps); i++ {
		select {
		case <-time.After(steps[i].at - time.Since(began)):
		case <-h.ctx.Done():
		}
		if err := steps[i].do(); err != nil {
			h.Fatalf("%s: %v", steps[i].what, err)
		}
	}
}

// awaitMachine waits until the node of machine k is up. Where it is in quarantine for the faults that it had, this ends that,
// as an operator would.
func (h *chaos) awaitMachine(k int) {
	h.Helper()
	if err := h.startBooted(k, true); err != nil {
		h.Fatal(err)
	}
	name := h.bed.Nodes[k-1].Name
	h.waitUntil(backLimit, name+" up", func(ctx context.Context) error {
		if why, err := h.cluster.RestartNode(ctx, k); err != nil {
			h.Fatal(err)
		} else if why != "" {
			h.Logf("  it is started again: %s", why)
		}
		var list struct {
			Nodes []struct {
				State string
				Info  struct{ Name string }
			}
		}
		if err := h.cluster.JSON(ctx, &list, "node", "list", "-json"); err != nil {
			return err
		}
		for _, n := range list.Nodes {
			if n.Info.Name != name {
				continue
			}
			switch n.State {
			case "up":
				return nil
			case "quarantined", "probation":
				r, err := h.cluster.Drover(ctx, "node", "drain", "-off", name)
				return errors.Join(fmt.Errorf("%s was in %s", name, n.State), err, r.Err())
			}
		}
		return fmt.Errorf("%+v", list.Nodes)
	})
}

// awaitMoment waits for the moment of a fault, and says which it is. A suspension that was refused by then is none; agreed
// says so of one that was answered.
func (h *chaos) awaitMoment(p plan, live []*job, agreed <-chan bool) string {
	if p.when == "" {
		return ""
	}
	if p.when == "commit" {
		ctx, cancel := context.WithTimeout(h.ctx, momentLimit)
		defer cancel()
		if testbed.WaitFor(ctx, momentLimit, "a commit", func(ctx context.Context) error { return h.someCommit(ctx, live) }) != nil {
			return ""
		}
	} else {
		select {
		case <-time.After(p.lead):
		case <-h.ctx.Done():
		}
	}
	if p.when == "suspension" && !isUnderWay(agreed) {
		return ""
	}
	h.run.AtOnce[p.when]++
	return ", with a " + p.when + " under way"
}

// isUnderWay reports whether a request was not refused: it was agreed to, or has no answer yet.
func isUnderWay(agreed <-chan bool) bool {
	select {
	case ok := <-agreed:
		return ok
	default:
		return true
	}
}

// someCommit returns nil if the result of a job is being published.
func (h *chaos) someCommit(ctx context.Context, live []*job) error {
	for _, j := range live {
		if !j.output {
			continue
		}
		if state, err := h.state(ctx, j.name); err != nil || state == "JOB_STATE_COMMITTING" {
			return err
		}
	}
	return errors.New("no job commits")
}

// load submits jobs and asks for suspensions, the latter first if one is to be under way: then agreed gets whether the
// cluster agreed to it.
func (h *chaos) load(when string, wanted *suspension, agreed chan<- bool) error {
	if when == "suspension" {
		h.suspendOrResume(wanted, agreed)
		return h.submitMissing()
	}
	if when == "submission" {
		if err := h.submit(&jobKinds[h.asks.IntN(len(jobKinds))]); err != nil {
			return err
		}
	} else if err := h.submitMissing(); err != nil {
		return err
	}
	h.suspendOrResume(nil, agreed)
	return nil
}

// submitMissing keeps one job of each kind live.
func (h *chaos) submitMissing() error {
	for i := range jobKinds {
		kind := &jobKinds[i]
		if slices.ContainsFunc(h.jobs, func(j *job) bool { return j.jobKind == kind }) {
			continue
		}
		if err := h.submit(kind); err != nil {
			return err
		}
	}
	return nil
}

// submit submits a job until it is accepted. A command that failed may have had its effect: the next one
// has the same key, so that the job is not there twice.
func (h *chaos) submit(kind *jobKind) error {
	j := &job{jobKind: kind, name: fmt.Sprintf("%s-%d", kind.prefix, h.run.Accepted), lossyBefore: h.lossy}
	file := filepath.Join(h.dir, j.name+".hcl")
	if err := os.WriteFile(file, []byte(kind.text(j.name, h.bed.File.Images["busybox"])), 0o600); err != nil {
		return err
	}
	err := testbed.WaitFor(h.ctx, acceptLimit, "acceptance of "+j.name, func(ctx context.Context) error {
		var accepted struct{ Job json.Number }
		err := h.cluster.JSON(ctx, &accepted, "job", "run", "-detach", "-json", "-idempotency-key", j.name, file)
		j.number = accepted.Job.String()
		return err
	})
	if err != nil {
		return err
	}
	h.watch.accept(j.number, j.exclusive)
	h.jobs, h.accepted = append(h.jobs, j), append(h.accepted, j.name)
	h.run.Accepted++
	return nil
}

// suspension is a task that is to be suspended.
type suspension struct {
	job  *job
	task int
}

// randomTask draws a task, which may not run; nil without a job.
func (h *chaos) randomTask() *suspension {
	if len(h.jobs) == 0 {
		return nil
	}
	j := h.jobs[h.asks.IntN(len(h.jobs))]
	return &suspension{j, h.asks.IntN(j.tasks)}
}

// taskList is the part of `drover task status -json JOB` that tells which tasks run.
type taskList struct {
	Tasks []struct {
		Stage    string
		Task     int
		Attempts []struct {
			Level struct{ Level, Target string }
			Seen  struct{ Phase string }
		}
	}
}

// running returns the tasks of a stage that run and are not suspended.
func (l taskList) running(stage string) (tasks []int) {
	none := func(level string) bool { return level == "" || level == "LEVEL_UNSPECIFIED" }
	for _, t := range l.Tasks {
		if t.Stage != stage || len(t.Attempts) == 0 {
			continue
		}
		a := t.Attempts[len(t.Attempts)-1]
		if a.Seen.Phase == "PHASE_RUNNING" && (none(a.Level.Level) || a.Level.Level == "LEVEL_RUNNING") && none(a.Level.Target) {
			tasks = append(tasks, t.Task)
		}
	}
	return tasks
}

// runningTask draws a task that runs, if there is one.
func (h *chaos) runningTask() *suspension {
	var all []*suspension
	for _, j := range h.jobs {
		ctx, cancel := context.WithTimeout(h.ctx, requestTime)
		var list taskList
		err := h.cluster.JSON(ctx, &list, "task", "status", "-json", j.name)
		cancel()
		if err != nil {
			h.Logf("  tasks of %s: %v", j.name, err)
			continue
		}
		for _, k := range list.running(j.stage) {
			all = append(all, &suspension{j, k})
		}
	}
	if len(all) == 0 {
		return h.randomTask()
	}
	return all[h.asks.IntN(len(all))]
}

// suspendOrResume asks for a random level of a task, a random one without a wanted one, and resumes those of the job that
// has lived longest. That it is refused, for example of a task that has not started, is no failure. agreed gets whether
// it was not.
func (h *chaos) suspendOrResume(wanted *suspension, agreed chan<- bool) {
	if wanted == nil {
		wanted = h.randomTask()
	}
	if wanted == nil {
		agreed <- false
		return
	}
	j, level := wanted.job, []string{"frozen", "swapped", "checkpointed"}[h.asks.IntN(3)]
	h.watch.suspend(j.task(wanted.task))
	ok := h.ask("task", "suspend", "-level", level, j.name, fmt.Sprintf("%s/%d", j.stage, wanted.task))
	if agreed <- ok; ok {
		h.run.Suspensions++
	}
	for i := range h.jobs[0].tasks {
		h.ask("task", "resume", h.jobs[0].name, fmt.Sprintf("%s/%d", h.jobs[0].stage, i))
	}
}

// ask runs a command, and reports whether it was agreed to.
func (h *chaos) ask(args ...string) bool {
	ctx, cancel := context.WithTimeout(h.ctx, requestTime)
	defer cancel()
	r, err := h.cluster.Drover(ctx, args...)
	h.Logf("  %s: code %d", strings.Join(args, " "), r.ExitCode)
	return err == nil && r.ExitCode == 0
}

// state returns the state of a job.
func (h *chaos) state(ctx context.Context, name string) (string, error) {
	var st struct{ Job struct{ State string } }
	err := h.cluster.JSON(ctx, &st, "job", "status", "-json", name)
	return st.Job.State, err
}

// collect checks the jobs that have ended.
func (h *chaos) collect() {
	h.Helper()
	var live []*job
	for _, j := range h.jobs {
		state, err := h.state(h.ctx, j.name)
		switch {
		case err != nil:
			h.Fatalf("the job %s, which was accepted, is lost: %v", j.name, err)
		case state == "JOB_STATE_SUCCEEDED":
			h.checkEnded(j)
		case state == "JOB_STATE_FAILED" || state == "JOB_STATE_STOPPED":
			h.Errorf("%s is %s\n%s", j.name, state, h.drover("job", "status", j.name).Stdout)
		default:
			live = append(live, j)
		}
	}
	h.jobs = live
	h.checkLogs()
}

// checkEnded checks what a job that succeeded has left.
func (h *chaos) checkEnded(j *job) {
	h.Helper()
	h.run.Ended++
	for k := range j.tasks {
		if j.exclusive {
			h.alone = append(h.alone, j.task(k))
		}
	}
	h.Logf("  %s has succeeded", j.name)
	if j.output {
		h.checkOutput(j)
		return
	}
	for k := range j.tasks {
		h.logs = append(h.logs, &taskLog{job: j, task: k})
	}
}

// finish resumes what is suspended and waits for the end of a job.
func (h *chaos) finish(j *job) {
	h.Helper()
	h.waitUntil(jobLimit, "the end of "+j.name, func(ctx context.Context) error {
		for i := range j.tasks {
			if _, err := h.cluster.Drover(ctx, "task", "resume", j.name, fmt.Sprintf("%s/%d", j.stage, i)); err != nil {
				return err
			}
		}
		state, err := h.state(ctx, j.name)
		if err == nil && state != "JOB_STATE_SUCCEEDED" {
			err = fmt.Errorf("it is %s", state)
		}
		return err
	})
	h.checkEnded(j)
}

// awaitClean waits until nothing is left on the machines and the coordinators.
func (h *chaos) awaitClean() {
	h.Helper()
	check := func(name string, left []string, err error) error {
		if err != nil {
			return err
		}
		h.run.Leftovers = len(left)
		if len(left) > 0 {
			return fmt.Errorf("%s has %s", name, strings.Join(left, "; "))
		}
		return nil
	}
	h.waitUntil(cleanLimit, "machines and coordinators without leftovers", func(ctx context.Context) error {
		for _, list := range []func(context.Context, int) ([]string, error){h.cluster.Folders, h.cluster.Leftovers} {
			for k, n := range h.bed.Nodes {
				left, err := list(ctx, k+1)
				if err := check(n.Name, left, err); err != nil {
					return err
				}
			}
		}
		for _, v := range h.cluster.Servers() {
			left, err := v.Leftovers()
			if err := check(v.ID, left, err); err != nil {
				return err
			}
		}
		return nil
	})
}

func (h *chaos) logDaemons() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, v := range h.cluster.Servers() {
		h.Logf("%s:\n%s", v.ID, lastLines(v.Log(), 25))
	}
	for k, n := range h.bed.Nodes {
		if state, err := n.State(ctx); err == nil && state == "running" {
			h.Logf("n%d:\n%s", k+1, lastLines(h.cluster.NodeLog(ctx, k+1), 25))
			if used, err := n.Sh(ctx, "df /data; du -xm --max-depth=4 /data | sort -n | tail -25"); err == nil {
				h.Logf("MiB on the disk of n%d:\n%s", k+1, used)
			}
		}
	}
}

func lastLines(s string, n int) string {
	l := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(l[max(0, len(l)-n):], "\n")
}
