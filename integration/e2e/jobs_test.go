package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/hdfs"
)

// A plain group in containers has its output in the logs and its limits read back, exits with code
// 0, and leaves nothing but its logs, in HDFS.
func TestGroupJob(t *testing.T) {
	s := newFixture(t, 3*time.Minute)
	s.putHDFS("/e2e/there", "x")
	f := s.writeJob("hello", fmt.Sprintf(`job "hello" {
  tenant      = "e2e"
  gather_logs = "hdfs:///e2e/logs"
  image = "oci-archive:%s"
  stage "greet" { command = ["sh", "-c", "echo hello $DROVER_TASK; id -u; cat /proc/self/status | grep -E 'CapEff|NoNewPrivs|Seccomp:'"]  tasks = 3
    resources { cpu = "100m"  memory = "32MiB"  io = "4MiB/s" }
    disk = "16MiB" } }
`, s.imagePath("busybox")))
	s.mustRun("job", "run", f)
	var all strings.Builder
	for i := range 3 {
		r := s.mustRun("task", "logs", "hello", fmt.Sprintf("greet/%d", i))
		if !strings.Contains(r.Stdout, fmt.Sprintf("hello %d\n", i)) {
			t.Errorf("task %d wrote %q", i, r.Stdout)
		}
		all.WriteString(r.Stdout)
	}
	for _, want := range []string{"CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if strings.Count(all.String(), want) != 3 {
			t.Errorf("not every task has %q:\n%s", want, all.String())
		}
	}
	if strings.Contains(all.String(), "\n0\n") {
		t.Errorf("a task runs as root:\n%s", all.String())
	}
	if got := s.gatheredLogs("hello"); strings.Count(got, " stdout <==\n") != 3 || strings.Count(got, "\nhello ") != 3 {
		t.Errorf("the gathered logs are\n%s", got)
	}
}

// gatheredLogs waits until the logs of an ended job are in HDFS, and returns them.
func (s *fixture) gatheredLogs(job string) string {
	s.Helper()
	var folder string
	s.waitUntil(time.Minute, "the logs are gathered", func() error {
		var r struct {
			Logs     string
			Gathered bool   `json:"logs_gathered"` // Logs says where they go from the beginning
			Missing  string `json:"logs_missing"`
		}
		if err := json.Unmarshal([]byte(s.mustRun("job", "status", "-json", job).Stdout), &r); err != nil || !r.Gathered || r.Missing != "" {
			return fmt.Errorf("%v, %+v", err, r)
		}
		folder = strings.TrimPrefix(r.Logs, "hdfs://")
		return nil
	})
	fs := s.hdfsClient()
	list, err := fs.List(s.ctx, folder)
	if err != nil {
		s.Fatal(err)
	}
	var all strings.Builder
	for _, f := range list {
		text, err := hdfs.ReadFile(s.ctx, fs, f.Path, 1<<20)
		if err != nil {
			s.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

// The README's word count: Python scripts in the Python image, with HDFS.
func TestPythonWordCount(t *testing.T) {
	s := newFixture(t, 8*time.Minute)
	text := strings.Repeat("the quick brown fox jumps over the lazy dog\nund noch ein Satz mit Wörtern\n", 3000)
	const files = 6 // so that each machine gets several maps, in one container
	for i := range files {
		s.putHDFS(fmt.Sprintf("/e2e/words/%d.txt", i), text)
	}
	example, err := filepath.Abs("../../examples/wordcount")
	if err != nil {
		t.Fatal(err)
	}
	f := s.writeJob("pywc", fmt.Sprintf(`job "pywc" {
  tenant = "e2e"
  input  { path = "hdfs:///e2e/words" }
  output { path = "hdfs:///e2e/pywc" }
  image = "oci-archive:%s"
  stage "map" {
    kind = "map"
    command = ["python3", "wc_map.py"]
    containers_used_again = true
    disk = "64MiB"
    file "wc_map.py" { source = "%s/wc_map.py" }
    resources { cpu = "500m"  memory = "96MiB"  io = "20MiB/s" }
  }
  stage "reduce" { kind = "reduce"  tasks = 2  command = ["python3", "wc_reduce.py"]  combiner = true  slow_start = 0.5  disk = "64MiB"
    file "wc_reduce.py" { source = "%s/wc_reduce.py" }
    resources { cpu = "500m"  memory = "96MiB"  io = "20MiB/s" } }
}
`, s.imagePath("python"), example, example))
	s.mustRun("job", "run", f)
	if got, want := sortLines(s.readParts("/e2e/pywc")), sampleCounts(strings.Repeat(text, files)); got != want {
		t.Errorf("result\n%s\nwant\n%s", got, want)
	}
	if n := s.jobStatus("pywc").Stages[0].FailedAttempts; n != 0 {
		t.Errorf("%d attempts failed", n)
	}
}

// sampleCounts returns the independent word count of a text, as sorted lines "word TAB n".
func sampleCounts(text string) string {
	n := map[string]int{}
	for _, w := range strings.Fields(text) {
		n[w]++
	}
	var b strings.Builder
	for w, k := range n {
		fmt.Fprintf(&b, "%s\t%d\n", w, k)
	}
	return sortLines(b.String())
}

func sortLines(text string) string {
	l := strings.SplitAfter(text, "\n")
	sort.Strings(l)
	return strings.Join(l, "")
}

// wordcountFile writes the job file of the built-in word count over a file and returns its path.
func (s *fixture) wordcountFile(name, input string) string {
	return s.writeJob(name, fmt.Sprintf(`job %q {
  tenant = "e2e"
  input  { path = "hdfs://%s" }
  output { path = "hdfs:///e2e/%s" }
  image = "oci-archive:%s"
  stage "map" { kind = "map"  builtin = ["wordcount"]  disk = "64MiB"
    resources { cpu = "300m"  memory = "48MiB"  io = "2MiB/s" } }
  stage "reduce" { kind = "reduce"  tasks = 2  builtin = ["sum"]  combiner = true  disk = "64MiB"
    resources { cpu = "300m"  memory = "48MiB"  io = "2MiB/s" } }
}
`, name, input, name, s.imagePath("busybox")))
}

// 30 tasks that do nothing leave nothing behind (1,000 with DROVER_SOAK).
func TestNoLeftovers(t *testing.T) {
	n, limit := 30, 40*time.Minute
	if os.Getenv("DROVER_SOAK") != "" {
		n, limit = 1000, 3*time.Hour
	}
	s := newFixture(t, limit)
	f := s.writeJob("many", fmt.Sprintf(`job "many" {
  image = "oci-archive:%s"
  stage "true" { command = ["true"]  tasks = %d  max_parallel = 9  disk = "4MiB"
    resources { cpu = "300m"  memory = "16MiB"  io = "1MiB/s" } } }
`, s.imagePath("busybox"), n))
	s.mustRun("job", "run", f)
	s.awaitClean(2 * time.Minute)
}
