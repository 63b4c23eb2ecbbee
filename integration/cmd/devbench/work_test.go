package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The judge of the word counts takes letters of any encoding for letters.
func TestCountWords(t *testing.T) {
	for text, want := range map[string]int64{
		"": 0, " \n\t": 0, "one": 1, "one two\nthree": 3, "\v\fa\rb": 2,
		"Grüße aus Köln": 3, "漢字 かな": 2, "a\u00a0b": 1, "\xff \x80": 2,
	} {
		file := filepath.Join(t.TempDir(), "text")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := countWords(file); err != nil || n != want {
			t.Errorf("%q has %d words, %v; want %d", text, n, err, want)
		}
	}
}
