package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

// Values that are numbers and still mean nothing: each is a usage error that names the flag, before anything is measured or asked.
func TestValuesOutOfRange(t *testing.T) {
	t.Chdir(t.TempDir())
	generate := func(verb, more string) string {
		return "sim " + verb + " -workload uniform -format generate -rule jobs=2 " + more
	}
	for line, want := range map[string]string{
		"bench scheduler -nodes 0":                 "-nodes 0: want at least 1",
		"bench scheduler -nodes 10 -nodes -2":      "-nodes -2: want at least 1",
		"bench scheduler -worst -nodes 0":          "-nodes 0: want at least 1",
		"bench scheduler -worst -runs 0":           "-runs 0: want at least 1",
		"bench scheduler -runs -1":                 "-runs -1: want at least 1",
		"bench scheduler -placements 0":            "-placements 0: want at least 1",
		"bench scheduler -tasks -1":                "-tasks -1: want at least 0",
		"bench scheduler -tenants -1":              "-tenants -1: want at least 0",
		"bench scheduler -set x":                   `-set "x": want key=value`,
		"bench floods -rate 0":                     "-rate 0: want at least 1",
		"bench floods -rate NaN":                   "-rate NaN: want at least 1",
		"bench floods -rate=-5":                    "-rate -5: want at least 1",
		"bench floods -rounds 0":                   "-rounds 0: want at least 1",
		"bench floods -probes 0":                   "-probes 0: want at least 1",
		"bench floods -batches 0":                  "-batches 0: want at least 1",
		"bench floods -ratio 0.5":                  "-ratio 0.5: want at least 1",
		"bench floods -slower -1":                  "-slower -1: want at least 0",
		"bench floods -warm 0s":                    "-warm 0s, -limit 2m0s: want durations above zero",
		"bench floods -limit -1s":                  "-warm 3s, -limit -1s: want durations above zero",
		"bench floods -only rain":                  `-only "rain": there are [`,
		"bench floods -memory much":                `-memory: size "much"`,
		"bench criu -rounds 0":                     "-rounds 0: want at least 1",
		"bench criu -memory 0":                     "-memory 0: want at least 4KiB",
		"bench criu -memory x":                     `-memory: size "x"`,
		"events -limit -1":                         "-limit -1: want a number from 0 to",
		"events -since -1s":                        "-since -1s: want a duration such as 10m",
		"job list -limit -1":                       "-limit -1: want a number from 0 to",
		"tls cert -life 0s x":                      "-life 0s: want how long it is valid, such as 720h",
		"tls cert -life=-1h x":                     "-life -1h0m0s: want how long",
		"node maintain -for 0s n":                  "-for 0s: give the length of the window",
		"node maintain -for 1h -from yesterday n":  `-from "yesterday": give a time such as`,
		generate("run", "-cpu 0"):                  "machines of -cpu 0, -memory 32GiB and -io 200MiB/s: cpu is 0: no task could ever run there",
		generate("run", "-cpu many"):               `-io 200MiB/s: cpu: cpu "many": want cores`,
		generate("run", "-memory 0"):               "machines of -cpu 8, -memory 0 and -io 200MiB/s: memory is 0",
		generate("run", "-io fast"):                `io: rate "fast": want a size per second`,
		generate("run", "-nodes 0"):                "-nodes 0: want at least 1",
		generate("run", "-nodes 1000000000"):       "machines of -cpu 8, -memory 32GiB and -io 200MiB/s: count is 1000000000: expected 1 to 1048576",
		generate("run", "-runs 0"):                 "-runs 0: 1 to 100000",
		generate("run", "-model gas"):              `model "gas": use tasks or fluid`,
		generate("sweep", "-vary cpu=1,0"):         "cpu=0: machines of -cpu 0",
		generate("sweep", "-vary nodes=1,few"):     `nodes=few: nodes is "few": want a number`,
		generate("sweep", "-vary nodes=1,0"):       "nodes=0: -nodes 0: want at least 1",
		generate("sweep", "-vary speed=2"):         "-vary speed: use scheduler, nodes, cpu, memory, io, set.KEY, rule.KEY or world.KEY",
		generate("sweep", "-vary 3"):               `-vary "3": want KEY=VALUE`,
		generate("sweep", ""):                      "sweep wants at least one -vary",
		generate("plan", "-add-nodes 0"):           "nothing changes: set -add-nodes or -speed",
		generate("plan", "-add-nodes -10"):         "-add-nodes -10 to 10 nodes: at least one must remain",
		generate("plan", "-speed 0"):               "-speed 0: it must be a number above 0",
		generate("plan", "-speed NaN"):             "-speed NaN: it must be a number above 0",
		generate("compare", "-scheduler fifo"):     "compare needs at least two -scheduler flags",
		generate("size", "-response 1m -share -1"): "-share -1: it must be above 0 and at most 1",
		generate("size", "-response -1m"):          "-response is missing",
	} {
		if _, _, err := runNowhere(t, strings.Fields(line)...); exitCode(err) != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("drover %s: exit code %d, %v; want 2, …%s…", line, exitCode(err), err, want)
		}
	}
	if left, err := os.ReadDir("."); err != nil || len(left) > 0 {
		t.Errorf("something was written: %v, %v", left, err)
	}
}

// A program that is not installed is no coordinator that does not answer.
func TestBenchCriuWithoutCriu(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, _, err := runNowhere(t, "bench", "criu")
	if exitCode(err) != exitFailed || !strings.Contains(err.Error(), "install criu on this machine") {
		t.Errorf("exit code %d, %v", exitCode(err), err)
	}
}

func TestRequireAtLeast(t *testing.T) {
	for args, want := range map[string]string{
		"":                   "",
		"-n 1 -f 0.5":        "",
		"-n 0":               "-n 0: want at least 1",
		"-f 0.4":             "-f 0.4: want at least 0.5",
		"-f NaN":             "-f NaN: want at least 0.5",
		"-f +Inf":            "",
		"-s 1 -s 0":          "-s 0: want at least 1",
		"-n 0 -f 0":          "-f 0: want at least 0.5", // in the order of their names
		"-s 1 -s 2 -s 3":     "",
		"-s 1,2,-3":          "-s -3: want at least 1",
		"-n -9 -s 1 -f 1e99": "-n -9: want at least 1",
	} {
		var got error
		app := &cli.App{Flags: []cli.Flag{&cli.IntFlag{Name: "n", Value: 5}, &cli.Float64Flag{Name: "f", Value: math.Pi}, &cli.IntSliceFlag{Name: "s", Value: cli.NewIntSlice(7)}},
			Action: func(c *cli.Context) error {
				got = requireAtLeast(c, map[string]float64{"n": 1, "f": 0.5, "s": 1})
				return nil
			}}
		if err := app.Run(append([]string{"x"}, strings.Fields(args)...)); err != nil {
			t.Fatal(err)
		}
		if text := errorText(got); text != want || got != nil && exitCode(got) != exitUsage {
			t.Errorf("%s: %q, want %q", args, text, want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// The weight of a tenant: 1 where it is left out, and an explicit 0 is no way to write that.
func TestWeightOfATenant(t *testing.T) {
	for text, want := range map[string]string{
		"":                "1",
		"weight = 2.5":    "2.5",
		"weight = 0":      `tenant "a": weight 0; give a number above 0, or leave it out for 1`,
		"weight = 0.0":    `tenant "a": weight 0; give a number above 0, or leave it out for 1`,
		"weight = -1":     `tenant "a": weight -1; give a number above 0, or leave it out for 1`,
		"weight = \"x\"":  "a number is required",
		"weight = 1e-300": "1e-300",
	} {
		path := filepath.Join(t.TempDir(), "t.hcl")
		if err := os.WriteFile(path, []byte("tenant \"a\" {\n  "+text+"\n}\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		f := &fakeCoordinator{}
		out, err := f.run(t, t.Context(), "tenant", "apply", path)
		switch {
		case err != nil:
			if exitCode(err) != exitRefused || !strings.Contains(err.Error(), want) || len(f.tenants) > 0 {
				t.Errorf("%s: exit code %d, %v, applied %v", text, exitCode(err), err, f.tenants)
			}
		case out != "1 of 1 tenants changed\n" || fmt.Sprint(f.tenants[0].Weight) != want:
			t.Errorf("%s: %q, weight %v, want %s", text, out, f.tenants[0].Weight, want)
		}
	}
}
