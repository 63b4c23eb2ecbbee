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
	"github.com/drover-run/drover/integration/bed"
	"github.com/drover-run/drover/integration/cluster"
)

// Mode is how the scheduler takes room back.
type Mode string

// The modes. Alone is the maps without any deadline job: what the others are
// held against.
const (
	Alone   Mode = "alone"
	Suspend Mode = "suspend"
	Kill    Mode = "kill"
	None    Mode = "none"
)

// Scene is what is played.
type Scene struct {
	Bed     *bed.Bed
	Cluster *cluster.Cluster
	Dir     string // for job files
	Tenant  string

	Maps     int           // of low priority, each one block of text; they fill the machines
	Seconds  int           // that a map takes at least
	Jobs     int           // with a deadline, of one task
	Gap      time.Duration // between two arrivals
	Deadline time.Duration // of each job, from its arrival
	Say      func(format string, args ...any)
}

// Outcome is what became of it.
type Outcome struct {
	Mode     Mode
	Jobs     int
	OnTime   int
	Order    []int           // the deadline jobs by their end
	Took     []time.Duration // of each deadline job from its arrival to its end
	Suspends int64           // of maps
	Kills    int64
	KeptCPU  time.Duration // of maps, that was taken back and kept
	LostCPU  time.Duration
	Makespan time.Duration // from the maps' submission to the end of all jobs
	Output   string        // sha256 of the maps' results, file by file
	Right    bool          // each line of the text once in them, as without any disturbance
	Failed   int           // attempts
}

const blockBytes = 1 << 20

// input is the path of the text that all runs read.
const input = "/preempt/text"

// Want is the maps' result, its lines in order.
func (s *Scene) Want() string {
	var b strings.Builder
	for i, l := range strings.Split(s.text(), "\n") {
		if l != "" {
			fmt.Fprintf(&b, "%08d\t%d\n", i, len(l))
		}
	}
	return b.String()
}

func (s *Scene) text() string {
	var b strings.Builder
	for i := 0; b.Len() < s.Maps*blockBytes; i++ {
		fmt.Fprintf(&b, "%08d some words to be read and written\n", i)
	}
	return b.String()[:s.Maps*blockBytes]
}

// Load puts the text into HDFS: numbered lines, so that a result shows what was
// left out or done twice.
func (s *Scene) Load(ctx context.Context) error {
	local := filepath.Join(s.Dir, "text")
	if err := os.WriteFile(local, []byte(s.text()), 0o644); err != nil {
		return err
	}
	places := make([]int, len(s.Bed.Nodes))
	for i := range places {
		places[i] = i + 1
	}
	return s.Bed.HDFS.Load(ctx, local, input, blockBytes, places...)
}

// lines of a block: each has 43 bytes.
const lines = blockBytes / 43

func (s *Scene) mapJob(name string) string {
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
`, name, s.Tenant, input, name, s.Bed.File.Images["busybox"], max(1, lines/s.Seconds))
}

func (s *Scene) deadlineJob(name string, at time.Time) string {
	return fmt.Sprintf(`job %q {
  tenant        = %q
  priority      = "high"
  deadline      = %q
  runtime_bound = "15s"
  image = "oci-archive:%s"
  stage "s" { command = ["sleep", "4"]  disk = "4MiB"
    resources { cpu = "250m"  memory = "32MiB"  io = "1MiB/s" } }
}
`, name, s.Tenant, at.UTC().Format(time.RFC3339), s.Bed.File.Images["busybox"])
}

// Play plays it in one mode; run tells several of the same mode apart.
func (s *Scene) Play(ctx context.Context, mode Mode, run int) (*Outcome, error) {
	o := &Outcome{Mode: mode}
	if mode != Alone {
		if _, err := s.ok(ctx, "scheduler", "set", "-set", "preempt="+string(mode), "3dsf"); err != nil {
			return nil, err
		}
	}
	name := fmt.Sprintf("maps-%s-%d", mode, run)
	if err := s.submit(ctx, name, s.mapJob(name)); err != nil {
		return nil, err
	}
	var jobs []string
	if mode != Alone {
		if err := s.full(ctx, name); err != nil {
			return nil, err
		}
		s.Say("%s: every machine is full; %d deadline jobs arrive, one each %s", mode, s.Jobs, s.Gap)
		var err error
		if jobs, err = s.arrive(ctx, mode, run); err != nil {
			return nil, err
		}
	}
	if _, err := s.ok(ctx, append([]string{"job", "wait"}, name)...); err != nil {
		return nil, err
	}
	for _, j := range jobs {
		if _, err := s.Cluster.Drover(ctx, "job", "wait", j); err != nil {
			return nil, err
		}
	}
	return o, s.judge(ctx, o, name, jobs)
}

func (s *Scene) ok(ctx context.Context, args ...string) (cluster.Result, error) {
	r, err := s.Cluster.Drover(ctx, args...)
	return r, errors.Join(err, r.Err())
}

func (s *Scene) submit(ctx context.Context, name, text string) error {
	file := filepath.Join(s.Dir, name+".hcl")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	_, err := s.ok(ctx, "job", "run", "-detach", file)
	return err
}

// full waits until all maps run that have room, and no map is being started any
// more.
func (s *Scene) full(ctx context.Context, name string) error {
	before := 0
	return bed.WaitFor(ctx, 2*time.Minute, "full machines", func(ctx context.Context) error {
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

// arrive submits the deadline jobs at their times.
func (s *Scene) arrive(ctx context.Context, mode Mode, run int) ([]string, error) {
	var jobs []string
	start := time.Now()
	for i := range s.Jobs {
		timer := time.NewTimer(time.Until(start.Add(time.Duration(i) * s.Gap)))
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

// summary is a part of `drover job status -json`.
type summary struct {
	Job struct {
		State       string
		SubmittedMS number `json:"submitted_ms"`
		EndedMS     number `json:"ended_ms"`
		DeadlineMS  number `json:"deadline_ms"`
	}
	Stages []struct {
		FailedAttempts int `json:"failed_attempts"`
	}
	Preempted struct {
		Suspends number
		Kills    number
		KeptMS   number `json:"kept_cpu_ms"`
		LostMS   number `json:"lost_cpu_ms"`
	}
}

// number is a 64-bit one as protobuf's JSON has it, in quotes; absent it is 0.
type number int64

// UnmarshalJSON refuses whatever is no whole number: read as 0 it would make a
// deadline kept or work not lost.
func (n *number) UnmarshalJSON(b []byte) error {
	text := string(b)
	if len(b) >= 2 && b[0] == '"' && b[len(b)-1] == '"' {
		text = text[1 : len(text)-1]
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("%s is not a whole number: %w", b, err)
	}
	*n = number(v)
	return nil
}

// judge fills in what became of the jobs.
func (s *Scene) judge(ctx context.Context, o *Outcome, name string, jobs []string) error {
	var m summary
	if err := s.Cluster.JSON(ctx, &m, "job", "status", "-json", name); err != nil {
		return err
	}
	if !strings.HasSuffix(m.Job.State, "SUCCEEDED") {
		return fmt.Errorf("job %s is %s", name, m.Job.State)
	}
	if m.Job.SubmittedMS <= 0 || m.Job.EndedMS < m.Job.SubmittedMS {
		return fmt.Errorf("job %s was submitted at %d and ended at %d", name, m.Job.SubmittedMS, m.Job.EndedMS)
	}
	last := m.Job.EndedMS
	o.Suspends, o.Kills = int64(m.Preempted.Suspends), int64(m.Preempted.Kills)
	o.KeptCPU, o.LostCPU = time.Duration(m.Preempted.KeptMS)*time.Millisecond, time.Duration(m.Preempted.LostMS)*time.Millisecond
	for _, g := range m.Stages {
		o.Failed += g.FailedAttempts
	}
	ends := make([]number, len(jobs))
	for i, j := range jobs {
		var d summary
		if err := s.Cluster.JSON(ctx, &d, "job", "status", "-json", j); err != nil {
			return err
		}
		if d.Job.DeadlineMS <= 0 || d.Job.EndedMS <= 0 {
			return fmt.Errorf("job %s has the deadline %d and ended at %d", j, d.Job.DeadlineMS, d.Job.EndedMS)
		}
		ends[i] = d.Job.EndedMS
		last = max(last, ends[i])
		o.Jobs++
		o.Order = append(o.Order, i)
		o.Took = append(o.Took, time.Duration(ends[i]-d.Job.SubmittedMS)*time.Millisecond)
		if strings.HasSuffix(d.Job.State, "SUCCEEDED") && ends[i] <= d.Job.DeadlineMS {
			o.OnTime++
		}
	}
	slices.SortStableFunc(o.Order, func(a, b int) int { return cmp.Compare(ends[a], ends[b]) })
	o.Makespan = time.Duration(last-m.Job.SubmittedMS) * time.Millisecond
	var err error
	var text string
	o.Output, text, err = s.result(ctx, "/preempt/"+name)
	all := strings.SplitAfter(text, "\n")
	slices.Sort(all)
	o.Right = strings.Join(all, "") == s.Want()
	return err
}

// result reads all part files, in order of name, and sums them up.
func (s *Scene) result(ctx context.Context, dir string) (digest, text string, err error) {
	fs, err := client.New(client.Options{NameNodes: []string{s.Bed.HDFS.NameNode}, User: "root"})
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
