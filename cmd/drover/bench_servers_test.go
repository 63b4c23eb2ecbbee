package main

import (
	"os/exec"
	"testing"
)

// One of several coordinators that does not start ends the others, which wait for it.
func TestBenchServersEndWithOneThatFails(t *testing.T) {
	all := benchServers{{id: "c1", cmd: exec.Command("sleep", "600")}, {id: "c2", cmd: exec.Command("false")}}
	if err := all.start(); err == nil {
		t.Error("two programs that are no coordinators have started")
	}
	if err := all.stop(); err != nil {
		t.Error(err)
	}
	if s := all[0].cmd.ProcessState; s == nil || s.Success() {
		t.Errorf("the one that waited: %v", s)
	}
}
