package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/client"
	"github.com/drover-run/drover/integration/testbed"
)

// Limits of each container of the jobs below. cpu.max is exclusiveCPUMax for exclusive ones, and startCPUMax until the engine
// has made what the program starts in. The memory of Drover's own programs, which the node measures, is added to a task's.
const (
	cpuMax          = "30000 100000"
	exclusiveCPUMax = "25000 100000"
	startCPUMax     = "100000 100000"
	taskMemory      = 48 << 20
	mostOverhead    = 64 << 20
	ioMax           = "2097152"
	resources       = `resources { cpu = "300m"  memory = "48MiB"  io = "2MiB/s" }`
)

// jobKind is a kind of job, of which one is always live.
type jobKind struct {
	prefix    string // of the names
	stage     string // whose tasks are suspended
	index     int    // of that stage in the job
	tasks     int
	output    bool // has the counts of the input's words in parts
	parts     int
	exclusive bool // its tasks are
	text      func(name, image string) string
}

var jobKinds = []jobKind{
	{prefix: "count", stage: "map", tasks: 3, output: true, parts: 1, text: func(name, image string) string { return wordCountJob(name, image, 1) }},
	{prefix: "split", stage: "reduce", index: 1, tasks: 2, output: true, parts: 2, text: func(name, image string) string { return wordCountJob(name, image, 2) }},
	{prefix: "group", stage: "main", tasks: 2, text: groupJob},
	{prefix: "alone", stage: "main", tasks: 1, exclusive: true, text: exclusiveJob},
}

// wordCountJob counts words slowly, so that faults meet it. No folder of an attempt that a fault failed is kept for
// inspection: at the end nothing may be left.
func wordCountJob(name, image string, reducers int) string {
	return fmt.Sprintf(`job %q {
  tenant = "chaos"
  keep_failed = 0
  input  { path = "hdfs:///chaos/input.txt" }
  output { path = "hdfs:///chaos/%s" }
  image = "oci-archive:%s"
  stage "map" { kind = "map"  disk = "64MiB"
    command = ["awk", "{ for (i = 1; i <= NF; i++) print $i \"\t1\"; if (NR %% 400 == 0) system(\"sleep 0.1\") }"]
    %s }
  stage "reduce" { kind = "reduce"  tasks = %d  builtin = ["sum"]  disk = "64MiB"
    %s }
}
`, name, name, image, resources, reducers, resources)
}

// counted is how far the tasks of groups count.
const counted = 80

// groupJob has two tasks that end well only if their own count was never disturbed.
func groupJob(name, image string) string { return countJob(name, image, 2, "", resources) }

// exclusiveJob has one task that does the same, of which no two attempts may act.
func exclusiveJob(name, image string) string {
	return countJob(name, image, 1, "exclusive = true", strings.Replace(resources, "300m", "250m", 1))
}

func countJob(name, image string, tasks int, more, resources string) string {
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo $i | tee -a count; sleep 0.2; done; test $(wc -l < count) = %d && test $(tail -1 count) = %d", counted, counted, counted)
	return fmt.Sprintf(`job %q {
  tenant = "chaos"
  keep_failed = 0
  image = "oci-archive:%s"
  stage "main" { tasks = %d  disk = "16MiB"  %s
    command = ["sh", "-c", %q]
    %s }
}
`, name, image, tasks, more, script, resources)
}

// inputText returns about size bytes of lines of random words.
func inputText(r *rand.Rand, size int) string {
	words := strings.Fields("alpha beta gamma delta epsilon zeta eta theta iota kappa")
	var b strings.Builder
	for b.Len() < size {
		for range 4 {
			b.WriteString(words[r.IntN(len(words))] + " ")
		}
		b.WriteString(words[r.IntN(len(words))] + "\n")
	}
	return b.String()
}

// wordCounts is the reference for wordCountJob.
func wordCounts(text string) string {
	n := map[string]int{}
	for _, w := range strings.Fields(text) {
		n[w]++
	}
	var lines []string
	for w, k := range n {
		lines = append(lines, fmt.Sprintf("%s\t%d\n", w, k))
	}
	sort.Strings(lines)
	return strings.Join(lines, "")
}

// checkOutput compares the output of a job that succeeded with the reference. The folder
// has the parts and the marker and nothing else.
func (h *chaos) checkOutput(j *job) {
	h.Helper()
	fs, err := client.New(client.Options{NameNodes: []string{h.bed.HDFS.NameNode}, User: "root"})
	if err != nil {
		h.Fatal(err)
	}
	defer fs.Close()
	ctx, cancel := context.WithTimeout(h.ctx, 2*time.Minute)
	defer cancel()
	list, err := fs.List(ctx, "/chaos/"+j.name)
	if err != nil {
		h.Fatal(err)
	}
	var names, lines []string
	for _, f := range list {
		names = append(names, f.Path[strings.LastIndex(f.Path, "/")+1:])
		if strings.Contains(f.Path, "/part-") {
			text, err := hdfs.ReadFile(ctx, fs, f.Path, 1<<28)
			if err != nil {
				h.Fatal(err)
			}
			lines = append(lines, strings.SplitAfter(string(text), "\n")...)
		}
	}
	sort.Strings(lines)
	if got := strings.Join(lines, ""); got != h.counts {
		h.Errorf("output of %s\n%s\nwant\n%s", j.name, got, h.counts)
	}
	want := "_SUCCESS"
	for k := range j.parts {
		want += fmt.Sprintf(" part-%05d", k)
	}
	if strings.Join(names, " ") != want {
		h.Errorf("the output folder of %s has %v, want %s", j.name, names, want)
	}
	h.run.Outputs++
}

// taskLog is the log of a task of a job that has ended.
type taskLog struct {
	job  *job
	task int
	err  error // of the last try to read it
}

// checkLogs compares the logs of jobs that succeeded with what their tasks print. Those whose nodes do not answer are left
// for the next time.
func (h *chaos) checkLogs() {
	h.Helper()
	want := ""
	for i := range counted {
		want += fmt.Sprintln(i + 1)
	}
	h.logs = slices.DeleteFunc(h.logs, func(l *taskLog) bool {
		ctx, cancel := context.WithTimeout(h.ctx, requestTime)
		defer cancel()
		r, err := h.cluster.Drover(ctx, "task", "logs", l.job.name, fmt.Sprintf("%s/%d", l.job.stage, l.task))
		before := l.err
		if l.err = errors.Join(err, r.Err()); l.err != nil {
			if before == nil {
				h.Logf("  no log of %s %d yet: %s", l.job.name, l.task, strings.TrimSpace(r.Stderr))
			}
			return false
		}
		if r.Stdout != want && !(h.lossy > l.job.lossyBefore && isCutOff(r.Stdout, want)) {
			h.Errorf("log of %s %d: %q", l.job.name, l.task, r.Stdout)
		}
		h.run.Logs++
		return true
	})
}

// isCutOff reports whether a log is the beginning of what was written, with zero bytes for the rest or without: nobody syncs
// logs, and after a power cut a file may be as long as it was, or shorter.
func isCutOff(log, written string) bool {
	return strings.HasPrefix(written, strings.TrimRight(log, "\x00")) && len(log) <= len(written)
}

// awaitLogs waits for the logs that are left. They may be gone only if a fault that loses files has met the job.
func (h *chaos) awaitLogs() {
	h.Helper()
	h.checkLogs()
	h.logs = slices.DeleteFunc(h.logs, func(l *taskLog) bool { return h.lossy > l.job.lossyBefore })
	err := testbed.WaitFor(h.ctx, backLimit, "the logs of tasks", func(context.Context) error {
		h.checkLogs()
		var all []error
		for _, l := range h.logs {
			all = append(all, fmt.Errorf("%s %d: %w", l.job.name, l.task, l.err))
		}
		return errors.Join(all...)
	})
	if err != nil {
		h.Error(err)
	}
}

// listed is how many of the newest jobs are in a list in any case. Older ones come from the history of the leader, which
// one whose disk was full may have in parts.
const listed = 200

// checkNothingTwice checks that the jobs and the outputs are those that were accepted, each once.
func (h *chaos) checkNothingTwice() {
	h.Helper()
	var list struct{ Jobs []struct{ Name string } }
	if err := h.cluster.JSON(h.ctx, &list, "job", "list", "-all", "-limit", "0", "-json"); err != nil {
		h.Fatal(err)
	}
	var names []string
	for _, j := range list.Jobs {
		names = append(names, j.Name)
	}
	if err := compareNames(names, h.accepted, listed); err != nil {
		h.Error(err)
	}
	fs, err := client.New(client.Options{NameNodes: []string{h.bed.HDFS.NameNode}, User: "root"})
	if err != nil {
		h.Fatal(err)
	}
	defer fs.Close()
	found, err := fs.List(h.ctx, "/chaos")
	if err != nil {
		h.Fatal(err)
	}
	if len(found) != 1+h.run.Outputs {
		h.Errorf("HDFS has an input, %d outputs were compared, and these are there: %v", h.run.Outputs, found)
	}
}

// compareNames says which names of a list were not accepted or are in it again, and which of the newest accepted ones
// are missing.
func compareNames(list, accepted []string, newest int) error {
	var all []error
	times := map[string]int{}
	for _, name := range list {
		switch times[name]++; {
		case !slices.Contains(accepted, name):
			all = append(all, fmt.Errorf("nobody accepted %s", name))
		case times[name] == 2:
			all = append(all, fmt.Errorf("%s was accepted twice", name))
		}
	}
	for _, name := range accepted[max(0, len(accepted)-newest):] {
		if times[name] == 0 {
			all = append(all, fmt.Errorf("%s, which was accepted, is not in the list", name))
		}
	}
	return errors.Join(all...)
}
