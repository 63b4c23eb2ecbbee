package words

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// A test that is skipped says what it would prove, and what it lacks: a green result is worth what
// its reader knows about the rest.
func TestSkipsSayWhatTheyWouldProve(t *testing.T) {
	const says = "not proved here: "
	root, skips := filepath.Join("..", ".."), 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "out") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
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
