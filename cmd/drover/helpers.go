package main

import (
	"github.com/drover-run/drover/mapreduce/harness"
	"github.com/drover-run/drover/node/helper"
	"github.com/drover-run/drover/runtime/containerd/logger"
	"github.com/drover-run/drover/runtime/reuse/taskinit"
)

// helperPrograms are the programs that Drover starts inside and beside tasks, by their
// first argument. Each returns its exit code.
var helperPrograms = map[string]func(args []string) int{
	"harness": harness.Main,
	"helper":  helper.Main,
	"logger":  logger.Main,

	taskinit.Verb: taskinit.Main,

	"hold-tasks": holdTasks,
}
