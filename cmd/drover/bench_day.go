package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
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

// The shapes of a day.
const (
	dayMany = "many"
	dayOne  = "one"
)

// dayJobs is how many jobs a day has. Fewer shorten all times in the same way.
const dayJobs = 50_000

func benchDayCommand() *cli.Command {
	return &cli.Command{
		Name:  "day",
		Usage: "a day of short jobs in an hour or less: does anything grow?",
		Description: "Starts coordinator and node in a process of its own, as drover dev does, and submits jobs, as many at once as\n" +
			"-live says, until -jobs have ended; with -shape one, one job that has the tasks of all of them. Every -logs-th job, or\n" +
			"task of the one job, writes a log. What is kept for a time or up to a size after a job's end is kept for a part of a\n" +
			"day that is as short as the run. It shows memory, the part of it that is in use, goroutines, file descriptors,\n" +
			"attempts on the node, folders, files and disk over the run, and fails if at the end one of them is more than -growth\n" +
			"above what it was after the first quarter, and by more than a slack, or if a job failed. The logs of one job are kept\n" +
			"until it ends. The slack is: " + daySlack() + ".",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "jobs", Value: dayJobs, Usage: "jobs in all"},
			&cli.IntFlag{Name: "tasks", Value: 10, Usage: "tasks of each"},
			&cli.StringFlag{Name: "shape", Value: dayMany, Usage: "many: jobs of -tasks tasks; one: a single job of -jobs times -tasks tasks"},
			&cli.IntFlag{Name: "logs", Value: 10, Usage: "every how many jobs, or tasks of the one job, one writes a log; 0 for none"},
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

// dayRun is the state of one run.
type dayRun struct {
	c      *cli.Context
	dir    string
	cmd    *exec.Cmd
	client droverv1connect.ClientServiceClient
	http   *http.Client
	base   string
	jobs   int
	units  int // jobs, or the tasks of the one job

	ended   atomic.Int64 // units
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
	shape := c.String("shape")
	if shape != dayMany && shape != dayOne {
		return usageErrorf("-shape %q: want %s or %s", shape, dayMany, dayOne)
	}
	dir, err := os.MkdirTemp(c.String("dir"), "drover-day-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithTimeout(c.Context, c.Duration("limit"))
	defer cancel()
	r := &dayRun{c: c, dir: dir, jobs: c.Int("jobs"), units: c.Int("jobs"), failures: map[string]int{}}
	submit := r.submitAll
	if shape == dayOne {
		submit, r.units = r.runOne, c.Int("jobs")*c.Int("tasks")
	}
	stop, err := r.startServer(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	work, sampled := errgroup.WithContext(ctx)
	submitted := make(chan struct{})
	work.Go(func() error { defer close(submitted); return submit(sampled) })
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
	if n := r.c.Int("logs"); n > 0 && i%n == 0 {
		command = []string{"echo", "a line of a log"}
	}
	last, err := r.runToEnd(ctx, fmt.Sprint("day-", i), r.c.Int("tasks"), command, func(*droverv1.GetJobResponse) {})
	if err != nil {
		return err
	}
	if last.GetJob().GetState() != droverv1.JobState_JOB_STATE_SUCCEEDED {
		r.fail(last)
	}
	r.ended.Add(1)
	return nil
}

// runOne submits one job with the tasks of all, and waits for its end.
func (r *dayRun) runOne(ctx context.Context) error {
	command := []string{"true"}
	if n := r.c.Int("logs"); n > 0 {
		command = []string{"sh", "-c", fmt.Sprintf(`[ $((DROVER_TASK %% %d)) != 0 ] || echo a line of a log`, n)}
	}
	last, err := r.runToEnd(ctx, "day", r.units, command, func(j *droverv1.GetJobResponse) { r.ended.Store(int64(j.GetJob().GetTasksDone())) })
	if err != nil {
		return err
	}
	if last.GetJob().GetState() != droverv1.JobState_JOB_STATE_SUCCEEDED {
		r.fail(last)
	}
	return nil
}

// dayWatches is how often a job is watched again whose connection was lost: a busy machine answers
// late.
const dayWatches = 20

// runToEnd submits a job of one stage, calls changed at its changes, and returns it when it has ended.
func (r *dayRun) runToEnd(ctx context.Context, name string, tasks int, command []string, changed func(*droverv1.GetJobResponse)) (last *droverv1.GetJobResponse, err error) {
	j := &jobspec.Job{Version: 1, Name: name, Stages: []jobspec.Stage{{Name: "main", Kind: jobspec.KindGroup, Command: command, Tasks: tasks,
		Resources: jobspec.Resources{CPU: 100, Memory: 16 << 20, IO: 1 << 20}, Disk: 1 << 20}}}
	jobspec.SetDefaults(j)
	spec, err := jobspec.Encode(j)
	if err != nil {
		return nil, err
	}
	res, err := r.client.SubmitJob(ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: string(spec)}))
	if err != nil {
		return nil, fmt.Errorf("submit job %s: %w", name, err)
	}
	for range dayWatches {
		var watch *connect.ServerStreamForClient[droverv1.GetJobResponse]
		watch, err = r.client.WatchJob(ctx, connect.NewRequest(&droverv1.GetJobRequest{Job: strconv.FormatUint(res.Msg.GetJob(), 10)}))
		if err == nil {
			for watch.Receive() {
				last = watch.Msg()
				changed(last)
			}
			err = errors.Join(watch.Err(), watch.Close())
		}
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("watch job %s: %w", name, err)
	}
	return last, nil
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
