package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/node"
)

// dayServer is the hidden subcommand of the process that is measured.
const dayServer = "serve"

// dayJobs is how many jobs a day has. Fewer shorten all times in the same way.
const dayJobs = 50_000

func benchDayCommand() *cli.Command {
	return &cli.Command{
		Name:  "day",
		Usage: "a day of short jobs in an hour or less: does anything grow?",
		Description: "Starts coordinator and node in a process of its own, as drover dev does, and submits jobs, as many at once as\n" +
			"-live says, until -jobs have ended. Every tenth writes a log. What is kept for a time or up to a size after a job's\n" +
			"end is kept for a part of a day that is as short as the run. It shows memory, goroutines, file descriptors, folders,\n" +
			"files and disk over the run, and fails if at the end one of them is more than -growth above what it was after the\n" +
			"first quarter, or if a job failed.",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "jobs", Value: dayJobs, Usage: "jobs in all"},
			&cli.IntFlag{Name: "tasks", Value: 10, Usage: "tasks of each"},
			&cli.IntFlag{Name: "live", Value: 40, Usage: "jobs that are queued or run at once"},
			&cli.Float64Flag{Name: "growth", Value: 0.25, Usage: "part by which a median of the last quarter may be above that of the second"},
			&cli.DurationFlag{Name: "limit", Value: 2 * time.Hour, Usage: "longest time"},
			&cli.StringFlag{Name: "dir", Usage: "folder for the state; default: a temporary one"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON object per sample, one per line"},
		},
		Subcommands: []*cli.Command{{Name: dayServer, Hidden: true, HideHelp: true, Action: serveDay, Flags: []cli.Flag{
			&cli.StringFlag{Name: "data"}, &cli.StringFlag{Name: "socket"}, &cli.IntFlag{Name: "jobs"}, &cli.StringFlag{Name: "namenode"},
			&cli.BoolFlag{Name: "verbose"}}}},
		Action: runBenchDay,
	}
}

// serveDay is the process that is measured. Its limits are those of a cluster, as much
// smaller as the run is shorter than a day.
func serveDay(c *cli.Context) error {
	ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM)
	defer stop()
	data, socket := c.String("data"), c.String("socket")
	local, err := coordinator.ListenLocal(socket)
	if err != nil {
		return err
	}
	part := float64(c.Int("jobs")) / dayJobs / 24 // of a day
	scaled := func(d time.Duration) time.Duration { return max(time.Second, time.Duration(float64(d)*part)) }
	up := make(chan struct{})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return coordinator.Run(ctx, coordinator.Config{
			Dir: filepath.Join(data, "coordinator"), Metrics: newRegistry(), Local: local, Logger: newDevLogger(c), NoSync: true, Scheduler: "3dsf",
			SubmitRate: 1e6, KeepLogs: scaled(15 * time.Minute), RetainFor: scaled(24 * time.Hour), SampleEvery: scaled(time.Minute), HistoryBytes: int64(c.Int("jobs")) * 400, Ready: func() { close(up) },
		})
	})
	g.Go(func() error {
		return runDevNode(ctx, c, data, socket, up, func(n *node.Config) {
			n.NoSync, n.KeepLogBytes, n.CollectEvery, n.SweepEvery = true, int64(c.Int("jobs"))*2000, scaled(10*time.Minute), scaled(time.Minute)
		})
	})
	return g.Wait()
}

// daySample is what the process had at one time.
type daySample struct {
	Seconds    float64 `json:"seconds"`
	Jobs       int64   `json:"jobs"` // that have ended
	MemoryMiB  float64 `json:"memory_mib"`
	Goroutines float64 `json:"goroutines"`
	Descs      float64 `json:"descriptors"`
	Folders    float64 `json:"folders"`
	Files      float64 `json:"files"`
	DiskMiB    float64 `json:"disk_mib"`
}

// dayRun is the state of one run.
type dayRun struct {
	c      *cli.Context
	dir    string
	cmd    *exec.Cmd
	client droverv1connect.ClientServiceClient
	http   *http.Client
	base   string
	jobs   int

	ended   atomic.Int64
	samples []daySample

	mu       sync.Mutex
	failures map[string]int // how many jobs failed, by reason
}

func runBenchDay(c *cli.Context) (err error) {
	if _, err := positionalArgs(c, 0, 0, ""); err != nil {
		return err
	}
	if c.Int("jobs") < 1 || c.Int("tasks") < 1 || c.Int("live") < 1 {
		return usageErrorf("-jobs, -tasks and -live are at least 1")
	}
	dir, err := os.MkdirTemp(c.String("dir"), "drover-day-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithTimeout(c.Context, c.Duration("limit"))
	defer cancel()
	r := &dayRun{c: c, dir: dir, jobs: c.Int("jobs"), failures: map[string]int{}}
	stop, err := r.startServer(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	work, sampled := errgroup.WithContext(ctx)
	submitted := make(chan struct{})
	work.Go(func() error { defer close(submitted); return r.submitAll(sampled) })
	work.Go(func() error { return r.sampleUntil(sampled, began, submitted) })
	if err := errors.Join(work.Wait(), stop()); err != nil {
		return err
	}
	return r.report(time.Since(began))
}

// startServer starts the process that is measured; stop ends it.
func (r *dayRun) startServer(ctx context.Context) (stop func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(r.dir, "s")
	r.cmd = exec.CommandContext(ctx, self, "bench", "day", dayServer, "-data", filepath.Join(r.dir, "state"), "-socket", socket, "-jobs", strconv.Itoa(r.jobs))
	r.cmd.Args[0] = "drover"
	r.cmd.Env = append(os.Environ(), "DROVER_ADDRESS=unix://"+socket)
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := r.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	ready, drained := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(drained)
		once := sync.OnceFunc(func() { close(ready) })
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "ready: ") {
				once()
			} else if !strings.HasPrefix(lines.Text(), "clients: ") {
				fmt.Fprintln(r.c.App.ErrWriter, lines.Text())
			}
		}
	}()
	stop = func() error {
		err := r.cmd.Process.Signal(os.Interrupt)
		<-drained
		return errors.Join(err, r.cmd.Wait())
	}
	select {
	case <-ready:
	case <-drained:
		return nil, fmt.Errorf("the coordinator did not start: %w", r.cmd.Wait())
	case <-time.After(time.Minute):
		return nil, errors.Join(errors.New("the coordinator was not ready after a minute"), stop())
	}
	if r.http, r.base, err = httpClient(r.c, "unix://"+socket); err != nil {
		return nil, errors.Join(err, stop())
	}
	r.client = droverv1connect.NewClientServiceClient(r.http, r.base)
	return stop, nil
}

// submitAll submits all jobs and returns when they have ended.
func (r *dayRun) submitAll(ctx context.Context) error {
	free := make(chan struct{}, r.c.Int("live"))
	var g errgroup.Group
	for i := range r.jobs {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), g.Wait())
		}
		g.Go(func() error {
			defer func() { <-free }()
			return r.runJob(ctx, i)
		})
	}
	return g.Wait()
}

// runJob submits one job and waits for its end.
func (r *dayRun) runJob(ctx context.Context, i int) error {
	command := []string{"true"}
	if i%10 == 0 {
		command = []string{"echo", "a line of a log"}
	}
	j := &jobspec.Job{Version: 1, Name: fmt.Sprint("day-", i), Stages: []jobspec.Stage{{Name: "main", Kind: jobspec.KindGroup, Command: command, Tasks: r.c.Int("tasks"),
		Resources: jobspec.Resources{CPU: 100, Memory: 16 << 20, IO: 1 << 20}, Disk: 1 << 20}}}
	jobspec.SetDefaults(j)
	spec, err := jobspec.Encode(j)
	if err != nil {
		return err
	}
	res, err := r.client.SubmitJob(ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: string(spec)}))
	if err != nil {
		return fmt.Errorf("submit job %d: %w", i, err)
	}
	watch, err := r.client.WatchJob(ctx, connect.NewRequest(&droverv1.GetJobRequest{Job: strconv.FormatUint(res.Msg.GetJob(), 10)}))
	if err != nil {
		return err
	}
	defer watch.Close()
	var last *droverv1.GetJobResponse
	for watch.Receive() {
		last = watch.Msg()
	}
	if err := watch.Err(); err != nil {
		return fmt.Errorf("watch job %d: %w", i, err)
	}
	if last.GetJob().GetState() != droverv1.JobState_JOB_STATE_SUCCEEDED {
		r.fail(last)
	}
	r.ended.Add(1)
	return nil
}

// fail counts a job that did not succeed, by its reason without the task's number.
func (r *dayRun) fail(last *droverv1.GetJobResponse) {
	reason := last.GetJob().GetMessage()
	if task := last.GetFailedTask(); task != "" {
		reason = strings.ReplaceAll(reason, task, "a task")
	}
	if tail := strings.TrimSpace(last.GetFailureTail()); tail != "" {
		reason += ": " + tail
	}
	if reason == "" {
		reason = "without a reason, in state " + last.GetJob().GetState().String()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, seen := r.failures[reason]; !seen && len(r.failures) >= dayReasons {
		reason = "for other reasons"
	}
	r.failures[reason]++
}

// dayReasons is how many different reasons of failed jobs a run lists.
const dayReasons = 10

// Samples of a run: short runs have fewer.
const (
	daySamples  = 240
	dayInterval = 100 * time.Millisecond // the least between two
)

// sampleUntil takes samples, as many at the beginning as at the end of the work.
func (r *dayRun) sampleUntil(ctx context.Context, began time.Time, end <-chan struct{}) error {
	next := int64(0)
	t := time.NewTicker(dayInterval)
	defer t.Stop()
	for {
		select {
		case <-end:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
		n := r.ended.Load()
		if n < next {
			continue
		}
		next = n + int64(max(1, r.jobs/daySamples))
		s, err := r.sample(ctx)
		if err != nil {
			return err
		}
		s.Seconds, s.Jobs = time.Since(began).Seconds(), n
		r.samples = append(r.samples, s)
		if r.c.Bool("json") {
			if err := json.NewEncoder(r.c.App.Writer).Encode(s); err != nil {
				return err
			}
		}
	}
}

func (r *dayRun) sample(ctx context.Context) (s daySample, err error) {
	s.MemoryMiB = float64(residentBytesOf(r.cmd.Process.Pid)) / (1 << 20)
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.cmd.Process.Pid))
	if err != nil {
		return s, err
	}
	s.Descs = float64(len(open))
	if s.Goroutines, err = r.metric(ctx, "go_goroutines"); err != nil {
		return s, err
	}
	// What is removed meanwhile is passed over.
	err = filepath.WalkDir(filepath.Join(r.dir, "state"), func(_ string, e os.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return nil
		}
		if e.IsDir() {
			s.Folders++
		} else {
			s.Files++
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			s.DiskMiB += float64(st.Blocks) * 512 / (1 << 20)
		}
		return nil
	})
	return s, err
}

// metric returns a metric of the process.
func (r *dayRun) metric(ctx context.Context, name string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.base+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	res, err := r.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(v), 64)
		}
	}
	return 0, fmt.Errorf("no metric %s: the coordinator answered %s", name, res.Status)
}
