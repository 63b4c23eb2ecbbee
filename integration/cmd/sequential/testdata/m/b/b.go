// Package b imports one that starts a goroutine.
package b

import "example.org/m/a"

func F() { a.F(func() {}) }
