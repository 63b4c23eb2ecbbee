package hcl

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// One mistake in a file that has every attribute is one problem, at its place: what comes of it is none of its own.
func TestOneMistakeIsOneProblem(t *testing.T) {
	for _, name := range []string{"everything", "wordcount"} {
		src, err := os.ReadFile("testdata/" + name + ".hcl")
		if err != nil {
			t.Fatal(err)
		}
		split, _ := splitOneLineBlocks(src, name)
		f, diags := hclsyntax.ParseConfig(split.text, name, hcl.InitialPos)
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		at, made := newPositionMap(src, split.breaks), 0
		check := func(what string, where hcl.Range, text string) {
			made++
			where = at.originalRange(where)
			broken := slices.Concat(src[:where.Start.Byte], []byte(text), src[where.End.Byte:])
			_, err := Parse("j.hcl", broken)
			var all *Error
			if !errors.As(err, &all) || len(all.Diags) != 1 || all.Diags[0].Subject.Start.Line != where.Start.Line {
				t.Errorf("%s, line %d: %s\n%v", name, where.Start.Line, what, err)
			}
		}
		var walk func(b *hclsyntax.Body)
		walk = func(b *hclsyntax.Body) {
			for _, a := range b.Attributes {
				if lines := strings.Count(string(a.Expr.Range().SliceBytes(split.text)), "\n"); lines == 0 {
					check(a.Name+" without a value", a.Expr.Range(), "null")
					check(a.Name+" as a template", a.Expr.Range(), `"${1}"`)
					check(a.Name+" with a unit", a.Expr.Range(), "5furlongs")
				}
				check(a.Name+" with a name near to it", a.NameRange, a.Name+"x")
				check(a.Name+" with another name", a.NameRange, "quirk_of_mine")
			}
			for _, x := range b.Blocks {
				if x.Type != "job" { // without which there is nothing to read
					check(x.Type+" with a name near to it", x.TypeRange, x.Type+"x")
					check(x.Type+" with another name", x.TypeRange, "quirk_of_mine")
				}
				for _, l := range x.LabelRanges {
					check(x.Type+" without a name", l, "")
					check(x.Type+" with another name", l, fmt.Sprintf("%s %s", l.SliceBytes(split.text), `"more"`))
				}
				walk(x.Body)
			}
		}
		walk(f.Body.(*hclsyntax.Body))
		if made < 30 {
			t.Errorf("%s: %d mistakes were made", name, made)
		}
	}
}
