package main

import (
	"github.com/drover-run/drover/mapreduce/harness"
	"github.com/drover-run/drover/node/helper"
	"github.com/drover-run/drover/runtime/containerd/logger"
)

// innerPrograms are the programs that Drover starts itself inside and beside
// tasks, by their first argument; each gives its exit code.
var innerPrograms = map[string]func(args []string) int{
	"harness": harness.Main,
	"helper":  helper.Main,
	"logger":  logger.Main,
}
