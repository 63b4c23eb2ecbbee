package policytest

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

var update = flag.Bool("update", false, "record the output of the scripts in them")

// scorer is a policy that can print the numbers that it would decide by now, one per line, for
// scripts.
type scorer interface {
	Scores(s *scheduler.State, now scheduler.Time) []string
}

// RunScripts runs each script that matches the pattern (for example "testdata/drf_*.txt") and
// compares its output with the output recorded below its commands. With -update it records the
// new output instead.
//
// A script consists of blocks separated by empty lines: commands, a line "----", their output.
// Lines that start with # are comments. The commands, with defaults in brackets:
//
//	policy NAME [param=value…]            must come first
//	nodes N cpu= mem= io= [path=/r1]      cores, GiB, MiB/s; with swap= so many GiB
//	    [swap=]                           of swap, and no checkpoints
//	tenant NAME [weight=1] [below=NAME] [cap-cpu=] [cap-mem=] [cap-io=]
//	job NAME TENANT tasks= cpu= mem= io= [priority=low] [deadline=90s]
//	    [estimate=10s] [bound=] [size=] [kind=group] [on=0,1;2 a task's nodes]
//	    [bytes=MiB] [accepted] [project=N]
//	project N TENANT [jobs=1] [priority=low]
//	place JOB TASK NODE                   place a task without the policy
//	start                                 all placed attempts run
//	progress JOB TASK FRACTION
//	end JOB TASK [succeeded|failed|infra|killed|lost]
//	suspend JOB TASK LEVEL                suspend a task without the policy
//	suspended | resumed                   complete all suspensions, all resumes
//	endjob JOB                            remove the job
//	lost NODE | up NODE | drain NODE | undrain NODE
//	maintain NODE from=30s for=1m         the node will be away for that time
//	avoid JOB [NODE…]                     the job avoids these nodes
//	pass 10s                              advance the clock
//	cycle [MAX]                           one cycle: actions, policy states, reasons
//	scores                                the policy's Scores
//	show                                  use of nodes and tenants
//
// Commands refer to jobs and nodes by name, a printed decision by number; job numbers count
// from 1 in order of submission.
func RunScripts(t *testing.T, pattern string, newPolicy func(name string, params map[string]string) (scheduler.Policy, error)) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no script matches %s: %v", pattern, err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			raw, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(raw), newPolicy)
			if got == string(raw) {
				return
			}
			if *update {
				if err := os.WriteFile(f, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("%s: the output differs (run with -update to record it):\n%s", f, firstDifference(string(raw), got))
		})
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d\nwant %s\ngot  %s", i+1, w[i], g[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(g), len(w))
}

// script is the state of a running script.
type script struct {
	t         *testing.T
	w         *schedtest.World
	newPolicy func(string, map[string]string) (scheduler.Policy, error)
	policy    scheduler.Policy
	jobs      map[string]scheduler.JobID
	out       bytes.Buffer
}

func runScript(t *testing.T, text string, newPolicy func(string, map[string]string) (scheduler.Policy, error)) string {
	s := &script{t: t, w: schedtest.New(t), newPolicy: newPolicy, jobs: map[string]scheduler.JobID{}}
	var out strings.Builder
	for i, block := range strings.Split(strings.TrimRight(text, "\n"), "\n\n") {
		commands, _, _ := strings.Cut(block+"\n", "----\n")
		if i > 0 {
			out.WriteString("\n")
		}
		s.out.Reset()
		for _, line := range strings.Split(strings.TrimRight(commands, "\n"), "\n") {
			if strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#") {
				s.runCommand(line)
			}
		}
		out.WriteString(strings.TrimRight(commands, "\n") + "\n")
		if s.out.Len() > 0 {
			out.WriteString("----\n" + s.out.String())
		}
	}
	return out.String()
}

// args is a command's words and its key=value options.
type args struct {
	s       *script
	line    string
	words   []string
	options map[string]string
}

func (a *args) word(i int) string {
	if i >= len(a.words) {
		a.s.t.Fatalf("%q: a word is missing", a.line)
	}
	return a.words[i]
}

func (a *args) number(key string, def float64) float64 {
	v, ok := a.options[key]
	if !ok {
		return def
	}
	f, err := strconv.ParseFloat(v, 64)
	if err != nil {
		a.s.t.Fatalf("%q: %s: %v", a.line, key, err)
	}
	return f
}

func (a *args) duration(key string) time.Duration {
	v, ok := a.options[key]
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		a.s.t.Fatalf("%q: %s: %v", a.line, key, err)
	}
	return d
}

func (a *args) text(key, def string) string {
	if v, ok := a.options[key]; ok {
		return v
	}
	return def
}

func (a *args) resources() scheduler.Resources {
	return schedtest.R(a.number("cpu", 0), a.number("mem", 0), a.number("io", 0))
}

func (a *args) intWord(i int) int {
	n, err := strconv.Atoi(a.word(i))
	if err != nil {
		a.s.t.Fatalf("%q: %v", a.line, err)
	}
	return n
}

func (s *script) parse(line string) *args {
	a := &args{s: s, line: line, options: map[string]string{}}
	for _, w := range strings.Fields(line) {
		if k, v, ok := strings.Cut(w, "="); ok {
			a.options[k] = v
		} else {
			a.words = append(a.words, w)
		}
	}
	return a
}

// reportRefusal prints the error of a command that State refused.
func (s *script) reportRefusal(err error) {
	if err != nil {
		fmt.Fprintf(&s.out, "refused: %v\n", err)
	}
}

func (s *script) runCommand(line string) {
	s.t.Helper()
	a := s.parse(line)
	switch a.word(0) {
	case "policy":
		p, err := s.newPolicy(a.word(1), a.options)
		if err != nil {
			s.t.Fatalf("%q: %v", line, err)
		}
		s.policy = p
	case "nodes":
		s.nodes(a)
	case "tenant":
		s.tenant(a)
	case "job":
		s.job(a)
	case "project":
		s.reportRefusal(s.w.State.Events().PutProject(scheduler.ProjectSpec{ID: scheduler.ProjectID(a.intWord(1)), Name: a.word(1), Submitted: s.w.Now,
			Tenant: s.w.Tenant(a.word(2)).Spec.ID, Priority: priority(a), Jobs: int32(a.number("jobs", 1))}))
	case "lost":
		s.reportRefusal(s.w.State.Events().NodeLost(s.node(a.word(1)), s.w.Now))
	case "up":
		s.reportRefusal(s.w.State.Events().NodeUp(s.node(a.word(1))))
	case "drain":
		s.reportRefusal(s.w.State.Events().SetDrain(s.node(a.word(1)), true))
	case "maintain":
		s.maintain(a)
	case "undrain":
		s.reportRefusal(s.w.State.Events().SetDrain(s.node(a.word(1)), false))
	case "avoid":
		var nodes []scheduler.NodeID
		for i := range a.words[2:] {
			nodes = append(nodes, s.node(a.word(i+2)))
		}
		s.reportRefusal(s.w.State.Events().SetAvoided(s.jobID(a.word(1)), nodes))
	case "pass":
		d, err := time.ParseDuration(a.word(1))
		if err != nil {
			s.t.Fatalf("%q: %v", line, err)
		}
		s.w.Advance(d)
	case "cycle":
		s.cycle(a)
	case "scores":
		if p, ok := s.policy.(scorer); ok {
			for _, l := range p.Scores(s.w.State, s.w.Now) {
				fmt.Fprintln(&s.out, l)
			}
		}
	case "show":
		s.show()
	default:
		s.runAttemptCommand(a)
	}
}

// maintain orders a window of a node: maintain NODE from=30s for=1m.
func (s *script) maintain(a *args) {
	n := s.w.State.Node(s.node(a.word(1)))
	from := s.w.Now.Add(a.duration("from"))
	list := append(slices.Clone(n.Spec.Windows), scheduler.Window{From: from, To: from.Add(a.duration("for"))})
	s.reportRefusal(s.w.State.Events().SetWindows(n.Spec.ID, list))
}

// runAttemptCommand runs the commands about attempts.
func (s *script) runAttemptCommand(a *args) {
	switch a.word(0) {
	case "start":
		s.w.Start()
	case "place":
		s.w.Place(s.task(a), s.node(a.word(3)))
	case "progress":
		progress, err := strconv.ParseFloat(a.word(3), 64)
		if err != nil {
			s.t.Fatalf("%q: %v", a.line, err)
		}
		for x := range s.w.State.Attempts().Of(s.w.State.Stage(s.task(a).StageID()), s.task(a).Index) {
			s.reportRefusal(s.w.State.Events().AttemptProgress(x.ID, x.Run, progress, 0))
		}
	case "end":
		outcomes := map[string]scheduler.Outcome{"succeeded": scheduler.OutcomeSucceeded, "failed": scheduler.OutcomeFailedUser,
			"infra": scheduler.OutcomeFailedInfra, "killed": scheduler.OutcomeKilled, "lost": scheduler.OutcomeLost}
		o := scheduler.OutcomeSucceeded
		if len(a.words) > 3 {
			o = outcomes[a.word(3)]
		}
		id := s.task(a)
		ended := false
		for _, x := range s.w.Attempts() {
			if x.ID.TaskID == id && !ended {
				s.reportRefusal(s.w.State.Events().AttemptEnded(x.ID, x.Run, o, s.w.Now))
				ended = true
			}
		}
		if !ended {
			fmt.Fprintf(&s.out, "refused: task %s has no live attempt\n", id)
		}
	case "endjob":
		s.reportRefusal(s.w.State.Events().EndJob(s.jobID(a.word(1))))
	case "suspend":
		s.suspend(a)
	case "suspended", "resumed":
		for _, x := range s.w.Attempts() {
			switch {
			case a.word(0) == "suspended" && x.Phase == scheduler.AttemptSuspending:
				has := scheduler.Footprint{Memory: x.Demand[scheduler.Memory]}
				switch x.Target {
				case scheduler.LevelSwapped:
					has.Swap = has.Memory
				case scheduler.LevelCheckpointed:
					has.Image = has.Memory
				}
				s.reportRefusal(s.w.State.Events().AttemptSuspended(x.ID, x.Run, x.Target, has, s.w.Now))
			case a.word(0) == "resumed" && x.Phase == scheduler.AttemptResuming:
				s.reportRefusal(s.w.State.Events().AttemptResumed(x.ID, x.Run, s.w.Now))
			}
		}
	default:
		s.t.Fatalf("%q: unknown command", a.line)
	}
}

// suspend suspends the live attempts of a task: suspend JOB TASK frozen.
func (s *script) suspend(a *args) {
	levels := map[string]scheduler.Level{}
	for _, l := range []scheduler.Level{scheduler.LevelFrozen, scheduler.LevelSwapped, scheduler.LevelCheckpointed} {
		levels[l.String()] = l
	}
	id := s.task(a)
	for x := range s.w.State.Attempts().Of(s.w.State.Stage(id.StageID()), id.Index) {
		act := scheduler.Action{Kind: scheduler.ActSuspend, Task: x.ID.TaskID, Attempt: x.ID.Attempt, Run: x.Run, Level: levels[a.word(3)]}
		s.reportRefusal(s.w.State.Apply(&act, s.w.Now))
	}
}

// nodes adds nodes; with swap they cannot make checkpoints.
func (s *script) nodes(a *args) {
	if _, swap := a.options["swap"]; !swap {
		s.w.AddRack(a.text("path", "/r1"), a.intWord(1), a.resources())
		return
	}
	for range a.intWord(1) {
		spec := schedtest.NodeSpec(scheduler.NodeID(len(s.w.State.Nodes())), a.text("path", "/r1"), a.resources())
		spec.Swap = int64(a.number("swap", 0)) * schedtest.GiB
		spec.Levels = scheduler.Levels(scheduler.LevelRunning, scheduler.LevelFrozen, scheduler.LevelSwapped)
		s.reportRefusal(s.w.State.Events().AddNode(spec))
	}
}

func (s *script) tenant(a *args) {
	spec := scheduler.TenantSpec{ID: scheduler.TenantID(len(s.w.State.Tenants())), Name: a.word(1), Parent: scheduler.NoTenant, Weight: a.number("weight", 1)}
	if up, ok := a.options["below"]; ok {
		spec.Parent = s.w.Tenant(up).Spec.ID
	}
	spec.Caps.Total = scheduler.Limit(schedtest.R(a.number("cap-cpu", 0), a.number("cap-mem", 0), a.number("cap-io", 0)))
	s.reportRefusal(s.w.State.Events().PutTenant(spec))
}

func priority(a *args) scheduler.Priority {
	if a.options["priority"] == "high" {
		return scheduler.PriorityHigh
	}
	return scheduler.PriorityLow
}

func (s *script) stage(a *args) scheduler.StageSpec {
	kinds := map[string]scheduler.StageKind{"group": scheduler.KindGroup, "map": scheduler.KindMap, "reduce": scheduler.KindReduce}
	g := scheduler.StageSpec{Name: a.text("name", "main"), Kind: kinds[a.text("kind", "group")], Tasks: int32(a.number("tasks", 1)),
		Demand: a.resources(), Estimate: a.duration("estimate"), MaxParallel: int32(a.number("parallel", 0)), SlowStart: a.number("slow-start", 0)}
	if on, ok := a.options["on"]; ok {
		var lists [][]scheduler.NodeID
		for _, task := range strings.Split(on, ";") {
			var list []scheduler.NodeID
			for _, n := range strings.FieldsFunc(task, func(r rune) bool { return r == ',' }) {
				list = append(list, s.node(n))
			}
			lists = append(lists, list)
		}
		g.Inputs = schedtest.Inputs(int64(a.number("bytes", 128)*float64(schedtest.MiB)), lists...)
	}
	return g
}

func (s *script) job(a *args) {
	accepted := false
	for _, w := range a.words[3:] {
		accepted = accepted || w == "accepted"
	}
	s.jobs[a.word(1)] = s.w.SubmitStages(a.word(2), []scheduler.StageSpec{s.stage(a)}, func(j *scheduler.JobSpec) {
		j.Name, j.Priority, j.Estimate, j.Bound, j.Size = a.word(1), priority(a), a.duration("estimate"), a.duration("bound"), a.number("size", 0)
		j.AcceptedByQuote, j.Project = accepted, scheduler.ProjectID(a.number("project", 0))
		if d := a.duration("deadline"); d > 0 {
			j.Deadline = s.w.Now.Add(d)
		}
	})
}

func (s *script) jobID(name string) scheduler.JobID {
	id, ok := s.jobs[name]
	if !ok {
		s.t.Fatalf("no job %q", name)
	}
	return id
}

// task parses JOB TASK or JOB STAGE.TASK.
func (s *script) task(a *args) scheduler.TaskID {
	id := scheduler.TaskID{Job: s.jobID(a.word(1))}
	stage, index, ok := strings.Cut(a.word(2), ".")
	if !ok {
		stage, index = "0", a.word(2)
	}
	g, err1 := strconv.Atoi(stage)
	i, err2 := strconv.Atoi(index)
	if err1 != nil || err2 != nil {
		s.t.Fatalf("%q: which task?", a.line)
	}
	id.Stage, id.Index = int32(g), int32(i)
	return id
}

// node returns the node with this name or number.
func (s *script) node(name string) scheduler.NodeID {
	if i := slices.IndexFunc(s.w.State.Nodes(), func(n *scheduler.Node) bool { return n.Spec.Name == name }); i >= 0 {
		return scheduler.NodeID(i)
	}
	id, err := strconv.Atoi(name)
	if err != nil {
		s.t.Fatalf("no node %q", name)
	}
	return scheduler.NodeID(id)
}

// cycle runs one cycle and proves its reasons, as Run does.
func (s *script) cycle(a *args) {
	limit := 10_000
	if len(a.words) > 1 {
		limit = a.intWord(1)
	}
	d, err := scheduler.Cycle(s.w.State, s.policy, s.w.Now, limit, scheduler.AcceptAll)
	if err != nil {
		s.t.Fatalf("%q: %v", a.line, err)
	}
	if err := ProveAll(s.w.State, &d, s.w.Now, limit); err != nil {
		s.t.Fatalf("%q: %v\n%s", a.line, err, d.String())
	}
	if s.out.WriteString(d.String()); len(d.String()) == 0 {
		s.out.WriteString("nothing\n")
	}
}

func (s *script) show() {
	for _, n := range s.w.State.Nodes() {
		fmt.Fprintf(&s.out, "%s free %v\n", n.Spec.Name, n.Free)
	}
	for _, t := range s.w.State.Tenants() {
		fmt.Fprintf(&s.out, "%s uses %v, dominant share %.4f\n", t.Spec.Name, t.Used, t.Used.DominantShare(s.w.State.Cluster().Total()))
	}
}
