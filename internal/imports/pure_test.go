package imports

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// impureNames reports for each package whether one of its names is a clock, a wait, or randomness
// without a seed. The import rules deny the packages that contain nothing else.
var impureNames = map[string]func(name string) bool{
	"time": func(name string) bool {
		return slices.Contains([]string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer"}, name)
	},
	"math/rand/v2": func(name string) bool { // all other names draw from the global source
		return !slices.Contains([]string{"New", "NewPCG", "NewChaCha8", "NewZipf", "Rand", "Source", "PCG", "ChaCha8", "Zipf"}, name)
	},
}

// Packages that decide read no clock and draw nothing without a seed: time is passed as a value,
// chance as a seeded source. Their tests, and the packages that run and report simulations, may.
func TestPackagesThatDecideReadNoClock(t *testing.T) {
	decide, files := []string{"scheduler", "node/task", "coordinator/facts"}, 0
	except := []string{"scheduler/sim/trace", "scheduler/sim/report", "scheduler/sim/run", "scheduler/bench", "scheduler/policytest"}
	for _, dir := range decide {
		files += eachGoFile(t, dir, except, func(path string) error {
			if strings.HasSuffix(path, "_test.go") {
				return nil
			}
			set := token.NewFileSet()
			f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err == nil {
				for _, use := range impureUses(set, f) {
					t.Error(use)
				}
			}
			return err
		})
	}
	if files < 200 {
		t.Errorf("%d files", files)
	}
}

// impureUses returns where a file uses impureNames.
func impureUses(set *token.FileSet, f *ast.File) (uses []string) {
	packages := map[string]string{} // by the name that the file gives the package
	for _, spec := range f.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil || impureNames[p] == nil {
			continue
		}
		name := path.Base(strings.TrimSuffix(p, "/v2"))
		if spec.Name != nil {
			name = spec.Name.Name
		}
		if name == "." {
			uses = append(uses, fmt.Sprintf("%s: %s needs a name", set.Position(spec.Pos()), p))
		}
		packages[name] = p
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && packages[x.Name] != "" && impureNames[packages[x.Name]](s.Sel.Name) {
				uses = append(uses, fmt.Sprintf("%s: %s.%s: time comes as a value, chance as a seeded source", set.Position(s.Pos()), packages[x.Name], s.Sel.Name))
			}
		}
		return true
	})
	return uses
}

func TestImpureUsesAreFound(t *testing.T) {
	for source, want := range map[string]int{
		`import "time"; var x = time.Now()`:                                     1,
		`import "time"; var now = time.Now`:                                     1,
		`import clock "time"; var x = clock.Since(clock.Time{})`:                1,
		`import . "time"; var x = Now()`:                                        1,
		`import "time"; var x = time.Unix(0, 0).After(time.Unix(1, 0))`:         0,
		`import "time"; var x time.Duration = time.Hour`:                        0,
		`import "math/rand/v2"; var x = rand.IntN(3)`:                           1,
		`import "math/rand/v2"; func f() { rand.Shuffle(3, nil) }`:              1,
		`import "math/rand/v2"; var x *rand.Rand = rand.New(rand.NewPCG(1, 2))`: 0,
		`var x = time.Now()`:                                                    0, // no package
	} {
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, "a.go", "package a; "+source, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if uses := impureUses(set, f); len(uses) != want {
			t.Errorf("%s: %q, want %d", source, uses, want)
		}
	}
}
