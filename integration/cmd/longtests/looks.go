package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// soakVar is the variable that makes tests even longer.
const soakVar = "DROVER_SOAK"

// test is a test, an example or a fuzz target (go test runs its corpus too).
type test struct{ pkg, name string }

// name is a declaration of a package: "Func", "Type", "Type.Method" or a variable's.
type name struct{ pkg, local string }

// declaration is a top-level declaration and what it mentions.
type declaration struct {
	names    []name
	receiver name // of a method, else empty
	isTest   bool // go test runs it
	looks    bool // reads -short or DROVER_SOAK, itself or through anything that it mentions
	mentions map[name]bool
}

// graph is the declarations of the repository, with their tests.
type graph struct {
	decls []*declaration
	look  map[name]bool // names of the declarations that look
	soak  bool          // DROVER_SOAK counts too
}

// longTests returns, in order, the tests that may look at -short, or at DROVER_SOAK if soak is set:
// directly, or through any chain of mentions. A type with a method that looks counts as looking
// itself, because others may call that method through an interface. modules are the packages of
// other modules that look. longTests returns an error if a declaration looks and no test reaches
// it, because then it failed to follow a chain.
func longTests(loaded []*packages.Package, modules map[string]bool, soak bool) ([]test, error) {
	g := &graph{look: map[name]bool{}, soak: soak}
	for _, p := range loaded {
		for _, f := range p.Syntax {
			g.addFile(p.TypesInfo, f)
		}
	}
	if err := g.checkReached(); err != nil {
		return nil, err
	}
	g.spread(modules)
	var tests []test
	for _, d := range g.decls {
		n := d.names[0]
		if d.isTest && (d.looks || g.look[name{n.pkg, "init"}] || g.look[name{n.pkg, "TestMain"}]) {
			tests = append(tests, test{strings.TrimSuffix(n.pkg, "_test"), n.local})
		}
	}
	slices.SortFunc(tests, func(a, b test) int { return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.name, b.name)) })
	return slices.Compact(tests), nil
}

// addFile adds the declarations of a file.
func (g *graph) addFile(info *types.Info, file *ast.File) {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			out := &declaration{names: []name{nameOf(info.Defs[d.Name])}, mentions: map[name]bool{}}
			if d.Recv == nil {
				out.isTest = isTestName(d.Name.Name)
			} else {
				out.receiver = name{out.names[0].pkg, strings.Split(out.names[0].local, ".")[0]}
			}
			// Without the receiver: a method that does not look may belong to a type with one that
			// does.
			g.read(out, info, d.Type)
			if d.Body != nil {
				g.read(out, info, d.Body)
			}
			g.decls = append(g.decls, out)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				out := &declaration{mentions: map[name]bool{}}
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						out.names = append(out.names, nameOf(info.Defs[n]))
					}
				case *ast.TypeSpec:
					out.names = append(out.names, nameOf(info.Defs[spec.Name]))
				default:
					continue
				}
				g.read(out, info, spec)
				g.decls = append(g.decls, out)
			}
		}
	}
}

// nameOf returns the name of an object of a package, and an empty one for others: locals, fields.
func nameOf(o types.Object) name {
	if o == nil || o.Pkg() == nil {
		return name{}
	}
	at := name{o.Pkg().Path(), o.Name()}
	if f, ok := o.(*types.Func); ok {
		if r := f.Signature().Recv(); r != nil {
			t := r.Type()
			if p, ok := t.(*types.Pointer); ok {
				t = p.Elem()
			}
			if n, ok := t.(*types.Named); ok {
				at.local = n.Obj().Name() + "." + at.local
			}
		}
		return at
	}
	if o.Parent() != o.Pkg().Scope() {
		return name{}
	}
	return at
}

func isTestName(name string) bool {
	return name != "TestMain" && slices.ContainsFunc([]string{"Test", "Fuzz", "Example"}, func(p string) bool { return strings.HasPrefix(name, p) })
}

// read collects what a part of a declaration mentions.
func (g *graph) read(d *declaration, info *types.Info, part ast.Node) {
	ast.Inspect(part, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			if at := nameOf(info.Uses[n]); at != (name{}) {
				d.mentions[at] = true
			}
		case *ast.BasicLit:
			d.looks = d.looks || g.soak && n.Kind == token.STRING && strings.Contains(n.Value, soakVar)
		}
		return true
	})
	d.looks = d.looks || d.mentions[name{"testing", "Short"}]
}

// spread marks all declarations that look because a declaration that they mention looks.
func (g *graph) spread(modules map[string]bool) {
	for more := true; more; {
		more = false
		for _, d := range g.decls {
			if !d.looks {
				for at := range d.mentions {
					if g.look[at] || modules[at.pkg] {
						d.looks = true
						break
					}
				}
			}
			if d.looks {
				for _, at := range append(d.names, d.receiver) {
					if at != (name{}) && !g.look[at] {
						g.look[at], more = true, true
					}
				}
			}
		}
	}
}

// checkReached returns an error if a declaration itself looks and no test or benchmark mentions it
// through any chain.
func (g *graph) checkReached() error {
	by := map[name][]*declaration{} // also the methods of a type by the type's name
	var next []*declaration
	for _, d := range g.decls {
		for _, at := range append(d.names, d.receiver) {
			by[at] = append(by[at], d)
		}
		if root := d.names[0].local; d.isTest || root == "init" || root == "TestMain" || strings.HasPrefix(root, "Benchmark") {
			next = append(next, d)
		}
	}
	reached := map[*declaration]bool{}
	for len(next) > 0 {
		d := next[len(next)-1]
		if next = next[:len(next)-1]; reached[d] {
			continue
		}
		reached[d] = true
		for at := range d.mentions {
			next = append(next, by[at]...)
		}
	}
	for _, d := range g.decls {
		if d.looks && !reached[d] {
			return fmt.Errorf("%s.%s looks at -short or %s, and no test was found that reaches it", d.names[0].pkg, d.names[0].local, soakVar)
		}
	}
	return nil
}
