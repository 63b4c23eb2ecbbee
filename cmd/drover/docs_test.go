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

// docFiles are the texts for people.
func docFiles(t *testing.T) []string {
	t.Helper()
	files := []string{"README.md", "integration/README.md"}
	err := filepath.WalkDir(filepath.Join(docsRoot, "docs"), func(path string, _ os.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".md" {
			var rel string
			rel, err = filepath.Rel(docsRoot, path)
			files = append(files, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

var linkRE = regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)

func TestLinksOfTheDocsLeadSomewhere(t *testing.T) {
	for _, file := range docFiles(t) {
		for _, m := range linkRE.FindAllStringSubmatch(readDoc(t, file), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(docsRoot, filepath.Dir(file), m[1])); err != nil {
				t.Errorf("%s: the link to %s leads nowhere", file, m[1])
			}
		}
	}
}

func TestEveryDocIsInTheIndex(t *testing.T) {
	index := readDoc(t, "docs/README.md")
	for _, file := range docFiles(t) {
		rel, ok := strings.CutPrefix(file, "docs/")
		if !ok || rel == "README.md" {
			continue
		}
		if folder := filepath.Dir(rel); folder != "." {
			rel = folder // the index names it as a whole
		}
		if !strings.Contains(index, "("+rel+")") {
			t.Errorf("docs/README.md does not list %s", rel)
		}
	}
}

// Operators look flags of the daemons up in one place.
func TestEveryFlagOfTheDaemonsIsDocumented(t *testing.T) {
	doc := readDoc(t, "docs/operating.md")
	for _, c := range []*cli.Command{coordinatorCommand(), nodeCommand()} {
		for _, f := range c.Flags {
			if name := "`-" + f.Names()[0] + "`"; !strings.Contains(doc, name) {
				t.Errorf("docs/operating.md does not name %s of drover %s", name, c.Name)
			}
		}
	}
}

var (
	flagRE   = regexp.MustCompile("`(?:drover|bin/drover) ([a-z]+(?: [a-z]+)?)[^`]*`")
	flagsRE  = regexp.MustCompile(` -([a-z][a-z0-9-]*)`)
	codeLine = regexp.MustCompile(`(?m)^    +(?:bin/)?drover ([a-z]+(?: [a-z]+)?)(.*)$`)
)

// Commands that a text for users shows must be there, with the flags that it
// gives them. Notes on design and status speak of what is not there, too.
func TestCommandsInTheDocsExist(t *testing.T) {
	app := newApp(strings.NewReader(""), io.Discard, io.Discard)
	total := 0
	for _, file := range docFiles(t) {
		if strings.HasPrefix(file, "docs/design/") || strings.HasPrefix(file, "docs/status/") {
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

// The examples of tenants in the text are read as the command reads them.
func TestTenantFileOfTheDocsIsRead(t *testing.T) {
	_, rest, ok := strings.Cut(readDoc(t, "docs/operating.md"), "    # tenants.hcl\n")
	if !ok {
		t.Fatal("docs/operating.md shows no tenants.hcl")
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

// Job files in the text are valid.
func TestJobFilesOfTheDocsAreValid(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```hcl\n(.*?)```").FindAllStringSubmatch(readDoc(t, "docs/job-file.md"), -1)
	if len(blocks) == 0 {
		t.Fatal("docs/job-file.md shows no job")
	}
	for _, m := range blocks {
		file := filepath.Join(t.TempDir(), "job.hcl")
		if err := os.WriteFile(file, []byte(m[1]), 0o644); err != nil {
			t.Fatal(err)
		}
		app := newApp(strings.NewReader(""), io.Discard, os.Stderr)
		for _, name := range []string{"python.tar", "wc_map.py", "wc_reduce.py"} { // that the job names
			if err := os.WriteFile(filepath.Join(filepath.Dir(file), name), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := app.Run([]string{"drover", "job", "validate", file}); err != nil {
			t.Error(err)
		}
	}
}

// Every reason for waiting is explained.
func TestOperatingExplainsEveryReasonForWaiting(t *testing.T) {
	doc := readDoc(t, "docs/operating.md")
	n := 0
	for r := scheduler.Reason(1); !strings.HasPrefix(r.String(), "reason("); r++ {
		n++
		if !strings.Contains(doc, "`"+r.String()+"`") {
			t.Errorf("docs/operating.md does not explain %q", r)
		}
	}
	if n < 10 {
		t.Errorf("%d reasons found", n)
	}
}
