package reproduce

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/drover-run/drover/scheduler/sim/run"
)

// The files of the source tree with the results, and the lines of the README that enclose the
// numbers.
const (
	docsPage    = "docs/explanation/reproduction.md"
	readme      = "README.md"
	readmeBegin = "<!-- written by drover sim reproduce -docs -->\n"
	readmeEnd   = "<!-- end -->\n"
)

// WriteDocs writes the report without plots to docs/explanation/reproduction.md of the source tree
// root, and the numbers of claims to README.md. It refuses reports that are not of all claims.
func (r *Report) WriteDocs(root string) error {
	claims, err := LoadClaims()
	if err != nil {
		return err
	}
	if r.Quick || r.Score.Claims != len(claims) {
		return fmt.Errorf("%s is for all %d claims, and not for -quick: this report has %d", docsPage, len(claims), r.Score.Claims)
	}
	path := filepath.Join(root, readme)
	before, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	after, err := replaceBetween(before, readmeBegin, readmeEnd, r.readmeText())
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := run.WriteFile(filepath.Join(root, filepath.FromSlash(docsPage)), func(w io.Writer) error { return r.markdown(w, false) }); err != nil {
		return err
	}
	return os.WriteFile(path, after, 0o644)
}

// readmeText is what the README says about the claims.
func (r *Report) readmeText() string {
	s, f := r.Score, r.Facts
	return fmt.Sprintf("Of %d claims of the papers, evaluated by `drover sim reproduce`, %d have the paper's sign and %d are reproduced; of the %d distinct facts\nbehind them %d and %d. [reproduction.md](%s) has each of them, with conditions, version and day.\n",
		s.Claims, s.Signs, s.Reproduced, f.Claims, f.Signs, f.Reproduced, docsPage)
}

// replaceBetween replaces the text between two lines.
func replaceBetween(text []byte, begin, end, by string) ([]byte, error) {
	head, rest, ok := bytes.Cut(text, []byte(begin))
	_, tail, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		return nil, fmt.Errorf("no lines %q and %q: they surround what is written", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return bytes.Join([][]byte{head, []byte(begin), []byte(by), []byte(end), tail}, nil), nil
}
