// Package a starts a goroutine.
package a

func F(f func()) { go f() }
