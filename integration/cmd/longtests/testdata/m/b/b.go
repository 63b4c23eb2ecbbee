// Package b is for tests of package a.
package b

import "testing"

// Rounds is fewer with -short.
func Rounds() int {
	if testing.Short() {
		return 1
	}
	return 2
}

// Same is always the same.
func Same() int { return 3 }
