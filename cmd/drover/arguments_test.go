package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/jobspec"
)

// runNowhere runs a command line that no coordinator answers. Its context has ended, so that a
// daemon that starts in spite of its arguments ends at once.
func runNowhere(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	for _, name := range []string{"DROVER_ADDRESS", "DROVER_COORDINATOR", "DROVER_TOKEN", "DROVER_TOKEN_FILE", "DROVER_TLS_CA", "DROVER_TLS_CERT", "DROVER_TLS_KEY"} {
		t.Setenv(name, "") // put back at the end
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out, errs bytes.Buffer
	full := append([]string{"drover", "-address", "unix://" + filepath.Join(t.TempDir(), "none")}, args...)
	err = newApp(strings.NewReader(""), &out, &errs).RunContext(ctx, full)
	return out.String(), errs.String(), err
}

// TestValueThatIsNoText: a value of a variable that is not UTF-8 is refused, not changed.
func TestValueThatIsNoText(t *testing.T) {
	_, stderr, err := runNowhere(t, "job", "validate", "-var", "day=a\xff", "nothere.hcl")
	if code := exitCode(err); code != 2 || !strings.Contains(stderr+err.Error(), "want text in UTF-8") {
		t.Errorf("exit code %d, %v, %s", code, err, stderr)
	}
}

// leafCommands calls f with the path of each command that has no subcommands, hidden ones left out.
func leafCommands(f func(path []string, c *cli.Command)) {
	var walk func(path []string, all []*cli.Command)
	walk = func(path []string, all []*cli.Command) {
		for _, c := range all {
			if at := append(slices.Clone(path), c.Name); c.Hidden || c.Name == "help" {
				continue
			} else if len(c.Subcommands) > 0 {
				walk(at, c.Subcommands)
			} else {
				f(at, c)
			}
		}
	}
	walk(nil, newApp(strings.NewReader(""), new(bytes.Buffer), new(bytes.Buffer)).Commands)
}

// TestEveryCommandCountsItsArguments: one argument too many, and none where one is needed, is a
// usage error that shows the form of the command, and nothing is done.
func TestEveryCommandCountsItsArguments(t *testing.T) {
	t.Chdir(t.TempDir())
	needed := map[string][]string{ // flags that are looked at before the arguments
		"sim reproduce": {"-out", "out"}, "task migrate": {"-node", "n1"}, "bench task": {"-image", "i", "-ref", "r"},
	}
	tested := 0
	leafCommands(func(path []string, c *cli.Command) {
		name := strings.Join(path, " ")
		words := strings.Fields(c.ArgsUsage)
		check := func(args ...string) {
			t.Helper()
			tested++
			_, _, err := runNowhere(t, slices.Concat(path, needed[name], args)...)
			if exitCode(err) != exitUsage || !strings.Contains(err.Error(), name) {
				t.Errorf("drover %s with %d arguments: exit code %d, %v; want a usage error that names the command", name, len(args), exitCode(err), err)
			}
		}
		if !strings.Contains(c.ArgsUsage, "...") {
			check(slices.Repeat([]string{"1"}, len(words)+1)...)
		}
		if len(words) > 0 && !strings.HasPrefix(words[0], "[") {
			check()
		}
	})
	if tested < 80 {
		t.Errorf("%d command lines were tested: the tree has more", tested)
	}
}

// TestEveryNumberFlagRefusesWords: a number, duration or choice that cannot be read is a usage error
// that names the flag and where the flags are listed.
func TestEveryNumberFlagRefusesWords(t *testing.T) {
	tested := 0
	leafCommands(func(path []string, c *cli.Command) {
		for _, f := range c.Flags {
			switch f.(type) {
			case *cli.IntFlag, *cli.Int64Flag, *cli.UintFlag, *cli.Uint64Flag, *cli.Float64Flag, *cli.DurationFlag, *cli.IntSliceFlag, *cli.Float64SliceFlag:
			default:
				continue
			}
			name := f.Names()[0]
			tested++
			_, _, err := runNowhere(t, append(slices.Clone(path), "-"+name+"=few")...)
			want := fmt.Sprintf("`drover %s -h` lists the flags", strings.Join(path, " "))
			if exitCode(err) != exitUsage || !strings.Contains(err.Error(), "-"+name) || !strings.Contains(err.Error(), `"few"`) || !strings.Contains(err.Error(), want) {
				t.Errorf("drover %s -%s=few: exit code %d, %v", strings.Join(path, " "), name, exitCode(err), err)
			}
		}
	})
	if tested < 90 {
		t.Errorf("%d flags were tested: the tree has more", tested)
	}
}

// TestSynonymsNameCommands: a command by which users of other systems look for one of drover's is none, and that which is named instead
// is one.
func TestSynonymsNameCommands(t *testing.T) {
	known := map[string]bool{}
	leafCommands(func(path []string, _ *cli.Command) { known[strings.Join(path, " ")] = true })
	for other, command := range synonyms {
		name, _, _ := strings.Cut(command, " -")
		if known[other] || !known[name] {
			t.Errorf("%q is a command (%v) or %q is none", other, known[other], command)
		}
		if _, _, err := runNowhere(t, strings.Fields(other)...); exitCode(err) != exitUsage {
			t.Errorf("drover %s: exit code %d, %v", other, exitCode(err), err)
		}
	}
	if _, errs, err := runNowhere(t, "job", "kill", "wc"); exitCode(err) != exitUsage || !strings.Contains(errs+fmt.Sprint(err), "drover job has no command \"kill\"; that is `drover job stop`") {
		t.Errorf("drover job kill: %v, %q", err, errs)
	}
}

// TestHelpOfEveryCommand: `drover help job run`, `drover job help run` and `drover job run -h` are the same, and nothing is run for them.
func TestHelpOfEveryCommand(t *testing.T) {
	leafCommands(func(path []string, c *cli.Command) {
		want, _, err := runNowhere(t, append(slices.Clone(path), "-h")...)
		if err != nil || !strings.Contains(want, strings.Join(path, " ")+" - "+c.Usage) {
			t.Errorf("drover %s -h: %v, %q", strings.Join(path, " "), err, want)
		}
		for i := range path {
			line := slices.Insert(slices.Clone(path), i, "help")
			if got, _, err := runNowhere(t, append(line, "x")...); got != want || err != nil {
				t.Errorf("drover %s: %v, %q; want the same as with -h", strings.Join(line, " "), err, got)
			}
		}
	})
	for line, want := range map[string]string{
		"help":     "drover - run batch jobs",
		"job help": "drover job - run, follow and stop jobs",
		"help job": "drover job - run, follow and stop jobs",
	} {
		if got, _, err := runNowhere(t, strings.Fields(line)...); err != nil || !strings.Contains(got, want) {
			t.Errorf("drover %s: %v, %q; want %q", line, err, got, want)
		}
	}
}

// TestUsageErrors: what is wrong about a command line is said before anything is asked of a
// coordinator (here there is none, which would be exit code 4).
func TestUsageErrors(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, c := range []struct{ line, want string }{
		{"job list -limit -5", "-limit -5: want a number from 0 to 2147483647"},
		{"job list -limit 3000000000", "-limit 3000000000: want a number from 0 to 2147483647"},
		{"job list -state runing", "-state runing: did you mean running?"},
		{"job list -state x", "-state x: want one of pending, running, committing, succeeded, failed, stopped"},
		{"job history -limit -1", "-limit -1: want a number from 0"},
		{"job history -state running", "-state running: want one of succeeded, failed, stopped"},
		{"job history -state stoped", "did you mean stopped?"},
		{"job history -since 2026-13-01", "-since 2026-13-01: want a day (2026-01-31), a time (2026-01-31T12:00:00Z), or how long ago (36h, 7d)"},
		{"job history -until=-3d", "-until -3d: want a day"},
		{"job history -csv -json", "-json and -csv: choose one"},
		{"usage -limit -5", "-limit -5: want a number from 0"},
		{"usage -by week", "want day, tenant, user or job"},
		{"usage -until later", "-until later: want a day"},
		{"events -limit -1", "-limit -1: want a number from 0"},
		{"events -since=-5m", "-since -5m0s: want a duration such as 10m"},
		{"monitor -recent 1001", "-recent 1001: want a number from 0 to 1000"},
		{"monitor -recent -1", "-recent -1: want a number from 0 to 1000"},
		{"monitor -log-level loud", "want error, warn, info or debug"},
		{"job logs -tail -3 wc", "-tail -3: want a number of lines, 0 for all"},
		{"task logs -n -3 wc map/0", "-tail -3: want a number of lines, 0 for all"},
		{"task logs wc map", "want STAGE/INDEX such as map/3"},
		{"task logs wc map/-1", `"map/-1"`},
		{"task logs wc map/0.0", `"map/0.0": attempts count from 1`},
		{"task status wc map/x", "want STAGE/INDEX such as map/3"},
		{"task suspend -level deep wc map/0", `-level "deep": use frozen, swapped or checkpointed`},
		{"task migrate wc map/0", "-node is missing"},
		{"node drain -off -deadline 5s n1", "-off and -deadline exclude each other"},
		{"node drain -deadline=-5s n1", "-deadline -5s: want a time from now, such as 10m"},
		{"node drain -deadline 0s n1", "-deadline 0s: want a time from now"},
		{"node maintain n1", "-for 0s: give the length of the window, such as 2h, or -cancel"},
		{"node maintain -for=-1h n1", "-for -1h0m0s: give the length of the window"},
		{"node maintain -cancel -for 1h n1", "-for 1h0m0s: give the length of the window, such as 2h, or -cancel"},
		{"node maintain -from yesterday -for 1h n1", `-from "yesterday": give a time such as 2026-11-30T02:00:00Z, or one from now such as 36h`},
		{"scheduler set -set strict fifo", `-set "strict": want key=value`},
		{"ui -listen 0.0.0.0:0", "the page is served to this machine only: use 127.0.0.1"},
		{"ui -listen nonsense", `-listen "nonsense": want HOST:PORT, such as 127.0.0.1:0`},
		{"dev -socket s -ui 0.0.0.0:0", `-ui "0.0.0.0:0": the page is served to this machine only: use 127.0.0.1`},
		{"dev -socket s -ui nonsense", `-ui "nonsense": want HOST:PORT, such as 127.0.0.1:0`},
		{"events -since 10", "-since \"10\": want a duration such as 90s, 15m or 2h; `drover events -h` lists the flags"},
		{"job run -require-quote 95% wc.hcl", `-require-quote "95%": want a number such as 0.5`},
		{"sim levels -cost much", `-cost "much": want a number such as 0.5`},
		{"bench scheduler -nodes 5,many", `-nodes "5,many": want a whole number`},
		{"job list -limit many", `-limit "many": want a whole number`},
		{"sim run -seed -1", `-seed "-1": want a whole number, 0 or above`},
		{"job list -all=perhaps", `-all "perhaps": want true or false`},
		{"sim run -runs 99999999999999999999", `-runs "99999999999999999999": the number is too large`},
		{"-address https://127.0.0.1:1 dev", "drover dev listens on a unix socket: set -socket /path"},
		{"-address nonsense job list", "want unix:///path or https://host:port"},
		{"coordinator -blob-quota much -data d -socket s", "-blob-quota: size \"much\": want a number with a unit"},
		{"coordinator -history-size much -data d -socket s", "-history-size: "},
		{"coordinator -disk-reserve much -data d -socket s", "-disk-reserve: "},
		{"coordinator -oidc-client-id x -data d -socket s", "-oidc-client-id needs -oidc-issuer"},
		{"coordinator -oidc-issuer https://id.example -oidc-client-id x -data d -socket s", "-oidc-issuer needs -listen: the socket takes no tokens"},
		{"login", "-oidc-issuer is missing"},
		{"login -oidc-issuer https://127.0.0.1:1", "-oidc-client-id is missing"},
		{"login -oidc-issuer https://127.0.0.1:1 -oidc-client-id x", "-token-file is missing: name the file for the token, before the command, or in DROVER_TOKEN_FILE"},
		{"tls revoke -dir ca", "give either a NAME or -serial"},
		{"tls revoke -dir ca -serial 12 alice", "give either a NAME or -serial"},
		{"tls revoke -dir ca -serial zz", `-serial "zz": want the hexadecimal number that`},
		{"operator debug -seconds 0", "want 1 to 60"},
		{"operator debug -seconds 61", "want 1 to 60"},
		{"bench coordinator -servers 2", "-servers 2: want 1 or 3"},
		{"bench day -jobs 0", "-jobs, -tasks and -live are at least 1"},
		{"bench day -shape round", `-shape "round": want many or one`},
		{"bench floods -only rain", `-only "rain": there are `},
		{"bench scheduler -steps -features all -nodes 5,10", "-steps takes one number of nodes, the largest"},
		{"bench task", "-image is missing; `drover bench task -h` lists the flags"},
		{"bench task -image i", "-ref is missing"},
		{"bench task -image i -ref r -rounds 0", "-tasks and -rounds must be at least 1"},
		{"help jb", "drover has no command \"jb\"; did you mean `drover job`?"},
		{"help job rn", "drover job has no command \"rn\"; did you mean `drover job run`?"},
		{"job help rn", "drover job has no command \"rn\"; did you mean `drover job run`?"},
		{"-version", "no flag -version; that is `drover version`; `drover -h` lists the flags"},
		{"-versio", "no flag -versio; `drover -h` lists the flags"},
		{"completion csh", "want bash, zsh or fish"},
		{"job run -no-color wc.hcl", "-no-color stands before the command: `drover -no-color … job run`"},
	} {
		stdout, _, err := runNowhere(t, strings.Fields(c.line)...)
		if exitCode(err) != exitUsage || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || stdout != "" {
			t.Errorf("drover %s: exit code %d, %v; want 2 and …%s…, in one line; it printed %q", c.line, exitCode(err), err, c.want, stdout)
		}
	}
	if left, _ := filepath.Glob("*"); len(left) > 0 {
		t.Errorf("wrong command lines left files: %v", left)
	}
}

// What the coordinator refuses for its size is not called valid.
func TestAJobTooLargeIsNotValid(t *testing.T) {
	file := filepath.Join(t.TempDir(), "j.hcl")
	text := fmt.Sprintf("job \"j\" {\n meta = { a = %q }\n stage \"s\" { command = [\"true\"] }\n}\n", strings.Repeat("x", jobspec.MaxBytes))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, _, err := runNowhere(t, "job", "validate", file); exitCode(err) != exitRefused || !strings.Contains(err.Error(), "at most 512KiB are allowed") {
		t.Errorf("exit code %d, %v, %q", exitCode(err), err, out)
	}
}
