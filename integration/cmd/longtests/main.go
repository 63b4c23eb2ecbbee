// Command longtests prints the arguments of go test for the tests whose outcome may depend on -short
// or DROVER_SOAK: -run with their names, and their packages.
//
// make check runs all unit tests with -short. make test then runs only these tests without -short,
// because all others would do the same again. The command finds these dependencies in the source
// (see longTests), and rather lists too many tests than too few.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// onRequest looks at -short only for a script that requests it by a line that begins with [short]
// or [!short].
const onRequest = "github.com/rogpeppe/go-internal/testscript"

func main() {
	tests, err := findLong(".", os.Getenv(soakVar) != "")
	if err == nil && len(tests) == 0 {
		err = errors.New("no test looks at -short: run this in the repository")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "longtests:", err)
		os.Exit(1)
	}
	fmt.Println(strings.Join(goTestArgs(tests), " "))
}

// goTestArgs returns the arguments that run the tests. A test name that several packages have runs
// in each of them.
func goTestArgs(tests []test) []string {
	var names, folders []string
	for _, x := range tests {
		names = append(names, x.name)
		folders = append(folders, x.pkg)
	}
	slices.Sort(names)
	slices.Sort(folders)
	return append([]string{"-run", "^(" + strings.Join(slices.Compact(names), "|") + ")$"}, slices.Compact(folders)...)
}

// findLong returns the tests of the repository at root that may depend on -short.
func findLong(root string, soak bool) ([]test, error) {
	loaded, err := load(root)
	if err != nil {
		return nil, err
	}
	modules, err := modulesThatLook(root)
	if err != nil {
		return nil, err
	}
	return longTests(loaded, modules, soak)
}

// load type-checks all packages of the repository with their tests.
func load(root string) ([]*packages.Package, error) {
	c := &packages.Config{Dir: root, Tests: true, Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedTypes | packages.NeedTypesSizes | packages.NeedSyntax | packages.NeedTypesInfo}
	all, err := packages.Load(c, "./...")
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		if len(p.Errors) > 0 {
			return nil, fmt.Errorf("%s: %w", p.ID, p.Errors[0])
		}
	}
	return all, nil
}

// modulesThatLook returns the packages of other modules that look at -short, and those that import
// them.
func modulesThatLook(root string) (map[string]bool, error) {
	lines, err := goList(root, "-deps", "-test", "-f", "{{if .Module}}{{if not .Module.Main}}{{.ImportPath}}\t{{.Dir}}\t{{join .GoFiles \" \"}}\t{{join .Imports \" \"}}{{end}}{{end}}")
	if err != nil {
		return nil, err
	}
	look := map[string]bool{}
	for _, f := range lines { // go list -deps prints a package after those that it imports
		if len(f) != 4 {
			return nil, fmt.Errorf("unexpected line of go list: %q", f)
		}
		imports := strings.Fields(f[3])
		found := slices.ContainsFunc(imports, func(p string) bool { return look[p] })
		if slices.Contains(imports, "testing") {
			for _, name := range strings.Fields(f[2]) {
				text, err := os.ReadFile(filepath.Join(f[1], name))
				if err != nil {
					return nil, err
				}
				found = found || bytes.Contains(text, []byte("testing.Short"))
			}
		}
		if found && f[0] != onRequest {
			look[f[0]] = true
		}
	}
	return look, nil
}

// goList returns the fields of the lines of go list ARGS ./....
func goList(root string, args ...string) (lines [][]string, err error) {
	c := exec.Command("go", append(append([]string{"list"}, args...), "./...")...)
	c.Dir, c.Stderr = root, os.Stderr
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimRight(line, "\n"); line != "" {
			lines = append(lines, strings.Split(line, "\t"))
		}
	}
	return lines, nil
}
