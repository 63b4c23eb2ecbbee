package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestCompressedMapOutputs: where io is small, tasks compress their map outputs by themselves; the result is that of plain
// outputs, and reducers fetch what maps stored.
func TestCompressedMapOutputs(t *testing.T) {
	s := newFixture(t, 8*time.Minute)
	var text strings.Builder
	for i := range 60_000 {
		fmt.Fprintf(&text, "key %05d\tof a log: user %d looked at page %d\n", i*7919%60_000, i%977, i*31%5003)
	}
	s.putHDFS("/e2e/log/a.txt", text.String())
	s.putHDFS("/e2e/log/b.txt", text.String())
	results := map[string]string{}
	for _, name := range []string{"plain", "compressed"} {
		attribute := ""
		if name == "plain" {
			attribute = `compress_map_output = "none"`
		}
		run := s.mustRun("job", "run", s.writeJob(name, fmt.Sprintf(`job %q {
  tenant = "e2e"
  input  { path = "hdfs:///e2e/log" }
  output { path = "hdfs:///e2e/%s" }
  image = "oci-archive:%s"
  stage "map" { kind = "map"  builtin = ["identity"]  disk = "64MiB"  %s
    resources { cpu = "400m"  memory = "48MiB"  io = "1MiB/s" } }
  stage "reduce" { kind = "reduce"  tasks = 2  builtin = ["identity"]  disk = "64MiB"
    resources { cpu = "400m"  memory = "128MiB"  io = "1MiB/s" } }
}
`, name, name, s.imagePath("busybox"), attribute)))
		results[name] = s.readParts("/e2e/" + name)
		counters := s.jobStatus(name).Counters
		count := func(name string) int64 {
			n, err := counters[name].Int64()
			if err != nil {
				t.Errorf("counter %s of %v: %v", name, counters, err)
			}
			return n
		}
		stored, fetched, written := count("map:stored_bytes"), count("reduce:fetched_bytes"), count("map:out_bytes")
		if stored == 0 || stored != fetched || (stored < written/2) != (name == "compressed") {
			t.Errorf("%s: %d bytes of map outputs, %d stored, %d fetched", name, written, stored, fetched)
		}
		t.Logf("%s: %d bytes of map outputs, %d stored\n%s", name, written, stored, run.Stdout)
	}
	if results["plain"] != results["compressed"] || len(results["plain"]) < text.Len() {
		t.Errorf("%d bytes of result, %d where outputs are compressed, of %d bytes of input", len(results["plain"]), len(results["compressed"]), 2*text.Len())
	}
}
