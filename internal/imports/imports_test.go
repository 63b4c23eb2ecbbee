package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/drover-run/drover/"

// rule forbids packages below `from` (except those in `but`) to reach, through
// any chain of imports, anything below `not`.
type rule struct {
	from string
	but  []string
	not  []string
	why  string
}

var rules = []rule{
	{
		from: "scheduler",
		but:  []string{"scheduler/sim/trace", "scheduler/sim/report", "scheduler/sim/run", "scheduler/bench", "scheduler/policytest", "scheduler/sim/internal/shared"}, // the last two are for tests and read their data
		not:  []string{"os", "net", "log", "log/slog", "os/exec", "math/rand", "crypto/rand", module + "coordinator", module + "node", module + "hdfs", module + "api", module + "cgroups", module + "runtime", module + "cmd"},
		why:  "scheduling code is pure: no clock, no I/O, no global random; the simulator and the coordinator run the same code",
	},
	{from: "node/task", not: []string{"os", "net", "log", "log/slog", "math/rand", module + "runtime", module + "cgroups", module + "hdfs"}, why: "the attempt's state machine is pure"},
	{from: "coordinator", not: []string{module + "hdfs", module + "node", module + "runtime", module + "cgroups", module + "scheduler/sim", module + "cmd"}, why: "the coordinator never speaks HDFS and holds no credentials; nodes do"},
	{from: "scheduler/sim", not: []string{module + "coordinator", module + "node", module + "api"}, why: "the simulator shares only the scheduler with the live world"},
	{from: "runtime", not: []string{module + "node", module + "coordinator", module + "scheduler", module + "api", module + "cmd"}, why: "a driver knows containers, not attempts"},
	{from: "cgroups", not: []string{module + "node", module + "coordinator", module + "runtime", module + "api", module + "cmd"}, why: "limits know files, not attempts"},
	{from: "hdfs", not: []string{module + "node", module + "coordinator", module + "scheduler", module + "api", module + "cmd"}, why: "a client library"},
	{from: "mapreduce", not: []string{module + "node", module + "coordinator", module + "scheduler", module + "api", module + "cmd", "net", "github.com/containerd/", "google.golang.org/"}, why: "the harness starts once a task, has no network and is dumped by CRIU: it stays small"},
	{from: "jobspec", but: []string{"jobspec/hcl"}, not: []string{module + "node", module + "coordinator", module + "scheduler", module + "api", module + "cmd", "os", "net"}, why: "jobspec is a leaf"},
	{from: "node", not: []string{module + "coordinator", module + "scheduler", module + "cmd"}, why: "imports point down"},
	{from: "api", not: []string{module + "node", module + "coordinator", module + "scheduler", module + "cmd"}, why: "imports point down"},
}

// direct are imports of the standard library that even a pure package gets
// through others (fmt imports os): only a direct import of them is forbidden.
func direct(pkg string) bool { return !strings.Contains(pkg, ".") && !strings.HasPrefix(pkg, module) }

func TestImportsPointDown(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}}|{{join .Imports " "}}|{{join .Deps " "}}`, module+"...").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		f := strings.Split(line, "|")
		if len(f) != 3 {
			t.Fatalf("unexpected line of go list: %q", line)
		}
		check(t, f[0], strings.Fields(f[1]), strings.Fields(f[2]))
	}
}

func check(t *testing.T, pkg string, imports, deps []string) {
	for _, r := range rules {
		if !below(pkg, module+r.from) || belowAny(pkg, r.but) {
			continue
		}
		for _, not := range r.not {
			reached := deps
			if direct(not) {
				reached = imports
			}
			for _, d := range reached {
				if forbidden(d, not) {
					t.Errorf("%s reaches %s, forbidden: %s", pkg, d, r.why)
				}
			}
		}
	}
	for _, d := range imports {
		if below(d, module+"cmd") {
			t.Errorf("%s imports %s: nobody imports cmd", pkg, d)
		}
	}
}

// forbidden tells whether import d is the package `not` or lies below it. A
// name of the standard library stands for itself alone.
func forbidden(d, not string) bool {
	switch {
	case direct(not):
		return d == not
	case strings.HasSuffix(not, "/"):
		return strings.HasPrefix(d, not)
	default:
		return below(d, not)
	}
}

func below(pkg, root string) bool { return pkg == root || strings.HasPrefix(pkg, root+"/") }

func belowAny(pkg string, roots []string) bool {
	for _, r := range roots {
		if below(pkg, module+r) {
			return true
		}
	}
	return false
}

// Packages under scheduler/ start no goroutine, but for sim/run: their decisions
// repeat exactly, and make check runs their tests without the race detector.
func TestSchedulingStartsNoGoroutine(t *testing.T) {
	root := filepath.Join("..", "..", "scheduler")
	files := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == filepath.Join(root, "sim", "run") {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		files++
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
	})
	if err != nil || files < 50 {
		t.Errorf("%d files, %v", files, err)
	}
}
