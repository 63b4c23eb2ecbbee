package trace

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// slurmColumns are the columns of sacct that the import needs, each with its alternatives.
var slurmColumns = [][]string{{"JobID"}, {"Submit"}, {"Start"}, {"ElapsedRaw", "Elapsed"}, {"AllocCPUS", "NCPUS"}}

// ReadSlurm reads what `sacct -P` prints (with -X or not): a header and a line per job, separated by
// |. It needs the columns JobID, Submit, Start, ElapsedRaw or Elapsed, and AllocCPUS or NCPUS, and
// uses Account, User, JobName, NNodes, ReqMem, Timelimit or TimelimitRaw (minutes), NodeList and
// Partition if they are there. Steps of jobs, and jobs that never ran, are skipped.
//
// A job becomes a stage of one task per node, each with its part of the processors and memory; its
// time limit is the bound, its account the tenant. Unlike in Slurm the tasks of a job need not start
// together. Times without a zone count as UTC.
func ReadSlurm(r io.Reader, o Options) (*History, error) {
	h, counter := &History{}, newTaskCounter(o)
	var columns map[string]int
	var err error
	h.Count, err = scanLines(r, o, func(n int, text []byte) error {
		f := strings.Split(strings.TrimSpace(string(text)), "|")
		if columns == nil {
			var err error
			columns, err = slurmHeader(f)
			if err == nil {
				err = errNothingToSimulate
			}
			return err
		}
		row := slurmRow{columns, f, counter}
		if len(f) < len(columns) {
			return fmt.Errorf("%d fields: expected the %d of the header", len(f), len(columns))
		}
		j, err := row.job(len(h.Jobs) + 1)
		if err != nil {
			return err
		}
		h.Jobs = append(h.Jobs, *j)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

// slurmHeader returns the position of each column.
func slurmHeader(f []string) (map[string]int, error) {
	columns := map[string]int{}
	for i, name := range f {
		if name = strings.TrimSpace(name); name != "" {
			columns[name] = i
		}
	}
	for _, names := range slurmColumns {
		found := false
		for _, name := range names {
			_, ok := columns[name]
			found = found || ok
		}
		if !found {
			return nil, fmt.Errorf("the header has no column %s: print it with sacct -P -X -o JobID,JobName,Account,User,Submit,Start,ElapsedRaw,TimelimitRaw,AllocCPUS,NNodes,ReqMem,NodeList", strings.Join(names, " or "))
		}
	}
	return columns, nil
}

// slurmRow is a line with the positions of its columns.
type slurmRow struct {
	columns map[string]int
	fields  []string
	counter *taskCounter // of the file
}

// get returns the first present column, "" if none is.
func (r *slurmRow) get(names ...string) string {
	for _, name := range names {
		if i, ok := r.columns[name]; ok && i < len(r.fields) && r.fields[i] != "" {
			return strings.TrimSpace(r.fields[i])
		}
	}
	return ""
}

func (r *slurmRow) job(number int) (*HistoryJob, error) {
	id := r.get("JobID")
	if strings.Contains(id, ".") { // a step
		return nil, errNothingToSimulate
	}
	submit, ok, err := slurmTime(r.get("Submit"))
	if err != nil || !ok {
		return nil, fmt.Errorf("job %s: Submit is %q: expected a time as 2026-01-31T10:00:00", truncate(id), truncate(r.get("Submit")))
	}
	start, ok, err := slurmTime(r.get("Start"))
	if err != nil {
		return nil, fmt.Errorf("job %s: Start: %w", truncate(id), err)
	}
	run, err := r.elapsed()
	if err != nil {
		return nil, fmt.Errorf("job %s: %w", truncate(id), err)
	}
	if !ok || run <= 0 {
		return nil, errNothingToSimulate
	}
	g, err := r.stage(start, run)
	if err != nil {
		return nil, fmt.Errorf("job %s: %w", truncate(id), err)
	}
	bound, err := r.limit()
	if err != nil {
		return nil, fmt.Errorf("job %s: %w", truncate(id), err)
	}
	if bound > 0 && bound < run { // Slurm lets a job continue until it is killed
		bound = run
	}
	name := r.get("JobName")
	if name == "" {
		name = "slurm"
	}
	j := &HistoryJob{Version: historyVersion, Job: uint64(number), Name: name + "-" + id, Tenant: r.get("Account", "User"), State: r.get("State"), Tag: r.get("Partition"),
		SubmitMS: submit.UnixMilli(), StartMS: start.UnixMilli(), BoundMS: bound.Milliseconds(), Stages: []HistoryStage{*g}}
	return j, j.check()
}

// stage returns the tasks of a job, one per node.
func (r *slurmRow) stage(start time.Time, run time.Duration) (*HistoryStage, error) {
	cpus, err := parseNumber(r.get("AllocCPUS", "NCPUS"), "AllocCPUS", 0, 1<<30)
	if err != nil {
		return nil, err
	}
	if cpus < 1 {
		return nil, errNothingToSimulate
	}
	nodes := 1.0
	if text := r.get("NNodes", "AllocNodes"); text != "" {
		if nodes, err = parseNumber(text, "NNodes", 1, 1<<20); err != nil {
			return nil, err
		}
	}
	memory, err := slurmMemory(r.get("ReqMem"), cpus, nodes)
	if err != nil {
		return nil, err
	}
	g := &HistoryStage{Name: "main", Kind: "group", CPU: int64(math.Ceil(1000 * cpus / nodes)), Memory: memory}
	node := r.get("NodeList")
	if nodes > 1 || strings.ContainsAny(node, "[, ") { // a list in Slurm's own notation
		node = ""
	}
	g.Tasks, err = r.counter.tasks(int(nodes), &HistoryAttempt{Node: node, State: "succeeded", PlaceMS: start.UnixMilli(), EndMS: start.Add(run).UnixMilli(), RunMS: run.Milliseconds()})
	return g, err
}

func (r *slurmRow) elapsed() (time.Duration, error) {
	if text := r.get("ElapsedRaw"); text != "" {
		s, err := parseNumber(text, "ElapsedRaw", 0, maxSeconds)
		return secondsDuration(s), err
	}
	return slurmDuration("Elapsed", r.get("Elapsed"))
}

// limit returns the time limit, 0 for none.
func (r *slurmRow) limit() (time.Duration, error) {
	switch text := r.get("TimelimitRaw", "Timelimit"); text {
	case "", "UNLIMITED", "Partition_Limit", "INVALID":
		return 0, nil
	default:
		if r.get("TimelimitRaw") != "" {
			m, err := parseNumber(text, "TimelimitRaw", 0, maxSeconds/60)
			return secondsDuration(60 * m), err
		}
		return slurmDuration("Timelimit", text)
	}
}

// slurmTime parses a time of sacct, and reports whether there is one.
func slurmTime(text string) (time.Time, bool, error) {
	if text == "" || text == "Unknown" || text == "None" {
		return time.Time{}, false, nil
	}
	if s, err := strconv.ParseInt(text, 10, 64); err == nil { // SLURM_TIME_FORMAT=%s
		return time.Unix(s, 0), true, nil
	}
	t, err := time.Parse("2006-01-02T15:04:05", text)
	if err != nil {
		return t, false, fmt.Errorf("%q: expected a time as 2026-01-31T10:00:00", truncate(text))
	}
	return t, true, nil
}

// slurmDuration parses [days-]hours:minutes:seconds or minutes:seconds.
func slurmDuration(what, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	bad := fmt.Errorf("%s is %q: expected [days-]hours:minutes:seconds", what, truncate(text))
	rest, seconds := text, 0.0
	if days, after, ok := strings.Cut(text, "-"); ok {
		d, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return 0, bad
		}
		rest, seconds = after, float64(d)*86400
	}
	parts := strings.Split(rest, ":")
	if len(parts) < 2 || len(parts) > 3 {
		return 0, bad
	}
	part := 0.0
	for _, p := range parts {
		x, err := strconv.ParseFloat(p, 64)
		if err != nil || !(x >= 0 && x < 1e6) {
			return 0, bad
		}
		part = part*60 + x
	}
	return secondsDuration(seconds + part), nil
}

// slurmMemory parses ReqMem: 4G of the job, 4Gn per node, 2000Mc per processor. It returns the memory
// per node, in bytes.
func slurmMemory(text string, cpus, nodes float64) (int64, error) {
	if text == "" || text == "0" || text == "?" {
		return 0, nil
	}
	number, factor := text, 1/nodes
	switch {
	case strings.HasSuffix(text, "n"):
		number, factor = text[:len(text)-1], 1
	case strings.HasSuffix(text, "c"):
		number, factor = text[:len(text)-1], cpus/nodes
	}
	unit := float64(1 << 20)
	if n := len(number); n > 0 {
		if i := strings.IndexByte("KMGTP", number[n-1]); i >= 0 {
			number, unit = number[:n-1], float64(int64(1)<<(10*(i+1)))
		}
	}
	x, err := parseNumber(number, "ReqMem", 0, 1<<30)
	if err != nil {
		return 0, fmt.Errorf("ReqMem is %q: expected memory as 4G, 4Gn or 2000Mc", truncate(text))
	}
	return int64(math.Ceil(x * unit * factor)), nil
}
