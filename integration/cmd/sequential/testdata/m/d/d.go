// Package d computes, with a method whose name others give to what starts a process.
package d

type T struct{ Start int }

func F(t T) int { return t.Start }
