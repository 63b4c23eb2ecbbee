package main

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/packages"
	"golang.org/x/tools/go/types/typeutil"
)

// collectEncoded records the fields that encoders and templates read by their names: the fields of
// a struct that has a tag on any field, and the fields of values passed as any.
func (s *search) collectEncoded(p *packages.Package) {
	for _, t := range p.TypesInfo.Types {
		x, ok := t.Type.(*types.Struct)
		if !ok || !t.IsType() {
			continue
		}
		for i := range x.NumFields() {
			if x.Tag(i) != "" {
				s.encode(x)
				break
			}
		}
	}
	for _, f := range p.Syntax {
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && !isPrinted(p.TypesInfo, call) {
				s.collectPassedAsAny(p.TypesInfo, call)
			}
			return true
		})
	}
}

// printing are the packages that print values for people.
var printing = map[string]bool{"fmt": true, "testing": true, "log/slog": true, "errors": true}

// isPrinted reports whether a call prints its arguments for people.
func isPrinted(info *types.Info, call *ast.CallExpr) bool {
	f, ok := typeutil.Callee(info, call).(*types.Func)
	return ok && f.Pkg() != nil && printing[f.Pkg().Path()]
}

func (s *search) collectPassedAsAny(info *types.Info, call *ast.CallExpr) {
	t, ok := info.TypeOf(call.Fun).(*types.Signature)
	if !ok {
		return
	}
	for i, a := range call.Args {
		last := t.Params().Len() - 1
		if last < 0 {
			return
		}
		param := t.Params().At(min(i, last)).Type()
		if elements, ok := param.(*types.Slice); ok && t.Variadic() && i >= last && !call.Ellipsis.IsValid() {
			param = elements.Elem()
		}
		if x, ok := param.Underlying().(*types.Interface); ok && x.Empty() {
			s.encode(info.TypeOf(a))
		}
	}
}

// encode records all fields of a type, and of the types of these fields.
func (s *search) encode(t types.Type) {
	switch x := t.(type) {
	case *types.Named:
		s.encode(x.Underlying())
	case *types.Alias:
		s.encode(types.Unalias(x))
	case *types.Map:
		s.encode(x.Key())
		s.encode(x.Elem())
	case interface{ Elem() types.Type }:
		s.encode(x.Elem())
	case *types.Struct:
		for f := range x.Fields() {
			at := s.place(f.Origin())
			if s.encoded[at] || f.Pkg() == nil || !s.inModule[f.Pkg().Path()] {
				continue
			}
			s.encoded[at] = true
			s.encode(f.Type())
		}
	}
}
