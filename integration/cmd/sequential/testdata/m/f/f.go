// Package f starts a process, whose output a goroutine copies.
package f

import "os/exec"

func F() error { return exec.Command("true").Start() }
