package preempt

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/client"
	"github.com/drover-run/drover/integration/cluster"
	"github.com/drover-run/drover/integration/testbed"
)

// Mode is how the scheduler preempts the maps.
type Mode string

// The modes. Alone runs the maps without deadline jobs, for comparison.
const (
	Alone   Mode = "alone"
	Suspend Mode = "suspend"
	Kill    Mode = "kill"
	None    Mode = "none"
)

// Scenario configures the scenario.
type Scenario struct {
	Testbed *testbed.Bed
	Cluster *cluster.Cluster
	Dir     string // folder for job files
	Tenant  string

	Maps            int           // number of low-priority maps, each with one block of text; they fill the machines
	MapSeconds      int           // minimum duration of a map
	Jobs            int           // number of deadline jobs, with one task each
	ArrivalInterval time.Duration // between deadline jobs
	Deadline        time.Duration // of each job, from its arrival
	Logf            func(format string, args ...any)
}

// Outcome is the result of one run of the scenario.
type Outcome struct {
	Mode           Mode
	Jobs           int
	OnTime         int
	EndOrder       []int           // the deadline jobs in the order of their ends
	durations      []time.Duration // of each deadline job from its arrival to its end
	Suspends       int64           // of maps
	Kills          int64
	PreservedCPU   time.Duration // CPU time of suspended maps that was not lost
	LostCPU        time.Duration
	Makespan       time.Duration // from the maps' submission to the end of all jobs
	OutputDigest   string        // SHA-256 over the maps' result files
	ResultCorrect  bool          // the result has each line of the text exactly once
	FailedAttempts int
}

const blockBytes = 1 << 20

// inputPath is the path of the text in HDFS.
const inputPath = "/preempt/text"

// wantResult returns the correct result of the maps, with its lines in order.
func (s *Scenario) wantResult() string {
	var b strings.Builder
	for i, l := range strings.Split(s.inputText(), "\n") {
		if l != "" {
			fmt.Fprintf(&b, "%08d\t%d\n", i, len(l))
		}
	}
	return b.String()
}

func (s *Scenario) inputText() string {
	var b strings.Builder
	for i := 0; b.Len() < s.Maps*blockBytes; i++ {
		fmt.Fprintf(&b, "%08d some words to be read and written\n", i)
	}
	return b.String()[:s.Maps*blockBytes]
}

// Load writes the text to HDFS: numbered lines, so that a result shows missing and duplicate lines.
func (s *Scenario) Load(ctx context.Context) error {
	local := filepath.Join(s.Dir, "text")
	if err := os.WriteFile(local, []byte(s.inputText()), 0o644); err != nil {
		return err
	}
	places := make([]int, len(s.Testbed.Nodes))
	for i := range places {
		places[i] = i + 1
	}
	return s.Testbed.HDFS.Load(ctx, local, inputPath, blockBytes, places...)
}

// linesPerBlock is the number of lines in a block; each has 43 bytes.
const linesPerBlock = blockBytes / 43

func (s *Scenario) mapJob(name string) string {
	return fmt.Sprintf(`job %q {
  tenant   = %q
  priority = "low"
  input  { path = "hdfs://%s" }
  output { path = "hdfs:///preempt/%s" }
  image = "oci-archive:%s"
  stage "map" { kind = "map"  disk = "64MiB"
    command = ["awk", "{ print $1 \"\t\" length($0); if (NR %% %d == 0) system(\"sleep 1\") }"]
    resources { cpu = "250m"  memory = "64MiB"  io = "2MiB/s" } }
}
`, name, s.Tenant, inputPath, name, s.Testbed.File.Images["busybox"], max(1, linesPerBlock/s.MapSeconds))
}

func (s *Scenario) deadlineJob(name string, at time.Time) string {
	return fmt.Sprintf(`job %q {
  tenant        = %q
  priority      = "high"
  deadline      = %q
  runtime_bound = "15s"
  image = "oci-archive:%s"
  stage "s" { command = ["sleep", "4"]  disk = "4MiB"
    resources { cpu = "250m"  memory = "32MiB"  io = "1MiB/s" } }
}
`, name, s.Tenant, at.UTC().Format(time.RFC3339), s.Testbed.File.Images["busybox"])
}

// Run runs the scenario in one mode; run distinguishes runs of the same mode.
func (s *Scenario) Run(ctx context.Context, mode Mode, run int) (*Outcome, error) {
	o := &Outcome{Mode: mode}
	if mode != Alone {
		if _, err := s.runDrover(ctx, "scheduler", "set", "-set", "preempt="+string(mode), "3dsf"); err != nil {
			return nil, err
		}
	}
	name := fmt.Sprintf("maps-%s-%d", mode, run)
	if err := s.submit(ctx, name, s.mapJob(name)); err != nil {
		return nil, err
	}
	var jobs []string
	if mode != Alone {
		if err := s.awaitFullMachines(ctx, name); err != nil {
			return nil, err
		}
		s.Logf("%s: every machine is full; %d deadline jobs arrive, one each %s", mode, s.Jobs, s.ArrivalInterval)
		var err error
		if jobs, err = s.submitDeadlineJobs(ctx, mode, run); err != nil {
			return nil, err
		}
	}
	if _, err := s.runDrover(ctx, append([]string{"job", "wait"}, name)...); err != nil {
		return nil, err
	}
	for _, j := range jobs {
		if _, err := s.Cluster.Drover(ctx, "job", "wait", j); err != nil {
			return nil, err
		}
	}
	return o, s.collectOutcome(ctx, o, name, jobs)
}

func (s *Scenario) runDrover(ctx context.Context, args ...string) (cluster.Result, error) {
	r, err := s.Cluster.Drover(ctx, args...)
	return r, errors.Join(err, r.Err())
}

func (s *Scenario) submit(ctx context.Context, name, text string) error {
	file := filepath.Join(s.Dir, name+".hcl")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	_, err := s.runDrover(ctx, "job", "run", "-detach", file)
	return err
}

// awaitFullMachines waits until the placed maps all run and no further map has been placed.
func (s *Scenario) awaitFullMachines(ctx context.Context, name string) error {
	before := 0
	return testbed.WaitFor(ctx, 2*time.Minute, "full machines", func(ctx context.Context) error {
		var tasks struct {
			Tasks []struct {
				Attempts []struct{ Seen struct{ Phase string } }
			}
		}
		if err := s.Cluster.JSON(ctx, &tasks, "task", "status", "-json", name); err != nil {
			return err
		}
		placed, running := 0, 0
		for _, t := range tasks.Tasks {
			for _, a := range t.Attempts {
				placed++
				if strings.HasSuffix(a.Seen.Phase, "RUNNING") {
					running++
				}
			}
		}
		same := placed == before
		before = placed
		if running == 0 || running < placed || !same {
			return fmt.Errorf("%d maps are placed, %d run", placed, running)
		}
		return nil
	})
}

// submitDeadlineJobs submits the deadline jobs at their times and returns their names.
func (s *Scenario) submitDeadlineJobs(ctx context.Context, mode Mode, run int) ([]string, error) {
	var jobs []string
	start := time.Now()
	for i := range s.Jobs {
		timer := time.NewTimer(time.Until(start.Add(time.Duration(i) * s.ArrivalInterval)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
		name := fmt.Sprintf("deadline-%s-%d-%d", mode, run, i)
		if err := s.submit(ctx, name, s.deadlineJob(name, time.Now().Add(s.Deadline))); err != nil {
			return nil, err
		}
		jobs = append(jobs, name)
	}
	return jobs, nil
}

// jobSummary is the part of `drover job status -json` that Outcome needs.
type jobSummary struct {
	Job struct {
		State       string
		SubmittedMS jsonInt64 `json:"submitted_ms"`
		EndedMS     jsonInt64 `json:"ended_ms"`
		DeadlineMS  jsonInt64 `json:"deadline_ms"`
	}
	Stages []struct {
		FailedAttempts int `json:"failed_attempts"`
	}
	Preempted struct {
		Suspends    jsonInt64
		Kills       jsonInt64
		PreservedMS jsonInt64 `json:"preserved_cpu_ms"`
		LostMS      jsonInt64 `json:"lost_cpu_ms"`
	}
}

// jsonInt64 is a 64-bit integer in -json, a number or quoted; absent it is 0.
type jsonInt64 int64

// UnmarshalJSON rejects anything but an integer: read as 0 it would count as a met deadline or as
// no lost work.
func (n *jsonInt64) UnmarshalJSON(b []byte) error {
	text := string(b)
	if len(b) >= 2 && b[0] == '"' && b[len(b)-1] == '"' {
		text = text[1 : len(text)-1]
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("%s is not an integer: %w", b, err)
	}
	*n = jsonInt64(v)
	return nil
}

// collectOutcome fills in the outcome of the jobs.
func (s *Scenario) collectOutcome(ctx context.Context, o *Outcome, name string, jobs []string) error {
	var m jobSummary
	if err := s.Cluster.JSON(ctx, &m, "job", "status", "-json", name); err != nil {
		return err
	}
	if !strings.HasSuffix(m.Job.State, "SUCCEEDED") {
		return fmt.Errorf("job %s is %s", name, m.Job.State)
	}
	if m.Job.SubmittedMS <= 0 || m.Job.EndedMS < m.Job.SubmittedMS {
		return fmt.Errorf("job %s: invalid times: submitted at %d, ended at %d", name, m.Job.SubmittedMS, m.Job.EndedMS)
	}
	last := m.Job.EndedMS
	o.Suspends, o.Kills = int64(m.Preempted.Suspends), int64(m.Preempted.Kills)
	o.PreservedCPU, o.LostCPU = time.Duration(m.Preempted.PreservedMS)*time.Millisecond, time.Duration(m.Preempted.LostMS)*time.Millisecond
	for _, g := range m.Stages {
		o.FailedAttempts += g.FailedAttempts
	}
	ends := make([]jsonInt64, len(jobs))
	for i, j := range jobs {
		var d jobSummary
		if err := s.Cluster.JSON(ctx, &d, "job", "status", "-json", j); err != nil {
			return err
		}
		if d.Job.DeadlineMS <= 0 || d.Job.EndedMS <= 0 {
			return fmt.Errorf("job %s: invalid times: deadline %d, ended at %d", j, d.Job.DeadlineMS, d.Job.EndedMS)
		}
		ends[i] = d.Job.EndedMS
		last = max(last, ends[i])
		o.Jobs++
		o.EndOrder = append(o.EndOrder, i)
		o.durations = append(o.durations, time.Duration(ends[i]-d.Job.SubmittedMS)*time.Millisecond)
		if strings.HasSuffix(d.Job.State, "SUCCEEDED") && ends[i] <= d.Job.DeadlineMS {
			o.OnTime++
		}
	}
	slices.SortStableFunc(o.EndOrder, func(a, b int) int { return cmp.Compare(ends[a], ends[b]) })
	o.Makespan = time.Duration(last-m.Job.SubmittedMS) * time.Millisecond
	var err error
	var text string
	o.OutputDigest, text, err = s.readResult(ctx, "/preempt/"+name)
	all := strings.SplitAfter(text, "\n")
	slices.Sort(all)
	o.ResultCorrect = strings.Join(all, "") == s.wantResult()
	return err
}

// readResult reads all part files in order of name and returns their digest and text.
func (s *Scenario) readResult(ctx context.Context, dir string) (digest, text string, err error) {
	fs, err := client.New(client.Options{NameNodes: []string{s.Testbed.HDFS.NameNode}, User: "root"})
	if err != nil {
		return "", "", err
	}
	defer fs.Close()
	list, err := fs.List(ctx, dir)
	if err != nil {
		return "", "", err
	}
	sum, parts := sha256.New(), 0
	var all strings.Builder
	for _, f := range list {
		if !strings.Contains(f.Path, "/part-") {
			continue
		}
		b, err := hdfs.ReadFile(ctx, fs, f.Path, 1<<28)
		if err != nil {
			return "", "", err
		}
		parts++
		all.Write(b)
		fmt.Fprintf(sum, "%s %d\n", filepath.Base(f.Path), len(b))
		sum.Write(b)
	}
	if parts != s.Maps {
		return "", "", fmt.Errorf("%s has %d part files, want %d", dir, parts, s.Maps)
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), all.String(), nil
}
