package imports

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const modulePrefix = "github.com/drover-run/drover/"

// rule forbids packages below from (except those in except) to reach anything below denied through
// any chain of imports.
type rule struct {
	from   string
	except []string
	denied []string
	why    string
}

var rules = []rule{
	{
		from:   "scheduler",
		except: []string{"scheduler/sim/trace", "scheduler/sim/report", "scheduler/sim/run", "scheduler/bench", "scheduler/policytest"}, // the last is for tests and reads their scripts
		denied: []string{"os", "net", "log", "log/slog", "os/exec", "math/rand", "crypto/rand", modulePrefix + "coordinator", modulePrefix + "node", modulePrefix + "hdfs", modulePrefix + "api", modulePrefix + "cgroups", modulePrefix + "runtime", modulePrefix + "cmd"},
		why:    "scheduling code is pure: no clock, no I/O, no global random; the simulator and the coordinator run the same code",
	},
	{from: "coordinator/facts", denied: []string{"os", "net", "log", "log/slog", "os/exec", "math/rand", "crypto/rand"}, why: "Apply is pure: each server gets the same facts from the log"},
	{from: "node/task", denied: []string{"os", "net", "log", "log/slog", "math/rand", modulePrefix + "runtime", modulePrefix + "cgroups", modulePrefix + "hdfs"}, why: "the attempt's state machine is pure"},
	{from: "coordinator", denied: []string{modulePrefix + "hdfs", modulePrefix + "node", modulePrefix + "runtime", modulePrefix + "cgroups", modulePrefix + "scheduler/sim", modulePrefix + "cmd"}, why: "the coordinator does not speak HDFS and has no credentials; nodes do"},
	{from: "scheduler/sim", denied: []string{modulePrefix + "coordinator", modulePrefix + "node", modulePrefix + "api"}, why: "the simulator shares only the scheduler with the live system"},
	{from: "runtime", denied: []string{modulePrefix + "node", modulePrefix + "coordinator", modulePrefix + "scheduler", modulePrefix + "api", modulePrefix + "cmd"}, why: "a driver knows containers but not attempts"},
	{from: "cgroups", denied: []string{modulePrefix + "node", modulePrefix + "coordinator", modulePrefix + "runtime", modulePrefix + "api", modulePrefix + "cmd"}, why: "limits know files but not attempts"},
	{from: "hdfs", denied: []string{modulePrefix + "node", modulePrefix + "coordinator", modulePrefix + "scheduler", modulePrefix + "api", modulePrefix + "cmd"}, why: "a client library"},
	{from: "mapreduce", denied: []string{modulePrefix + "node", modulePrefix + "coordinator", modulePrefix + "scheduler", modulePrefix + "api", modulePrefix + "cmd", "net", "github.com/containerd/", "google.golang.org/"}, why: "the harness starts once per task, has no network and is dumped by CRIU: it stays small"},
	{from: "jobspec", except: []string{"jobspec/hcl"}, denied: []string{modulePrefix + "node", modulePrefix + "coordinator", modulePrefix + "scheduler", modulePrefix + "api", modulePrefix + "cmd", "os", "net"}, why: "jobspec is a leaf"},
	{from: "node", denied: []string{modulePrefix + "coordinator", modulePrefix + "scheduler", modulePrefix + "cmd"}, why: "imports point down"},
	{from: "api", denied: []string{modulePrefix + "node", modulePrefix + "coordinator", modulePrefix + "scheduler", modulePrefix + "cmd"}, why: "imports point down"},
}

// isStdlib reports whether pkg is in the standard library. Even a pure package reaches many of its
// packages through others (fmt imports os), so only direct imports of them are forbidden.
func isStdlib(pkg string) bool {
	return !strings.Contains(pkg, ".") && !strings.HasPrefix(pkg, modulePrefix)
}

func TestImportsPointDown(t *testing.T) {
	list := exec.Command("go", "list", "-f", `{{.ImportPath}}|{{join .Imports " "}}|{{join .Deps " "}}`, modulePrefix+"...")
	var said strings.Builder // go also prints which modules it downloads, on a new machine
	list.Stderr = &said
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &said)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		f := strings.Split(line, "|")
		if len(f) != 3 {
			t.Fatalf("unexpected line of go list: %q", line)
		}
		checkPackage(t, f[0], strings.Fields(f[1]), strings.Fields(f[2]))
	}
}

func checkPackage(t *testing.T, pkg string, imports, deps []string) {
	for _, r := range rules {
		if !isBelow(pkg, modulePrefix+r.from) || isBelowAny(pkg, r.except) {
			continue
		}
		for _, denied := range r.denied {
			reached := deps
			if isStdlib(denied) {
				reached = imports
			}
			for _, d := range reached {
				if isForbidden(d, denied) {
					t.Errorf("%s reaches %s, forbidden: %s", pkg, d, r.why)
				}
			}
		}
	}
	for _, d := range imports {
		if isBelow(d, modulePrefix+"cmd") {
			t.Errorf("%s imports %s: no package may import cmd", pkg, d)
		}
	}
}

// isForbidden reports whether import d is the package denied or below it. A denied package of the
// standard library does not include the packages below it.
func isForbidden(d, denied string) bool {
	switch {
	case isStdlib(denied):
		return d == denied
	case strings.HasSuffix(denied, "/"):
		return strings.HasPrefix(d, denied)
	default:
		return isBelow(d, denied)
	}
}

func isBelow(pkg, root string) bool { return pkg == root || strings.HasPrefix(pkg, root+"/") }

func isBelowAny(pkg string, roots []string) bool {
	for _, r := range roots {
		if isBelow(pkg, modulePrefix+r) {
			return true
		}
	}
	return false
}

// Packages under scheduler/ except sim/run start no goroutine: their decisions are reproducible.
func TestSchedulersStartNoGoroutine(t *testing.T) {
	files := eachGoFile(t, "scheduler", []string{"scheduler/sim/run"}, func(path string) error { return requireNoGoroutine(t, path) })
	if files < 50 {
		t.Errorf("%d files", files)
	}
}

// eachGoFile visits the Go files below a folder, except those below the folders in except. It
// returns the number of files.
func eachGoFile(t *testing.T, dir string, except []string, visit func(path string) error) (files int) {
	t.Helper()
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if rel, err := filepath.Rel(root, path); err != nil || slices.Contains(except, filepath.ToSlash(rel)) {
			return cmp.Or(err, filepath.SkipDir)
		}
		if d.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		files++
		return visit(path)
	})
	if err != nil {
		t.Error(err)
	}
	return files
}

func requireNoGoroutine(t *testing.T, path string) error {
	t.Helper()
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			t.Errorf("%s: a goroutine", set.Position(n.Pos()))
		case *ast.ImportSpec:
			if n.Path.Value == `"golang.org/x/sync/errgroup"` {
				t.Errorf("%s: errgroup starts goroutines", set.Position(n.Pos()))
			}
		case *ast.SelectorExpr:
			if n.Sel.Name == "Go" {
				t.Errorf("%s: Go starts a goroutine", set.Position(n.Pos()))
			}
		}
		return true
	})
	return nil
}
