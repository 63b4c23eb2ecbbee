package words

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/repofiles"
)

// A test that is skipped says what it would prove, and what it lacks: a green result is worth only
// what its reader knows about the skipped tests.
func TestSkipsSayWhatTheyWouldProve(t *testing.T) {
	const says = "not proved here: "
	root, skips := filepath.Join("..", ".."), 0
	err := repofiles.Walk(root, func(file string) error {
		if filepath.Ext(file) != ".go" {
			return nil
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, filepath.Join(root, file), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Skip" && sel.Sel.Name != "Skipf" && sel.Sel.Name != "SkipNow" {
				return true
			}
			skips++
			if len(call.Args) == 0 || !strings.HasPrefix(firstLiteral(call.Args[0]), says) {
				t.Errorf("%s: a skip that does not begin with %q and what the test would prove", set.Position(n.Pos()), says)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if skips < 20 {
		t.Errorf("%d skips were found: the test looks at the wrong place", skips)
	}
}

// firstLiteral returns the string literal at the beginning of an expression, or "".
func firstLiteral(e ast.Expr) string {
	for {
		switch x := e.(type) {
		case *ast.BinaryExpr:
			e = x.X
		case *ast.BasicLit:
			s, _ := strconv.Unquote(x.Value)
			return s
		default:
			return ""
		}
	}
}
