package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// finding is an exported identifier that no other package uses.
type finding struct {
	at   token.Position // the file is relative to the root
	kind string         // func, type, method, const, var or field
	name string
}

func (f finding) String() string {
	return fmt.Sprintf("%s: no other package uses the %s %s: begin it with a small letter", f.at, f.kind, f.name)
}

// place identifies an object in all variants of its package: with and without its tests, and as
// imported by others.
type place struct {
	file         string
	line, column int
}

// search is the state of one run of the command.
type search struct {
	fset       *token.FileSet
	root       string
	inModule   map[string]bool        // folders of the packages found
	used       map[place]types.Object // mentioned by another package
	declared   map[place]types.Object // exported, in the code that ships
	concrete   []*types.Named         // types with methods of the module
	interfaces []*types.Interface     // all interfaces that a type could implement
	encoded    map[place]bool         // fields that encoders and templates read by name
	templates  map[string]string      // by folder: embedded files, and string literals with "{{"
	showing    map[place]bool         // used objects whose types show has visited
}

// find returns the unused exported identifiers of the packages below root, ordered by file and line.
func find(root string, patterns ...string) ([]finding, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	loaded, err := packages.Load(&packages.Config{Mode: packages.LoadAllSyntax | packages.NeedEmbedFiles, Tests: true, Dir: root}, patterns...)
	if err != nil {
		return nil, err
	}
	if len(loaded) == 0 {
		return nil, fmt.Errorf("no packages in %s", root)
	}
	s := &search{fset: loaded[0].Fset, root: root, inModule: map[string]bool{}, used: map[place]types.Object{}, encoded: map[place]bool{}, declared: map[place]types.Object{}, templates: map[string]string{}, showing: map[place]bool{}}
	for _, p := range loaded {
		if len(p.Errors) > 0 {
			return nil, fmt.Errorf("%s: %w", p.PkgPath, p.Errors[0])
		}
		s.inModule[strings.TrimSuffix(p.PkgPath, "_test")] = true
	}
	packages.Visit(loaded, nil, s.collectInterfaces)
	for _, p := range loaded {
		if strings.HasSuffix(p.ID, ".test") {
			continue // the main package that go test generates
		}
		s.collectUses(p)
		if err := s.collectTemplates(p); err != nil {
			return nil, err
		}
		s.collectDeclarations(p)
	}
	for _, o := range s.used {
		s.show(o)
	}
	return s.unused()
}

func (s *search) place(o types.Object) place {
	p := s.fset.Position(o.Pos())
	return place{p.Filename, p.Line, p.Column}
}

// collectInterfaces records the interfaces that a package declares, including unnamed ones.
func (s *search) collectInterfaces(p *packages.Package) {
	for _, f := range p.Syntax {
		ast.Inspect(f, func(n ast.Node) bool {
			if x, ok := n.(*ast.InterfaceType); ok {
				if t, ok := p.TypesInfo.TypeOf(x).(*types.Interface); ok && t.NumMethods() > 0 {
					s.interfaces = append(s.interfaces, t)
				}
			}
			return true
		})
	}
}

// collectUses records the objects of other packages of the module that p uses.
func (s *search) collectUses(p *packages.Package) {
	note := func(o types.Object) {
		switch x := o.(type) {
		case *types.Func:
			o = x.Origin()
		case *types.Var:
			o = x.Origin()
		}
		if o.Pkg() != nil && o.Pkg().Path() != p.PkgPath && s.inModule[o.Pkg().Path()] {
			s.used[s.place(o)] = o
		}
	}
	for _, o := range p.TypesInfo.Uses {
		note(o)
	}
	for _, selected := range p.TypesInfo.Selections {
		note(selected.Obj())
	}
}

// collectDeclarations records the exported identifiers of p that are not part of its tests.
func (s *search) collectDeclarations(p *packages.Package) {
	if p.Name == "main" || strings.HasSuffix(p.PkgPath, "_test") {
		return
	}
	s.collectEncoded(p)
	for id, o := range p.TypesInfo.Defs {
		if t, ok := o.(*types.TypeName); ok {
			if n, ok := t.Type().(*types.Named); ok && n.NumMethods() > 0 {
				s.concrete = append(s.concrete, n)
			}
		}
		if o == nil || !id.IsExported() || kindOf(o) == "" || ast.IsGenerated(s.fileOf(p, id)) {
			continue
		}
		if at := s.place(o); !strings.HasSuffix(at.file, "_test.go") {
			s.declared[at] = o
		}
	}
}

func (s *search) fileOf(p *packages.Package, n ast.Node) *ast.File {
	i := slices.IndexFunc(p.Syntax, func(f *ast.File) bool { return f.FileStart <= n.Pos() && n.Pos() < f.FileEnd })
	return p.Syntax[i]
}

// kindOf returns the kind of an object, or "" if this command does not check such objects.
func kindOf(o types.Object) string {
	atTop := o.Pkg() != nil && o.Parent() == o.Pkg().Scope()
	switch x := o.(type) {
	case *types.Func:
		if r := x.Signature().Recv(); r == nil {
			return "func"
		} else if !types.IsInterface(r.Type()) {
			return "method"
		}
	case *types.TypeName:
		if atTop {
			return "type"
		}
	case *types.Const:
		if atTop {
			return "const"
		}
	case *types.Var:
		switch {
		case x.IsField() && !x.Embedded():
			return "field"
		case atTop && !x.IsField():
			return "var"
		}
	}
	return ""
}

// show marks the types that a used object exposes to its users as used.
func (s *search) show(o types.Object) {
	if s.showing[s.place(o)] {
		return
	}
	s.showing[s.place(o)] = true
	s.used[s.place(o)] = o
	if t, ok := o.(*types.TypeName); ok && !t.IsAlias() {
		s.showParts(t.Type().Underlying())
		return
	}
	s.showParts(o.Type())
}

// showParts marks the named types of the module in t.
func (s *search) showParts(t types.Type) {
	switch x := t.(type) {
	case *types.Named:
		if o := x.Obj(); o.Pkg() != nil && s.inModule[o.Pkg().Path()] {
			s.show(o)
		}
		for a := range x.TypeArgs().Types() {
			s.showParts(a)
		}
	case *types.Alias:
		if o := x.Obj(); o.Pkg() != nil && s.inModule[o.Pkg().Path()] {
			s.show(o)
		}
		s.showParts(types.Unalias(x))
	case interface{ Elem() types.Type }: // pointers, slices, arrays, channels, maps
		if m, ok := t.(*types.Map); ok {
			s.showParts(m.Key())
		}
		s.showParts(x.Elem())
	case *types.Signature:
		for v := range x.Params().Variables() {
			s.showParts(v.Type())
		}
		for v := range x.Results().Variables() {
			s.showParts(v.Type())
		}
	case *types.Struct:
		for f := range x.Fields() {
			if f.Exported() {
				s.showParts(f.Type())
			}
		}
	case *types.Interface:
		for m := range x.Methods() {
			s.showParts(m.Type())
		}
	}
}

func (s *search) unused() ([]finding, error) {
	var all []finding
	for at, o := range s.declared {
		if s.used[at] != nil || s.isConstantOfUsedType(o) || s.isImplementedElsewhere(o) || s.isAskedFor(o) || s.isNamedInTemplate(o) || s.encoded[at] {
			continue
		}
		file, err := filepath.Rel(s.root, at.file)
		if err != nil {
			return nil, err
		}
		all = append(all, finding{token.Position{Filename: file, Line: at.line, Column: at.column}, kindOf(o), o.Name()})
	}
	slices.SortFunc(all, func(a, b finding) int {
		return cmp.Or(strings.Compare(a.at.Filename, b.at.Filename), a.at.Line-b.at.Line, a.at.Column-b.at.Column)
	})
	return all, nil
}

// isConstantOfUsedType reports whether o is a constant whose type is a used type of its package.
func (s *search) isConstantOfUsedType(o types.Object) bool {
	if _, ok := o.(*types.Const); !ok {
		return false
	}
	t, ok := o.Type().(*types.Named)
	return ok && s.inModule[t.Obj().Pkg().Path()] && s.used[s.place(t.Obj())] != nil
}

// isImplementedElsewhere reports whether o is an interface that a type of another package of the
// module implements.
func (s *search) isImplementedElsewhere(o types.Object) bool {
	i, ok := o.Type().Underlying().(*types.Interface)
	if _, isType := o.(*types.TypeName); !ok || !isType || i.NumMethods() == 0 {
		return false
	}
	return slices.ContainsFunc(s.concrete, func(n *types.Named) bool {
		return n.Obj().Pkg().Path() != o.Pkg().Path() && types.Implements(types.NewPointer(n), i)
	})
}

// byErrors are the methods that package errors calls through interfaces that it does not declare.
var byErrors = map[string]bool{"Error": true, "Unwrap": true, "Is": true, "As": true}

// isAskedFor reports whether o is a method that an interface requires which its type implements.
func (s *search) isAskedFor(o types.Object) bool {
	f, ok := o.(*types.Func)
	if !ok || f.Signature().Recv() == nil {
		return false
	}
	if byErrors[f.Name()] {
		return true
	}
	t := f.Signature().Recv().Type()
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	for _, i := range s.interfaces {
		if m, _, _ := types.LookupFieldOrMethod(i, false, o.Pkg(), o.Name()); m == nil {
			continue
		}
		if named, ok := t.(*types.Named); ok && named.TypeParams().Len() > 0 || types.Implements(types.NewPointer(t), i) {
			return true
		}
	}
	return false
}

// isNamedInTemplate reports whether a template in the folder of a method names it.
func (s *search) isNamedInTemplate(o types.Object) bool {
	return (kindOf(o) == "method" || kindOf(o) == "field") && strings.Contains(s.templates[filepath.Dir(s.place(o).file)], "."+o.Name())
}

// collectTemplates records the texts of the package that could be templates: its embedded files,
// and its string literals that contain an action.
func (s *search) collectTemplates(p *packages.Package) error {
	if len(p.GoFiles) == 0 || s.templates[p.Dir] != "" {
		return nil
	}
	text := strings.Builder{}
	text.WriteString("\n")
	for _, f := range p.Syntax {
		ast.Inspect(f, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING && strings.Contains(l.Value, "{{") {
				text.WriteString(l.Value + "\n")
			}
			return true
		})
	}
	for _, file := range p.EmbedFiles {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		text.Write(b)
	}
	s.templates[p.Dir] = text.String()
	return nil
}
