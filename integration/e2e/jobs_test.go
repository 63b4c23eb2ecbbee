package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"
)

// A plain group in containers: output in the logs, limits read back, exit code
// 0, nothing left.
func TestGroupJob(t *testing.T) {
	s := begin(t, 3*time.Minute)
	f := s.job("hello", fmt.Sprintf(`job "hello" {
  image = "oci-archive:%s"
  stage "greet" { command = ["sh", "-c", "echo hello $DROVER_TASK; id -u; cat /proc/self/status | grep -E 'CapEff|NoNewPrivs|Seccomp:'"]  tasks = 3
    resources { cpu = "100m"  memory = "32MiB"  io = "4MiB/s" }
    disk = "16MiB" } }
`, s.image("busybox")))
	s.ok("job", "run", f)
	var all strings.Builder
	for i := range 3 {
		r := s.ok("task", "logs", "hello", fmt.Sprintf("greet/%d", i))
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
}

// The README's word count: Python scripts in the Python image, over HDFS.
func TestPythonWordCount(t *testing.T) {
	s := begin(t, 8*time.Minute)
	text := strings.Repeat("the quick brown fox jumps over the lazy dog\nund noch ein Satz mit Wörtern\n", 3000)
	s.put("/e2e/words.txt", text)
	example, err := filepath.Abs("../../examples/wordcount")
	if err != nil {
		t.Fatal(err)
	}
	f := s.job("pywc", fmt.Sprintf(`job "pywc" {
  tenant = "e2e"
  input  { path = "hdfs:///e2e/words.txt" }
  output { path = "hdfs:///e2e/pywc" }
  image = "oci-archive:%s"
  stage "map" {
    kind = "map"
    command = ["python3", "wc_map.py"]
    disk = "64MiB"
    file "wc_map.py" { source = "%s/wc_map.py" }
    resources { cpu = "500m"  memory = "96MiB"  io = "20MiB/s" }
  }
  stage "reduce" { kind = "reduce"  tasks = 2  command = ["python3", "wc_reduce.py"]  combiner = true  disk = "64MiB"
    file "wc_reduce.py" { source = "%s/wc_reduce.py" }
    resources { cpu = "500m"  memory = "96MiB"  io = "20MiB/s" } }
}
`, s.image("python"), example, example))
	s.ok("job", "run", f)
	if got, want := sorted(s.parts("/e2e/pywc")), countOf(text); got != want {
		t.Errorf("result\n%s\nwant\n%s", got, want)
	}
}

// countOf is the independent count, as lines "word TAB n" in order.
func countOf(text string) string {
	n := map[string]int{}
	for _, w := range strings.Fields(text) {
		n[w]++
	}
	var b strings.Builder
	for w, k := range n {
		fmt.Fprintf(&b, "%s\t%d\n", w, k)
	}
	return sorted(b.String())
}

func sorted(text string) string {
	l := strings.SplitAfter(text, "\n")
	sort.Strings(l)
	return strings.Join(l, "")
}

// wordcount runs the built-in word count over a file and gives its sorted
// result.
func (s *scene) wordcountFile(name, input string) string {
	return s.job(name, fmt.Sprintf(`job %q {
  tenant = "e2e"
  input  { path = "hdfs://%s" }
  output { path = "hdfs:///e2e/%s" }
  image = "oci-archive:%s"
  stage "map" { kind = "map"  builtin = ["wordcount"]  disk = "64MiB"
    resources { cpu = "300m"  memory = "48MiB"  io = "2MiB/s" } }
  stage "reduce" { kind = "reduce"  tasks = 2  builtin = ["sum"]  combiner = true  disk = "64MiB"
    resources { cpu = "300m"  memory = "48MiB"  io = "2MiB/s" } }
}
`, name, input, name, s.image("busybox")))
}

// 60 tasks that do nothing leave nothing (1,000 in the soak).
func TestNothingIsLeft(t *testing.T) {
	n, limit := 60, 40*time.Minute
	if os.Getenv("DROVER_SOAK") != "" {
		n, limit = 1000, 3*time.Hour
	}
	s := begin(t, limit)
	f := s.job("many", fmt.Sprintf(`job "many" {
  image = "oci-archive:%s"
  stage "true" { command = ["true"]  tasks = %d  max_parallel = 9  disk = "4MiB"
    resources { cpu = "300m"  memory = "16MiB"  io = "1MiB/s" } } }
`, s.image("busybox"), n))
	s.ok("job", "run", f)
	s.clean(2 * time.Minute)
}
