package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// Of `drover bench task`.
const (
	benchTaskNamespace = "drover-bench" // of containerd, for the containers of ctr
	benchTaskLimit     = 10 * time.Minute
	closeIdleWithin    = 20 * time.Second      // in which a node deletes containers that no task uses again
	userTick           = 10 * time.Millisecond // USER_HZ, in which /proc counts CPU time
)

func benchTaskCommand() *cli.Command {
	return &cli.Command{
		Name:      "task",
		Usage:     "what a task in a container costs beside `ctr run` of the same image and command (root)",
		ArgsUsage: "[COMMAND...]",
		Description: "Runs on the machine of a node whose cluster has no other node. In each round it runs the command (default: true)\n" +
			"in so many containers, one after another with `ctr run --rm`, then in as many tasks of one job, and then in as many\n" +
			"that run one after another in a container that is used again. CPU is that of the whole machine, with what the daemons do after the end, without what it does when nothing runs:\n" +
			"a row names the daemons of Drover that run there; what a coordinator elsewhere does is in no figure. Medians, with the least and the most.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "image", Usage: "OCI archive, a file"},
			&cli.StringFlag{Name: "ref", Usage: "name of the image in the archive, for ctr"},
			&cli.IntFlag{Name: "tasks", Value: 10, Usage: "containers of each side in a round"},
			&cli.IntFlag{Name: "rounds", Value: 3, Usage: "rounds; one more before them is not counted"},
			&cli.DurationFlag{Name: "settle", Value: 5 * time.Second, Usage: "time after each half of a round whose CPU still counts"},
			&cli.StringFlag{Name: "tenant", Value: "default", Usage: "tenant of the job"},
			&cli.StringFlag{Name: "containerd", Value: defaultContainerd, Usage: "containerd's socket"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON object per round, one per line"},
		},
		Action: runBenchTask,
	}
}

// taskCost is what one half of a round took. CPU times are in microseconds and have the
// granularity of /proc, 10 ms.
type taskCost struct {
	WallUS       int64 `json:"wall_us"`
	CPUUS        int64 `json:"cpu_us"`            // of the machine, beyond its idle load
	ContainerdUS int64 `json:"containerd_cpu_us"` // of it: containerd
	DroverUS     int64 `json:"drover_cpu_us"`     // of it: Daemons

	Daemons string `json:"daemons"` // those of Drover that run here, such as "coordinator and node"; the others are not in any figure

	Programs []programCost `json:"programs,omitempty"` // of it: processes that ended
}

// taskRound is one round of both sides.
type taskRound struct {
	Tasks  int      `json:"tasks"`
	Ctr    taskCost `json:"ctr"`
	Drover taskCost `json:"drover"`
	Again  taskCost `json:"used_again"` // Drover's tasks one after another in a container
}

// taskBench measures rounds.
type taskBench struct {
	ctx     context.Context
	dir     string   // temporary
	ctr     []string // with its global flags
	ref     string
	jobs    [2][]string // commands that run a job and wait for its end: own containers, one that is used again
	command []string
	tasks   int
	settle  time.Duration
	idle    float64 // CPU time of the idle machine, as a fraction of the wall time
}

func runBenchTask(c *cli.Context) error {
	command := c.Args().Slice()
	if len(command) == 0 {
		command = []string{"true"}
	}
	if err := requireFlags(c, "image", "ref"); err != nil {
		return err
	}
	if c.Int("tasks") < 1 || c.Int("rounds") < 1 {
		return usageErrorf("-tasks and -rounds must be at least 1")
	}
	if err := checkOnlyNode(c); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "drover-bench-task-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	image, err := filepath.Abs(c.String("image"))
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	b := &taskBench{
		ctx: c.Context, dir: dir, ctr: []string{"ctr", "-a", c.String("containerd"), "-n", benchTaskNamespace}, ref: c.String("ref"),
		command: command, tasks: c.Int("tasks"), settle: c.Duration("settle"),
	}
	for i := range b.jobs {
		file := filepath.Join(dir, fmt.Sprintf("job-%d.hcl", i))
		if err := os.WriteFile(file, benchTaskJob(c.String("tenant"), image, c.Int("tasks"), command, i == 1), 0o600); err != nil {
			return err
		}
		b.jobs[i] = append(append([]string{self}, sameCoordinator(c)...), "job", "run", file)
	}
	if err := b.run(append(b.ctr, "images", "import", image)...); err != nil {
		return err
	}
	rounds, err := b.measure(c.Int("rounds"))
	if err = errors.Join(err, b.run(append(b.ctr, "images", "rm", b.ref)...)); err != nil {
		return err
	}
	return printTaskRounds(c, rounds)
}

// sameCoordinator returns the global flags with which another command reaches the
// coordinator that this one reaches.
func sameCoordinator(c *cli.Context) []string {
	var flags []string
	for _, name := range []string{"address", "tls-ca", "tls-cert", "tls-key", tokenFileFlag} {
		if v := c.String(name); v != "" {
			flags = append(flags, "-"+name, v)
		}
	}
	return flags
}

// checkOnlyNode refuses a cluster in which tasks could run on another machine, whose CPU
// time would not be counted.
func checkOnlyNode(c *cli.Context) error {
	cl, err := dial(c)
	if err != nil {
		return err
	}
	list, err := cl.ListNodes(c.Context, connect.NewRequest(&droverv1.ListNodesRequest{}))
	if err != nil {
		return cl.classifyError(err)
	}
	nodes := list.Msg.GetNodes()
	if len(nodes) != 1 {
		return fault.New(fault.Conflict, "the cluster has %d nodes: measure one whose only node is this machine, since work elsewhere is not seen here", len(nodes))
	}
	if d := nodes[0].GetInfo().GetDriver(); d != "containerd" {
		return fault.New(fault.Unsupported, "node %s runs tasks with driver %q: there is nothing to compare with ctr", nodes[0].GetInfo().GetName(), d)
	}
	return nil
}

// benchTaskJob returns the job file of one round. With again its tasks run one after another, in a
// container that is used again.
func benchTaskJob(tenant, image string, tasks int, command []string, again bool) []byte {
	quoted := make([]string, len(command))
	for i, w := range command {
		quoted[i] = strconv.Quote(w)
	}
	sharing := fmt.Sprintf("containers_used_again = %t", again)
	if again {
		sharing += "\n    max_parallel = 1"
	}
	return fmt.Appendf(nil, `job "bench-task" {
  tenant = %q
  image  = %q
  stage "run" {
    tasks   = %d
    command = [%s]
    disk    = "16MiB"
    %s
    resources {
      cpu    = "50m"
      memory = "32MiB"
      io     = "1MiB/s"
    }
  }
}
`, tenant, "oci-archive:"+image, tasks, strings.Join(quoted, ", "), sharing)
}

// measure returns the rounds after the first.
func (b *taskBench) measure(rounds int) ([]taskRound, error) {
	var all []taskRound
	for i := range rounds + 1 {
		if err := b.measureIdle(); err != nil {
			return nil, err
		}
		ctr, err := b.cost(func() error {
			for n := range b.tasks {
				if err := b.run(append(append(b.ctr, "run", "--rm", b.ref, fmt.Sprintf("bench-%d-%d", i, n)), b.command...)...); err != nil {
					return err
				}
			}
			return nil
		}, b.settle)
		if err != nil {
			return nil, err
		}
		drover, err := b.cost(func() error { return b.run(b.jobs[0]...) }, b.settle)
		if err != nil {
			return nil, err
		}
		again, err := b.cost(func() error { return b.run(b.jobs[1]...) }, max(b.settle, closeIdleWithin))
		if err != nil {
			return nil, err
		}
		if i > 0 {
			all = append(all, taskRound{b.tasks, ctr, drover, again})
		}
	}
	return all, nil
}

// measureIdle measures the machine's CPU use while it runs no tasks.
func (b *taskBench) measureIdle() error {
	before, err := readMachineCPU("/proc")
	if err != nil {
		return err
	}
	start := time.Now()
	if err := b.pause(b.settle); err != nil {
		return err
	}
	after, err := readMachineCPU("/proc")
	b.idle = float64(after.busy-before.busy) / float64(max(time.Since(start), 1))
	return err
}

// cost runs one part of a round, and waits so long for what the daemons do after it.
func (b *taskBench) cost(work func() error, settle time.Duration) (cost taskCost, err error) {
	cost.Programs, err = countPrograms(b.dir, func() error {
		before, err := readMachineCPU("/proc")
		if err != nil {
			return err
		}
		start := time.Now()
		if err := work(); err != nil {
			return err
		}
		wall := time.Since(start)
		if err := b.pause(settle); err != nil {
			return err
		}
		after, err := readMachineCPU("/proc")
		cost = after.since(before, wall, time.Since(start), b.idle)
		return err
	})
	return cost, err
}

func (b *taskBench) pause(d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-b.ctx.Done():
		return b.ctx.Err()
	}
}

// run runs a command to its end.
func (b *taskBench) run(args ...string) error {
	ctx, cancel := context.WithTimeout(b.ctx, benchTaskLimit)
	defer cancel()
	if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		return fault.New(fault.Unavailable, "%s: %w: %s", strings.Join(args, " "), err, joinLines(out))
	}
	return nil
}

// machineCPU is the CPU time that a machine has used since its boot.
type machineCPU struct {
	busy, containerd, drover time.Duration
	daemons                  string // whose time drover is
}

// since returns the cost between two readings that are whole apart.
func (m machineCPU) since(before machineCPU, wall, whole time.Duration, idle float64) taskCost {
	busy := m.busy - before.busy - time.Duration(idle*float64(whole))
	return taskCost{WallUS: wall.Microseconds(), CPUUS: busy.Microseconds(),
		ContainerdUS: (m.containerd - before.containerd).Microseconds(), DroverUS: (m.drover - before.drover).Microseconds(), Daemons: m.daemons}
}

// readMachineCPU reads the machine's CPU time, and that of the daemons that run. Those
// live as long as the measurement, everything else is what they start.
func readMachineCPU(proc string) (m machineCPU, err error) {
	b, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return m, err
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	f := strings.Fields(string(line))
	if len(f) < 8 || f[0] != "cpu" {
		return m, fault.New(fault.Corrupt, "%s/stat begins with %q", proc, line)
	}
	for _, i := range []int{1, 2, 3, 6, 7} { // user, nice, system, irq, softirq; not idle, iowait and steal
		n, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			return m, fault.New(fault.Corrupt, "%s/stat: %w", proc, err)
		}
		m.busy += time.Duration(n) * userTick
	}
	dirs, err := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	if err != nil {
		return m, err
	}
	seen := map[string]bool{}
	for _, dir := range dirs {
		name, used, err := readProcessCPU(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist): // it has ended
		case err != nil:
			return m, err
		case name == "containerd":
			m.containerd += used
		case name == "drover":
			if daemon := daemonAt(dir); daemon != "" {
				m.drover += used
				seen[daemon] = true
			}
		}
	}
	m.daemons = strings.Join(slices.Sorted(maps.Keys(seen)), " and ")
	return m, nil
}

// daemonAt returns which of Drover's daemons a process is, "" if it is none, as a command that
// waits for its job.
func daemonAt(dir string) string {
	b, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return "" // it has ended
	}
	args := bytes.Split(b, []byte{0})
	if len(args) < 2 {
		return ""
	}
	if s := string(args[1]); s == "coordinator" || s == "node" || s == "dev" {
		return s
	}
	return ""
}

// readProcessCPU returns the name and the CPU time of a process without its children.
func readProcessCPU(dir string) (name string, used time.Duration, err error) {
	b, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return "", 0, err
	}
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')') // the name may contain anything
	if open < 0 || end < open {
		return "", 0, fault.New(fault.Corrupt, "%s/stat: %q", dir, b)
	}
	f := strings.Fields(string(b[end+1:]))
	if len(f) < 13 {
		return "", 0, fault.New(fault.Corrupt, "%s/stat: %q", dir, b)
	}
	user, err1 := strconv.ParseInt(f[11], 10, 64)
	system, err2 := strconv.ParseInt(f[12], 10, 64)
	return string(b[open+1 : end]), time.Duration(user+system) * userTick, errors.Join(err1, err2)
}

// printTaskRounds prints the rounds as JSON, or their medians as a table.
func printTaskRounds(c *cli.Context, rounds []taskRound) error {
	if c.Bool("json") {
		for _, r := range rounds {
			if err := json.NewEncoder(c.App.Writer).Encode(r); err != nil {
				return err
			}
		}
		return nil
	}
	printTable(c.App.Writer, []string{"containers", "ctr run", "Drover", "ratio", "used again", "ratio"}, taskRows(rounds))
	if rows := programRows(rounds); len(rows) > 0 {
		fmt.Fprintln(c.App.Writer)
		printTable(c.App.Writer, []string{"processes of a container", "ctr run", "CPU", "Drover", "CPU"}, rows)
	}
	return nil
}

// rangeText formats the median of microseconds with the least and the most.
func rangeText(us []int64) string {
	return fmt.Sprintf("%s (%s to %s)", medianText(us), microText(slices.Min(us)), microText(slices.Max(us)))
}

// taskRows returns the rows of the table: medians of the rounds, with the least and the most. A
// ratio is that of a round.
func taskRows(rounds []taskRound) [][]string {
	row := func(what string, of func(taskCost) int64) []string {
		var ctr []int64
		for _, r := range rounds {
			ctr = append(ctr, of(r.Ctr))
		}
		cells := []string{what, rangeText(ctr)}
		for _, side := range []func(taskRound) taskCost{func(r taskRound) taskCost { return r.Drover }, func(r taskRound) taskCost { return r.Again }} {
			var costs, ratio []int64
			for i, r := range rounds {
				costs = append(costs, of(side(r)))
				if ctr[i] > 0 {
					ratio = append(ratio, costs[i]*1000/ctr[i])
				}
			}
			text := ""
			if len(ratio) > 0 {
				text = fmt.Sprintf("%.2f (%.2f to %.2f)", float64(medianOf(ratio))/1000, float64(slices.Min(ratio))/1000, float64(slices.Max(ratio))/1000)
			}
			cells = append(cells, rangeText(costs), text)
		}
		return cells
	}
	n := strconv.Itoa(rounds[0].Tasks)
	return [][]string{
		row(n+", wall", func(t taskCost) int64 { return t.WallUS }),
		row(n+", CPU of the machine", func(t taskCost) int64 { return t.CPUUS }),
		row("of it containerd", func(t taskCost) int64 { return t.ContainerdUS }),
		row("of it "+cmp.Or(rounds[0].Drover.Daemons, "no daemon of Drover"), func(t taskCost) int64 { return t.DroverUS }),
		row("of it all others", func(t taskCost) int64 { return t.CPUUS - t.ContainerdUS - t.DroverUS }),
	}
}
