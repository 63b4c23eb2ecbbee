package main

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPackageIsMade makes the Debian package around a stand-in for the program: each
// file that it is to carry has to be where dist/debian/package.sh looks for it.
func TestPackageIsMade(t *testing.T) {
	for _, tool := range []string{"dpkg-deb", "git", "bash"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("not proved here: that the Debian package can be made: %v", err)
		}
	}
	built, common, out := t.TempDir(), t.TempDir(), t.TempDir()
	for _, path := range []string{
		filepath.Join(built, "drover"), filepath.Join(built, "copyright"),
		filepath.Join(common, "man", "drover.1.gz"),
		filepath.Join(common, "completions", "bash"), filepath.Join(common, "completions", "zsh"), filepath.Join(common, "completions", "fish"),
		filepath.Join(common, "etc", "coordinator.example.hcl"), filepath.Join(common, "etc", "node.example.hcl"),
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, path, "stand-in\n")
	}
	script := filepath.Join("..", "..", "dist", "debian", "package.sh")
	run := exec.Command("bash", script, "amd64", "1.2.3", built, common, out)
	run.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1700000000")
	if text, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, text)
	}
	list, err := exec.Command("dpkg-deb", "--contents", filepath.Join(out, "drover_1.2.3_amd64.deb")).Output() // a path is the last word
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"./usr/bin/drover", "./usr/share/man/man1/drover.1.gz", "./etc/drover/node.example.hcl",
		"./usr/lib/systemd/system/drover-coordinator.service", "./usr/lib/systemd/system/drover-node.service", "./usr/lib/systemd/system/drover-tasks.service",
		"./usr/share/doc/drover/install.md", "./usr/share/doc/drover/job-file.md", "./usr/share/doc/drover/examples/hello/hello.hcl",
	} {
		if !strings.Contains(string(list), " "+want+"\n") {
			t.Errorf("the package lacks %s", want)
		}
	}
	checkFilesAreDocumented(t, string(list))
	tree := t.TempDir()
	if text, err := exec.Command("dpkg-deb", "--extract", filepath.Join(out, "drover_1.2.3_amd64.deb"), tree).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	checkPackagedLinks(t, filepath.Join(tree, "usr", "share", "doc", "drover"))
}

// checkPackagedLinks wants every link of the package's pages to lead to another page there, or to where the sources are
// published; there, to a file of the sources.
func checkPackagedLinks(t *testing.T, dir string) {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages in the package (%v)", err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`).FindAllStringSubmatch(string(text), -1) {
			file := filepath.Join(dir, m[1])
			if p, ok := strings.CutPrefix(m[1], "https://github.com/drover-run/drover/blob/main/"); ok {
				file = filepath.Join("..", "..", p)
			} else if strings.HasPrefix(m[1], "https://") {
				continue
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s: %v", filepath.Base(page), m[1], err)
			}
		}
	}
}

// checkFilesAreDocumented wants every file of a package in the table of install.md, by
// its path, a pattern or its folder.
func checkFilesAreDocumented(t *testing.T, list string) {
	t.Helper()
	var known []string
	for _, m := range regexp.MustCompile("`(/[^` ]+)`|, `([a-z]+\\.hcl)`|; `(\\*[a-z.]+\\.hcl)`").FindAllStringSubmatch(readDoc(t, "docs/how-to/install.md"), -1) {
		if m[1] != "" {
			known = append(known, m[1])
		} else {
			known = append(known, "/etc/drover/"+m[2]+m[3])
		}
	}
	files := 0
	for line := range strings.Lines(list) {
		words := strings.Fields(line)
		file := strings.TrimPrefix(words[len(words)-1], ".")
		if strings.HasSuffix(file, "/") {
			continue
		}
		files++
		if !slices.ContainsFunc(known, func(k string) bool {
			same, err := path.Match(k, file)
			return err == nil && same || strings.HasSuffix(k, "/") && strings.HasPrefix(file, k)
		}) {
			t.Errorf("docs/how-to/install.md does not name %s", file)
		}
	}
	if files < 15 {
		t.Errorf("the package has only %d files:\n%s", files, list)
	}
}

// What install.md says of the users and capabilities of the services is in their units.
func TestInstallTableOfServicesIsTrue(t *testing.T) {
	doc := readDoc(t, "docs/how-to/install.md")
	for _, c := range []struct{ unit, user, capabilities string }{
		{"drover-coordinator", "`drover`", "none"},
		{"drover-node", "root", "all"},
		{"drover-tasks", "root", "none"},
	} {
		if row := "| `" + c.unit + "` | " + c.user + " | " + c.capabilities; !strings.Contains(doc, row) {
			t.Errorf("docs/how-to/install.md has no %q", row)
		}
		unit := "\n" + readDoc(t, "dist/systemd/"+c.unit+".service")
		if got := strings.Contains(unit, "\nUser=drover\n"); got != (c.user == "`drover`") || strings.Count(unit, "\nUser=") > 1 {
			t.Errorf("%s.service has another user than %s", c.unit, c.user)
		}
		if got := strings.Contains(unit, "\nCapabilityBoundingSet=\n"); got != (c.capabilities == "none") {
			t.Errorf("%s.service has other capabilities than %s", c.unit, c.capabilities)
		}
		if !strings.Contains(unit, "\nNoNewPrivileges=yes\n") {
			t.Errorf("%s.service may gain privileges", c.unit)
		}
	}
}

// The commands that install.md shows step by step are those that the step `fresh` of
// make vagrant-test types on machines with systemd.
func TestInstallStepsAreTried(t *testing.T) {
	_, steps, ok := strings.Cut(readDoc(t, "docs/how-to/install.md"), "\n## Step by step\n")
	steps, _, found := strings.Cut(steps, "\n### ")
	script := readDoc(t, "integration/vagrant/steps.sh")
	_, tried, has := strings.Cut(script, "\nstep_fresh() {")
	tried, _, _ = strings.Cut(tried, "\n}\n")
	if !ok || !found || !has {
		t.Fatal("install.md has no section \"Step by step\", or steps.sh no step_fresh")
	}
	tried += functionOf(t, script, "nodes_up") + functionOf(t, script, "first_job")
	shown := regexp.MustCompile(`(?m)^    ((?:drover|apt-get)(?: [a-z]+)+)(?: |$)`).FindAllStringSubmatch(steps, -1)
	if len(shown) < 6 {
		t.Errorf("install.md shows only %d commands: %q", len(shown), shown)
	}
	for _, m := range shown {
		if command := strings.TrimPrefix(m[1], "drover "); !strings.Contains(tried, command) {
			t.Errorf("install.md shows %q, which the step fresh of integration/vagrant/steps.sh does not use", m[1])
		}
	}
}

// functionOf returns the text of a function of a shell script that begins a line.
func functionOf(t *testing.T, script, name string) string {
	t.Helper()
	_, text, ok := strings.Cut(script, "\n"+name+"() {")
	if !ok {
		t.Fatalf("no function %s", name)
	}
	text, _, _ = strings.Cut(text, "\n}\n")
	return text
}
