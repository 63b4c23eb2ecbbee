package jobspec

import (
	"fmt"
	"strings"
)

// suggestOneOf returns a hint for an unknown word: the nearest known word, or all.
func suggestOneOf(have string, known ...string) string {
	if s := Suggest(have, known); s != "" {
		return fmt.Sprintf("did you mean %q?", s)
	}
	return "choose one of " + strings.Join(known, ", ")
}

// Suggest returns the known word nearest to a mistyped one, or "" if none is near:
// at most a third of its letters, and always one, may differ. Ties go to the first.
func Suggest(have string, known []string) string {
	best, dist := "", 1+max(1, len(have)/3)
	for _, k := range known {
		if d := editDistance(strings.ToLower(have), strings.ToLower(k)); d < dist {
			best, dist = k, d
		}
	}
	return best
}

// editDistance returns the number of insertions, deletions, substitutions and
// swaps of adjacent bytes between two words (optimal string alignment), in
// O(len(a) len(b)).
func editDistance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for k := range d[0] {
		d[0][k] = k
	}
	for i := 1; i <= len(a); i++ {
		for k := 1; k <= len(b); k++ {
			cost := 1
			if a[i-1] == b[k-1] {
				cost = 0
			}
			d[i][k] = min(d[i-1][k-1]+cost, d[i-1][k]+1, d[i][k-1]+1)
			if i > 1 && k > 1 && a[i-1] == b[k-2] && a[i-2] == b[k-1] {
				d[i][k] = min(d[i][k], d[i-2][k-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
