// Command licences prints the copyright notices of everything that is compiled
// into the given packages besides Drover itself: Go's standard library and each
// module, from the module cache. A module without a notice is an error. The same
// modules give the same bytes.
//
//	go run ./dist/cmd/licences ./cmd/drover ./cmd/drover-harness ./cmd/drover-helper ./cmd/drover-logger ./cmd/drover-init
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "licences: "+err.Error())
		os.Exit(1)
	}
}

// module is a module with the folders of its packages that are used.
type module struct {
	path, version, root string
	folders             map[string]bool
}

func run(packages []string, w io.Writer) error {
	if len(packages) == 0 {
		return errors.New("want the packages that are distributed")
	}
	modules, err := modulesOf(packages)
	if err != nil {
		return err
	}
	goroot, err := output("go", "env", "GOROOT")
	if err != nil {
		return err
	}
	version, err := output("go", "env", "GOVERSION")
	if err != nil {
		return err
	}
	root := strings.TrimSpace(string(goroot))
	modules["std"] = &module{path: "the Go standard library", version: strings.TrimSpace(string(version)), root: root, folders: map[string]bool{root: true}}
	fmt.Fprintln(w, "This package contains Drover and, compiled into its programs, the software listed\nbelow with its notices. The source code of each is what the Go module proxy holds\nunder the module's path and version; it was not changed.")
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		if err := printModule(w, modules[name]); err != nil {
			return err
		}
	}
	return nil
}

func output(name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return b, nil
}

// modulesOf lists the modules of all packages that the given ones reach.
func modulesOf(packages []string) (map[string]*module, error) {
	b, err := output("go", append([]string{"list", "-deps", "-json=Dir,Module"}, packages...)...)
	if err != nil {
		return nil, err
	}
	modules := map[string]*module{}
	for d := json.NewDecoder(bytes.NewReader(b)); ; {
		var p struct {
			Dir    string
			Module *struct {
				Path, Version, Dir string
				Main               bool
				Replace            *struct{ Path, Version, Dir string }
			}
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return modules, nil
		} else if err != nil {
			return nil, err
		}
		if p.Module == nil || p.Module.Main {
			continue
		}
		m := modules[p.Module.Path]
		if m == nil {
			m = &module{path: p.Module.Path, version: p.Module.Version, root: p.Module.Dir, folders: map[string]bool{}}
			modules[p.Module.Path] = m
		}
		m.folders[p.Dir] = true
	}
}

var noticeName = regexp.MustCompile(`(?i)^(un)?licen[cs]e|^copying|^notice|^patents|^copyright`)

// printModule prints the notices in the module's folder and in those between it and
// the packages used, which may hold what others wrote.
func printModule(w io.Writer, m *module) error {
	found := map[string]bool{}
	for folder := range m.folders {
		for at := folder; ; at = filepath.Dir(at) {
			entries, err := os.ReadDir(at)
			if err != nil {
				return err
			}
			for _, e := range entries {
				if !e.IsDir() && noticeName.MatchString(e.Name()) && filepath.Ext(e.Name()) != ".go" {
					found[filepath.Join(at, e.Name())] = true
				}
			}
			if at == m.root || len(at) <= len(m.root) {
				break
			}
		}
	}
	if len(found) == 0 {
		return fmt.Errorf("%s %s has no file with its licence in %s: find out what may be done with it before it is distributed", m.path, m.version, m.root)
	}
	for _, file := range slices.Sorted(maps.Keys(found)) {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(m.root, file)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "\n%s\n%s %s: %s\n\n%s\n", strings.Repeat("=", 79), m.path, m.version, rel, strings.TrimRight(string(b), "\n"))
	}
	return nil
}
