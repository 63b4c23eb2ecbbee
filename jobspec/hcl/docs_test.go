package hcl

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The reference must name every attribute and block that the decoder reads: the
// keys of its attrReader and blockSpec maps.
func TestEveryAttributeIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/reference/job-file.md")
	if err != nil {
		t.Fatal(err)
	}
	names := decoderKeys(t, "decode.go")
	if len(names) < 30 || !slices.Contains(names, "combine_command") || !slices.Contains(names, "secret") {
		t.Fatalf("found only %q in the decoder", names)
	}
	for _, n := range names {
		attribute, heading := "`"+n+"`", "# "+n
		if !strings.Contains(string(doc), attribute) && !strings.Contains(string(doc), heading) {
			t.Errorf("docs/reference/job-file.md does not name %s", attribute)
		}
	}
}

// decoderKeys returns the keys of all literals of map[string]attrReader and
// map[string]blockSpec.
func decoderKeys(t *testing.T, file string) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	ast.Inspect(f, func(n ast.Node) bool {
		lit, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		m, ok := lit.Type.(*ast.MapType)
		if !ok {
			return true
		}
		if v, ok := m.Value.(*ast.Ident); !ok || (v.Name != "attrReader" && v.Name != "blockSpec") {
			return true
		}
		for _, e := range lit.Elts {
			s, err := strconv.Unquote(e.(*ast.KeyValueExpr).Key.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, s)
		}
		return true
	})
	return names
}
