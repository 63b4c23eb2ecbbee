package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/scheduler"
)

const docsRoot = "../.."

func readDoc(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(docsRoot, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Debian's Go is older than the one of go.mod, and says no more than "invalid go version".
func TestDocsNameTheGoVersion(t *testing.T) {
	m := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(readDoc(t, "go.mod"))
	if m == nil {
		t.Fatal("go.mod has no version of Go")
	}
	for _, name := range []string{"README.md", "CONTRIBUTING.md", "docs/tutorial/cluster.md"} {
		if !strings.Contains(readDoc(t, name), "Go "+m[1]+" or newer") {
			t.Errorf("%s does not say that Go %s or newer is needed", name, m[1])
		}
	}
}

// Operators look up the flags of the daemons in operating.md.
func TestDaemonFlagsAreDocumented(t *testing.T) {
	doc := readDoc(t, "docs/how-to/operating.md")
	for _, c := range []*cli.Command{coordinatorCommand(), nodeCommand()} {
		for _, f := range c.Flags {
			if name := "`-" + f.Names()[0] + "`"; !strings.Contains(doc, name) {
				t.Errorf("docs/how-to/operating.md does not name %s of drover %s", name, c.Name)
			}
		}
	}
}

var (
	flagRE   = regexp.MustCompile("`(?:drover|bin/drover) ([a-z]+(?: [a-z]+)?)[^`]*`")
	flagsRE  = regexp.MustCompile(` -([a-z][a-z0-9-]*)`)
	codeLine = regexp.MustCompile(`(?m)^(?:    +)?(?:bin/)?drover ([a-z]+(?: [a-z]+)?)(.*)$`)
)

// The commands and flags shown in user documents must exist. Documents on design
// may also mention others.
func TestDocCommandsExist(t *testing.T) {
	app := newApp(strings.NewReader(""), io.Discard, io.Discard)
	total := 0
	for _, file := range docFiles(t) {
		if strings.HasPrefix(file, "docs/explanation/design/") {
			continue
		}
		text := readDoc(t, file)
		found := append(flagRE.FindAllStringSubmatch(text, -1), codeLine.FindAllStringSubmatch(text, -1)...)
		total += len(found)
		for _, m := range found {
			words := strings.Fields(m[1])
			c := app.Command(words[0])
			if c == nil {
				t.Errorf("%s: %q: there is no such command", file, m[0])
				continue
			}
			if len(words) > 1 && len(c.Subcommands) > 0 {
				i := slices.IndexFunc(c.Subcommands, func(s *cli.Command) bool { return s.Name == words[1] })
				if i < 0 {
					t.Errorf("%s: %q: drover %s has no such verb", file, m[0], words[0])
					continue
				}
				c = c.Subcommands[i]
				_, rest, _ := strings.Cut(m[0], m[1])
				if next := strings.Fields(rest); len(next) > 0 { // a third level, as drover config init node
					if i := slices.IndexFunc(c.Subcommands, func(s *cli.Command) bool { return s.Name == next[0] }); i >= 0 {
						c = c.Subcommands[i]
					}
				}
			}
			checkFlags(t, file, m[0], c)
		}
	}
	if total < 40 {
		t.Errorf("found only %d commands in the texts", total)
	}
}

func checkFlags(t *testing.T, file, text string, c *cli.Command) {
	t.Helper()
	line, _, _ := strings.Cut(text, " #")
	line, _, _ = strings.Cut(line, "|")
	for _, f := range flagsRE.FindAllStringSubmatch(line, -1) {
		if f[1] == "h" {
			continue
		}
		known := slices.ContainsFunc(c.Flags, func(have cli.Flag) bool { return slices.Contains(have.Names(), f[1]) })
		if !known {
			t.Errorf("%s: %q: drover %s has no flag -%s", file, text, c.Name, f[1])
		}
	}
}

// The tenant file shown in operating.md must be valid.
func TestDocTenantFileIsValid(t *testing.T) {
	_, rest, ok := strings.Cut(readDoc(t, "docs/how-to/operating.md"), "    # tenants.hcl\n")
	if !ok {
		t.Fatal("docs/how-to/operating.md shows no tenants.hcl")
	}
	block, _, _ := strings.Cut(rest, "\n\n`")
	file := filepath.Join(t.TempDir(), "tenants.hcl")
	if err := os.WriteFile(file, []byte(block), 0o644); err != nil {
		t.Fatal(err)
	}
	tenants, err := readTenants(file)
	if err != nil || len(tenants) != 2 || tenants[1].GetCap().GetCpu() != 64_000 {
		t.Errorf("%d tenants, %v", len(tenants), err)
	}
}

// TestDocConfigurationsAreRead: the settings that the guides give to coordinators are settings.
func TestDocConfigurationsAreRead(t *testing.T) {
	for _, page := range []string{"docs/how-to/operating.md", "docs/how-to/three-coordinators.md"} {
		blocks := hclBlock.FindAllStringSubmatch(readDoc(t, page), -1)
		if len(blocks) == 0 {
			t.Errorf("%s shows no configuration", page)
		}
		for _, b := range blocks {
			if _, err := parseConfig(coordinatorCommand(), page, []byte(b[1])); err != nil {
				t.Errorf("%v in\n%s", err, b[1])
			}
		}
	}
}

// hclBlock is a block of HCL in a page.
var hclBlock = regexp.MustCompile("(?s)```hcl\n(.*?)```")

// The job files shown in job-file.md must be valid.
func TestDocJobFilesAreValid(t *testing.T) {
	blocks := hclBlock.FindAllStringSubmatch(readDoc(t, "docs/reference/job-file.md"), -1)
	if len(blocks) == 0 {
		t.Fatal("docs/reference/job-file.md shows no job")
	}
	for _, m := range blocks {
		file := filepath.Join(t.TempDir(), "job.hcl")
		if err := os.WriteFile(file, []byte(m[1]), 0o644); err != nil {
			t.Fatal(err)
		}
		app := newApp(strings.NewReader(""), io.Discard, os.Stderr)
		for _, name := range []string{"python.tar", "wc_map.py", "wc_reduce.py"} { // files named by the jobs
			if err := os.WriteFile(filepath.Join(filepath.Dir(file), name), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := app.Run([]string{"drover", "job", "validate", file}); err != nil {
			t.Error(err)
		}
	}
}

// Every pending reason must be explained in operating.md.
func TestEveryPendingReasonIsDocumented(t *testing.T) {
	doc := readDoc(t, "docs/how-to/operating.md")
	n := 0
	for r := scheduler.Reason(1); !strings.HasPrefix(r.String(), "reason("); r++ {
		n++
		if !strings.Contains(doc, "`"+r.String()+"`") {
			t.Errorf("docs/how-to/operating.md does not explain %q", r)
		}
	}
	if n < 10 {
		t.Errorf("%d reasons found", n)
	}
}
