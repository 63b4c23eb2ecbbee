// Command sequential divides the packages of the module: it prints "plain PACKAGE" for each whose
// tests start no goroutine, and "race PACKAGE" for all others. make check runs the former without the
// race detector, which would find nothing there and make them several times slower.
//
// The tests of a package start no goroutine if no file of the package, of its tests, or of the
// packages of this module that they import, directly or indirectly, may start one (see mayStart).
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// starters are packages of other modules that call back from their own goroutines, or that only
// concurrent code uses.
var starters = []string{
	"golang.org/x/sync/errgroup", "net/http", "net/http/httptest", "os/signal", "testing/synctest",
	"connectrpc.com/connect", "github.com/rogpeppe/go-internal/testscript",
}

// startingNames are the names of methods and functions that start a goroutine, in any package: of
// sync.WaitGroup, context, time and testing.
var startingNames = []string{"Go", "AfterFunc", "Parallel", "RunParallel"}

// startingCalls are functions of one package that start a goroutine and whose names other packages
// use too. os/exec copies a process's output in goroutines, but Run and Output wait for them, so
// only Start counts.
var startingCalls = map[string][]string{
	"os/exec": {"Start"}, "net": {"Listen", "ListenConfig", "Pipe", "Dial", "Dialer"}, "go.etcd.io/bbolt": {"Batch"}, "github.com/hashicorp/raft": {"NewRaft"},
}

func main() {
	sequential, others, err := divide(".")
	if err != nil {
		fmt.Fprintln(os.Stderr, "sequential:", err)
		os.Exit(1)
	}
	for _, p := range sequential {
		fmt.Println("plain", p)
	}
	for _, p := range others {
		fmt.Println("race", p)
	}
}

// source is a package of the module.
type source struct {
	starts, testsStart   bool // a file of the package, or of its tests, may start a goroutine
	imports, testImports []string
}

// divide returns the packages of the module at root whose tests start no goroutine, and all others,
// in order.
func divide(root string) (sequential, others []string, err error) {
	all, err := list(root)
	if err != nil {
		return nil, nil, err
	}
	for _, path := range slices.Sorted(maps.Keys(all)) {
		p := all[path]
		reached := map[string]bool{}
		if p.testsStart || reachStart(all, append([]string{path}, p.testImports...), reached) {
			others = append(others, path)
		} else {
			sequential = append(sequential, path)
		}
	}
	return sequential, others, nil
}

// reachStart reports whether one of the packages, or of those that they import, may start a
// goroutine. It skips packages of other modules, and packages that were reached before.
func reachStart(all map[string]source, paths []string, reached map[string]bool) bool {
	return slices.ContainsFunc(paths, func(path string) bool {
		p, ok := all[path]
		if !ok || reached[path] {
			return false
		}
		reached[path] = true
		return p.starts || reachStart(all, p.imports, reached)
	})
}

// list reads the packages of the module at root.
func list(root string) (map[string]source, error) {
	c := exec.Command("go", "list", "-f", "{{.ImportPath}}\t{{.Dir}}\t{{join .GoFiles \" \"}}\t{{join .Imports \" \"}}\t{{join .TestGoFiles \" \"}} {{join .XTestGoFiles \" \"}}\t{{join .TestImports \" \"}} {{join .XTestImports \" \"}}", "./...")
	c.Dir, c.Stderr = root, os.Stderr
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	all := map[string]source{}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) != 6 {
			return nil, fmt.Errorf("unexpected line of go list: %q", line)
		}
		p := source{imports: strings.Fields(f[3]), testImports: strings.Fields(f[5])}
		if p.starts, err = anyMayStart(f[1], strings.Fields(f[2])); err != nil {
			return nil, err
		}
		if p.testsStart, err = anyMayStart(f[1], strings.Fields(f[4])); err != nil {
			return nil, err
		}
		all[f[0]] = p
	}
	return all, nil
}

func anyMayStart(dir string, files []string) (bool, error) {
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return false, err
		}
		if mayStart(f) {
			return true, nil
		}
	}
	return false, nil
}

// mayStart reports whether a file has a go statement, imports one of starters, or names a function
// that starts a goroutine.
func mayStart(f *ast.File) (yes bool) {
	names := slices.Clone(startingNames)
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			yes = true
		case *ast.ImportSpec: // imports come before all declarations of the file
			path, err := strconv.Unquote(n.Path.Value)
			names = append(names, startingCalls[path]...)
			yes = yes || err != nil || slices.Contains(starters, path)
		case *ast.SelectorExpr:
			yes = yes || slices.Contains(names, n.Sel.Name)
		}
		return !yes
	})
	return yes
}
