package schedtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/drover-run/drover/scheduler"
)

// Diff returns up to 20 lines of the first difference between the facts of two States (Bytes),
// lines of a with "-" and lines of b with "+"; "" if they are equal.
func Diff(a, b *scheduler.State) string {
	x, y := Bytes(a), Bytes(b)
	if bytes.Equal(x, y) {
		return ""
	}
	lines := func(raw []byte) []string {
		var out bytes.Buffer
		if err := json.Indent(&out, raw, "", " "); err != nil {
			return []string{err.Error()}
		}
		return strings.Split(out.String(), "\n")
	}
	p, q := lines(x), lines(y)
	for len(p) > 0 && len(q) > 0 && p[0] == q[0] {
		p, q = p[1:], q[1:]
	}
	for len(p) > 0 && len(q) > 0 && p[len(p)-1] == q[len(q)-1] {
		p, q = p[:len(p)-1], q[:len(q)-1]
	}
	var out strings.Builder
	for i := range min(10, len(p)) {
		fmt.Fprintf(&out, "-%s\n", p[i])
	}
	for i := range min(10, len(q)) {
		fmt.Fprintf(&out, "+%s\n", q[i])
	}
	return out.String()
}
