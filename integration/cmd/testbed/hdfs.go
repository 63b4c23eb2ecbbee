package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/drover-run/drover/integration/internal/run"
)

// deadAfterFlag defines the flag -dead-after.
func deadAfterFlag(f *flag.FlagSet) *time.Duration {
	return f.Duration("dead-after", 14*time.Second, "a silent DataNode counts as dead after this (at least 3s; HDFS's own default is 10m30s)")
}

func checkDeadAfter(d time.Duration) error {
	if d < 3*time.Second {
		return fmt.Errorf("testbed: -dead-after %v: at least 3s, or DataNodes die whenever the host is busy", d)
	}
	return nil
}

func hdfsVerb(ctx context.Context, args []string) (int, error) {
	f := newFlagSet("hdfs")
	dead := deadAfterFlag(f)
	command, err := parseWithCommand(f, args)
	if err == nil {
		err = checkDeadAfter(*dead)
	}
	if err != nil {
		return 2, err
	}
	c, err := openCache()
	if err != nil {
		return 1, err
	}
	config := &run.Config{DeadAfter: *dead, Command: command}
	var inUse cacheEntries
	defer func() { inUse.Close() }()
	if err := addHDFS(ctx, c, newProgress(), &inUse, config); err != nil {
		return 1, err
	}
	if err := addNative(ctx, c, newProgress(), &inUse, config); err != nil {
		return 1, err
	}
	return run.Run(config, c)
}
