// Package c computes.
package c

func F() int { return 1 }
