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
	s := begin(t, 4*time.Minute)
	s.put("/e2e/refuse.txt", "some words\n")
	fs := s.hdfs()
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
		"input that is not there":        {mapJob("/e2e/nothing/*.txt", "/e2e/o1", ""), []string{"/e2e/nothing"}},
		"output that exists":             {mapJob("/e2e/refuse.txt", "/e2e/exists", ""), []string{"/e2e/exists", "exists"}},
		"tenant nobody knows":            {group(`tenant = "nobody"`, ""), []string{"nobody", "drover tenant"}},
		"more memory than any node":      {group("", `resources { cpu = "100m"  memory = "900GiB" }`), []string{"900GiB", "memory"}},
		"registry image not allowed":     {group(`image = "docker.io/library/busybox"`, ""), []string{"docker.io/library/busybox"}},
		"rootfs not allowed":             {group(`image = "rootfs:/"`, ""), []string{"rootfs"}},
		"image archive that is not here": {group(`image = "oci-archive:nowhere.tar"`, ""), []string{"nowhere.tar"}},
		"file of 2 GB":                   {group("", fmt.Sprintf("file \"big\" { source = %q }", big)), []string{"2GiB", "512MiB"}},
		"a deadline in the past":         {group(`deadline = "2020-01-01T00:00:00Z"`, ""), []string{"deadline", "past"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			sub := *s
			sub.T = t
			sub.refused(c.words, "job", "run", "-detach", s.job("refused", c.text))
		})
	}
}

// A name and an output path are taken while their job lives.
func TestLiveNamesAndOutputsAreHeld(t *testing.T) {
	s := begin(t, 4*time.Minute)
	s.put("/e2e/held.txt", "a b c\n")
	sleeper := func(name, output string) string {
		return s.job(name, fmt.Sprintf(`job %q {
  tenant = "e2e"
  input  { path = "hdfs:///e2e/held.txt" }
  output { path = "hdfs://%s" }
  image = "oci-archive:%s"
  stage "map" { kind = "map"  command = ["sleep", "300"]  disk = "4MiB"
    resources { cpu = "100m"  memory = "16MiB"  io = "1MiB/s" } } }
`, name, output, s.image("busybox")))
	}
	first := sleeper("held", "/e2e/held-out")
	s.ok("job", "run", "-detach", first)
	s.refused([]string{"held", "live"}, "job", "run", "-detach", first)
	s.refused([]string{"/e2e/held-out", "held"}, "job", "run", "-detach", sleeper("other", "/e2e/held-out"))
	s.ok("job", "stop", "held")
	if r := s.waitJob("held"); r.Code != 5 {
		t.Errorf("waiting for a stopped job gives exit code %d, want 5", r.Code)
	}
	s.ok("job", "run", "-detach", first)
	s.ok("job", "stop", "held")
	s.waitJob("held")
	s.clean(time.Minute)
}

// Without a NameNode a submission waits within its limit and then says so.
func TestNameNodeDown(t *testing.T) {
	s := begin(t, 6*time.Minute)
	s.put("/e2e/nn.txt", "x\n")
	if err := s.bed.HDFS.StopNameNode(s.ctx); err != nil {
		t.Fatal(err)
	}
	s.refused([]string{"NameNode"}, "job", "run", "-detach", s.wordcountFile("nn", "/e2e/nn.txt"))
	if err := s.bed.HDFS.StartNameNode(s.ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.bed.HDFS.AwaitLive(s.ctx, len(s.bed.Nodes), time.Minute); err != nil {
		t.Fatal(err)
	}
	s.ok("job", "run", s.wordcountFile("nn", "/e2e/nn.txt"))
}
