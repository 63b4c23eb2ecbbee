package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Each bad submission is refused at once with one clear line.
func TestRefusals(t *testing.T) {
	s := newFixture(t, 4*time.Minute)
	s.putHDFS("/e2e/refuse.txt", "some words\n")
	fs := s.hdfsClient()
	if err := fs.Mkdir(s.ctx, "/e2e/exists"); err != nil {
		t.Fatal(err)
	}
	big := filepath.Join(s.dir, "big.bin")
	if err := os.WriteFile(big, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, 2<<30); err != nil {
		t.Fatal(err)
	}
	mapJob := func(input, output, more string) string {
		return fmt.Sprintf(`job "refused" {
  tenant = "e2e"
  %s
  input  { path = "hdfs://%s" }
  output { path = "hdfs://%s" }
  stage "map" { kind = "map"  builtin = ["identity"]  resources { cpu = "100m"  memory = "32MiB"  io = "1MiB/s" } } }
`, more, input, output)
	}
	group := func(job, stage string) string {
		return fmt.Sprintf("job \"refused\" {\n %s\n stage \"s\" { command = [\"true\"]\n %s }\n}\n", job, stage)
	}
	cases := map[string]struct {
		text  string
		words []string
	}{
		"missing input":              {mapJob("/e2e/nothing/*.txt", "/e2e/o1", ""), []string{"/e2e/nothing"}},
		"existing output":            {mapJob("/e2e/refuse.txt", "/e2e/exists", ""), []string{"/e2e/exists", "exists"}},
		"unknown tenant":             {group(`tenant = "nobody"`, ""), []string{"nobody", "drover tenant"}},
		"more memory than any node":  {group("", `resources { cpu = "100m"  memory = "900GiB" }`), []string{"900GiB", "memory"}},
		"registry image not allowed": {group(`image = "docker.io/library/busybox"`, ""), []string{"docker.io/library/busybox"}},
		"rootfs not allowed":         {group(`image = "rootfs:/"`, ""), []string{"rootfs"}},
		"missing image archive":      {group(`image = "oci-archive:nowhere.tar"`, ""), []string{"nowhere.tar"}},
		"file of 2 GB":               {group("", fmt.Sprintf("file \"big\" { source = %q }", big)), []string{"2GiB", "512MiB"}},
		"a deadline in the past":     {group(`deadline = "2020-01-01T00:00:00Z"`, ""), []string{"deadline", "past"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			sub := *s
			sub.T = t
			sub.mustRefuse(c.words, "job", "run", "-detach", s.writeJob("refused", c.text))
		})
	}
}

// A job's name and output path are reserved while the job is live.
func TestLiveNamesAndOutputsAreReserved(t *testing.T) {
	s := newFixture(t, 4*time.Minute)
	s.putHDFS("/e2e/reserved.txt", "a b c\n")
	sleepingJob := func(name, output string) string {
		return s.writeJob(name, fmt.Sprintf(`job %q {
  tenant = "e2e"
  input  { path = "hdfs:///e2e/reserved.txt" }
  output { path = "hdfs://%s" }
  image = "oci-archive:%s"
  stage "map" { kind = "map"  command = ["sleep", "300"]  disk = "4MiB"
    resources { cpu = "100m"  memory = "16MiB"  io = "1MiB/s" } } }
`, name, output, s.imagePath("busybox")))
	}
	first := sleepingJob("reserved", "/e2e/reserved-out")
	s.mustRun("job", "run", "-detach", first)
	s.mustRefuse([]string{"reserved", "live"}, "job", "run", "-detach", first)
	s.mustRefuse([]string{"/e2e/reserved-out", "reserved"}, "job", "run", "-detach", sleepingJob("other", "/e2e/reserved-out"))
	s.mustRun("job", "stop", "reserved")
	if r := s.waitJob("reserved"); r.ExitCode != 5 {
		t.Errorf("waiting for a stopped job returns exit code %d, want 5", r.ExitCode)
	}
	s.mustRun("job", "run", "-detach", first)
	s.mustRun("job", "stop", "reserved")
	s.waitJob("reserved")
	s.awaitClean(time.Minute)
}

// While the NameNode is down, a submission waits up to its limit and then reports it. The NameNode is killed for that, then the
// DataNode with a job's input, and the NameNode again while the job's result is published.
func TestKilledHDFS(t *testing.T) {
	s := newFixture(t, 8*time.Minute)
	h := s.testbed.HDFS
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s.putHDFS("/e2e/nn.txt", "x\n") // one block, on DataNode 1
	do(h.KillNameNode(s.ctx))
	s.mustRefuse([]string{"NameNode"}, "job", "run", "-detach", s.wordcountFile("nn", "/e2e/nn.txt"))
	do(h.StartNameNode(s.ctx))
	do(h.AwaitLive(s.ctx, len(s.testbed.Nodes), time.Minute))

	s.mustRun("job", "run", "-detach", s.wordcountFile("nn", "/e2e/nn.txt"))
	do(h.KillDataNode(s.ctx, 1))
	do(h.StartDataNode(s.ctx, 1))
	fs := s.hdfsClient()
	s.waitUntil(4*time.Minute, "the beginning of the commit", func() error {
		_, err := fs.Stat(s.ctx, "/e2e/nn") // made as it begins
		return err
	})
	do(h.KillNameNode(s.ctx))
	t.Logf("killed while the job is in %s", s.jobStatus("nn").Job.State)
	do(h.StartNameNode(s.ctx))
	if r := s.waitJob("nn"); r.ExitCode != 0 {
		t.Fatalf("the job failed:\n%s%s", r.Stdout, r.Stderr)
	}
	if got := s.readParts("/e2e/nn"); got != "x\t1\n" {
		t.Errorf("the result is %q", got)
	}
}
