package history

import (
	"os"
	"strings"
	"testing"
)

func TestTruncatedLineIsRemovedAndJobsAreUnique(t *testing.T) {
	dir := t.TempDir()
	w, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Append([]Job{{Job: 1, Name: "a"}, {Job: 2, Name: "b"}, {Job: 1, Name: "again"}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := Files(dir)
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	f, err := os.OpenFile(files[0], os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"version":1,"job":3,"na`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if w, err = Open(dir); err != nil {
		t.Fatal(err)
	}
	if w.Has(3) || !w.Has(2) {
		t.Fatalf("has 3: %v, has 2: %v", w.Has(3), w.Has(2))
	}
	if err := w.Append([]Job{{Job: 2}, {Job: 3, Name: "c"}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], `"a"`) || !strings.Contains(lines[1], `"b"`) || !strings.Contains(lines[2], `"c"`) {
		t.Fatalf("lines:\n%s", b)
	}
}
