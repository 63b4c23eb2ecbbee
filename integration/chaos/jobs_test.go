package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
	"time"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/client"
)

// cpuMax is cpu.max of each container of the jobs below.
const (
	resources = `resources { cpu = "300m"  memory = "48MiB"  io = "2MiB/s" }`
	cpuMax    = "30000 100000"
)

// wordCountJob counts words slowly, so that faults meet it.
func wordCountJob(name, image string) string {
	return fmt.Sprintf(`job %q {
  tenant = "chaos"
  input  { path = "hdfs:///chaos/input.txt" }
  output { path = "hdfs:///chaos/%s" }
  image = "oci-archive:%s"
  stage "map" { kind = "map"  disk = "64MiB"
    command = ["awk", "{ for (i = 1; i <= NF; i++) print $i \"\t1\"; if (NR %% 200 == 0) system(\"sleep 0.1\") }"]
    %s }
  stage "reduce" { kind = "reduce"  tasks = 1  builtin = ["sum"]  disk = "64MiB"
    %s }
}
`, name, name, image, resources, resources)
}

// groupJob has two tasks that end well only if their own count was never disturbed.
func groupJob(name, image string) string {
	return fmt.Sprintf(`job %q {
  tenant = "chaos"
  image = "oci-archive:%s"
  stage "main" { tasks = 2  disk = "16MiB"
    command = ["sh", "-c", "i=0; while [ $i -lt 150 ]; do i=$((i+1)); echo $i >> count; sleep 0.2; done; test $(wc -l < count) = 150 && test $(tail -1 count) = 150"]
    %s }
}
`, name, image, resources)
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
	h.Logf("  %s has succeeded", j.name)
	if !j.mr {
		return
	}
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
	if want := "_SUCCESS part-00000"; strings.Join(names, " ") != want {
		h.Errorf("the output folder of %s has %v, want %s", j.name, names, want)
	}
}

// runningScript prints the attempts whose processes are not frozen, each with its cpu.max.
const runningScript = `cd /sys/fs/cgroup/drover/tasks && for a in *.*.*.*.*; do
  e=$(cat $a/container/cgroup.events 2>/dev/null) || continue
  case $e in *"populated 1"*"frozen 0"*) echo $a $(cat $a/cpu.max) $(cat $a/memory.max);; esac
done; true`

// checkLimits checks that each container that runs has its limits.
func (h *chaos) checkLimits() {
	h.Helper()
	h.waitUntil(time.Minute, "limits of all containers", func(ctx context.Context) error {
		for _, n := range h.bed.Nodes {
			out, err := n.Sh(ctx, runningScript)
			if err != nil {
				return err
			}
			for line := range strings.Lines(out) {
				f := strings.Fields(line)
				if len(f) == 4 && (f[1]+" "+f[2] != cpuMax || f[3] == "max") {
					return fmt.Errorf("%s: %s", n.Name, line)
				}
			}
		}
		return nil
	})
}
