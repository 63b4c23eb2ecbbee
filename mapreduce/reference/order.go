package reference

import (
	"cmp"
	"math/big"
	"regexp"
	"strings"
)

var (
	numberPattern = regexp.MustCompile(`^[ \t]*([-+]?)([0-9]*)\.?([0-9]*)`)
	plainPattern  = regexp.MustCompile(`^(0|-?[1-9][0-9]*|-?(0|[1-9][0-9]*)\.[0-9]*[1-9])$`)
)

// valueOf returns the value of a field as a number, by definition.
func valueOf(s string) *big.Rat {
	m := numberPattern.FindStringSubmatch(s)
	v, ok := new(big.Rat).SetString(strings.TrimPrefix(m[1], "+") + "0" + m[2] + "." + m[3] + "0")
	if !ok {
		panic(s)
	}
	return v
}

// CompareKeys compares two keys by the entries of their order ("text" or "number", each optionally
// with " desc"), straight from the definition: the first field that differs decides. It is below
// zero if a comes first.
func CompareKeys(entries []string, a, b string) int {
	fieldsOf := func(s string) []string { return strings.SplitN(s, "\t", len(entries)) }
	x, y := fieldsOf(a), fieldsOf(b)
	for i, e := range entries {
		if i >= len(x) || i >= len(y) {
			return cmp.Compare(len(x), len(y))
		}
		c := 0
		if strings.HasPrefix(e, "number") {
			c = valueOf(x[i]).Cmp(valueOf(y[i]))
			if p, q := plainPattern.MatchString(x[i]), plainPattern.MatchString(y[i]); c == 0 && p != q {
				if c = 1; p {
					c = -1
				}
			}
		}
		if c == 0 {
			c = strings.Compare(x[i], y[i])
		}
		if c != 0 && strings.HasSuffix(e, "desc") {
			c = -c
		}
		if c != 0 {
			return c
		}
	}
	return 0
}
