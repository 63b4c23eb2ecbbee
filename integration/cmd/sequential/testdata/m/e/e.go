// Package e waits for a process.
package e

import "os/exec"

func F() error { return exec.Command("true").Run() }
