package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/repofiles"
)

// maxMethods is how many methods a type may have, including the methods of types of this module
// that it embeds. A type with more owns too much: split it by what changes together.
const maxMethods = 40

// manyMethods are the types that have more methods. A type may only be removed from the list.
var manyMethods []string

// methodSet is what one type declares: its methods and the types that it embeds.
type methodSet struct {
	own      int
	embedded []string
}

// methodSets returns the types with methods of all files that are not generated, by "package
// folder.Type".
func methodSets(t *testing.T) map[string]*methodSet {
	t.Helper()
	root := filepath.Join("..", "..")
	sets := map[string]*methodSet{}
	of := func(name string) *methodSet {
		if sets[name] == nil {
			sets[name] = &methodSet{}
		}
		return sets[name]
	}
	err := repofiles.Walk(root, func(file string) error {
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") || strings.Contains(file, "/testdata/") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil || ast.IsGenerated(f) {
			return err
		}
		folder := path.Dir(file)
		imports := importFolders(t, f)
		for _, decl := range f.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if decl.Recv != nil {
					of(typeName(decl.Recv.List[0].Type, folder, imports)).own++
				}
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					if spec, ok := spec.(*ast.TypeSpec); ok {
						of(folder + "." + spec.Name.Name).embedded = embeddedTypes(spec, folder, imports)
					}
				}
			}
		}
		return nil
	})
	if err != nil || len(sets) < 500 {
		t.Fatalf("%d types, %v", len(sets), err)
	}
	return sets
}

// importFolders returns the folders of the packages of this module that a file imports, by the
// name that the file gives them.
func importFolders(t *testing.T, f *ast.File) map[string]string {
	out := map[string]string{}
	for _, spec := range f.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		folder, ok := strings.CutPrefix(p, modulePrefix)
		if !ok {
			continue
		}
		name := path.Base(folder)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		out[name] = folder
	}
	return out
}

// embeddedTypes returns the names of the types that a struct embeds.
func embeddedTypes(spec *ast.TypeSpec, folder string, imports map[string]string) (names []string) {
	s, ok := spec.Type.(*ast.StructType)
	if !ok {
		return nil
	}
	for _, field := range s.Fields.List {
		if len(field.Names) == 0 {
			names = append(names, typeName(field.Type, folder, imports))
		}
	}
	return names
}

// typeName returns the name of a receiver's or embedded type, "" for one of another module.
func typeName(e ast.Expr, folder string, imports map[string]string) string {
	switch e := e.(type) {
	case *ast.Ident:
		return folder + "." + e.Name
	case *ast.StarExpr:
		return typeName(e.X, folder, imports)
	case *ast.IndexExpr:
		return typeName(e.X, folder, imports)
	case *ast.IndexListExpr:
		return typeName(e.X, folder, imports)
	case *ast.SelectorExpr:
		if pkg, ok := e.X.(*ast.Ident); ok && imports[pkg.Name] != "" {
			return imports[pkg.Name] + "." + e.Sel.Name
		}
	}
	return ""
}

// countMethods returns the number of methods of a type, including those of the types that it
// embeds.
func countMethods(sets map[string]*methodSet, name string, within []string) int {
	m := sets[name]
	if m == nil || slices.Contains(within, name) {
		return 0
	}
	n := m.own
	for _, e := range m.embedded {
		n += countMethods(sets, e, append(within, name))
	}
	return n
}

// No type has more than maxMethods methods, except the listed ones.
func TestTypesHaveFewMethods(t *testing.T) {
	sets := methodSets(t)
	for name := range sets {
		n, listed := countMethods(sets, name, nil), slices.Contains(manyMethods, name)
		switch {
		case !listed && n > maxMethods:
			t.Errorf("%s has %d methods, more than %d: take it apart by what it owns", name, n, maxMethods)
		case listed && n <= maxMethods:
			t.Errorf("%s has %d methods: take it off the list", name, n)
		}
	}
	for _, name := range manyMethods {
		if sets[name] == nil {
			t.Errorf("%s is listed and does not exist: take it off the list", name)
		}
	}
}
