package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/drover-run/drover/integration/internal/control"
	"github.com/drover-run/drover/integration/testbed"
)

// controlLimit limits one request to a test bed.
const controlLimit = 2 * time.Minute

func controlVerb(ctx context.Context, args []string) (int, error) {
	if len(args) < 1 || len(args) > 2 {
		var ops []string
		for op := control.StopDataNode; ; op++ {
			if _, err := control.ParseOp(op.String()); err != nil {
				break
			}
			if op != control.LoadFile {
				ops = append(ops, op.String())
			}
		}
		return 2, fmt.Errorf("testbed control: missing operation: one of %s; operations on a DataNode or machine need its number, from 1", strings.Join(ops, ", "))
	}
	op, err := control.ParseOp(args[0])
	if err != nil {
		return 2, fmt.Errorf("testbed control: %w", err)
	}
	r := control.Request{Op: op}
	if len(args) == 2 {
		if r.N, err = strconv.Atoi(args[1]); err != nil {
			return 2, fmt.Errorf("testbed control: %q is not the number of a machine or DataNode", args[1])
		}
	}
	b, err := openTestbed()
	if err != nil {
		return 1, err
	}
	ctx, cancel := context.WithTimeout(ctx, controlLimit)
	defer cancel()
	answer, err := control.Call(ctx, b.File.Control, r)
	if err != nil {
		return 1, err
	}
	if answer != "" {
		fmt.Println(answer)
	}
	return 0, nil
}

// loadVerb copies a local file into HDFS with its blocks on given DataNodes.
func loadVerb(ctx context.Context, args []string) (int, error) {
	f := newFlagSet("load")
	block := f.Int("block", 1<<20, "block size in bytes")
	where := f.String("on", "1,2,3", "DataNodes (from 1) for the blocks, round-robin; repeat a number to give it more blocks: 1,1,1,2")
	if err := f.Parse(args); err != nil {
		return 2, errUsage
	}
	if f.NArg() != 2 {
		return 2, fmt.Errorf("testbed load: usage: testbed load [-block BYTES] [-on 1,1,2,3] LOCAL REMOTE")
	}
	places, err := parsePlaces(*where)
	if err != nil {
		return 2, err
	}
	b, err := openTestbed()
	if err != nil {
		return 1, err
	}
	if b.HDFS == nil {
		return 1, fmt.Errorf("testbed load: this test bed runs no HDFS: start it with -hdfs")
	}
	ctx, cancel := context.WithTimeout(ctx, controlLimit)
	defer cancel()
	if _, err := os.Stat(f.Arg(0)); err != nil {
		return 1, fmt.Errorf("testbed load: %w", err)
	}
	if err := b.HDFS.Load(ctx, absolutePath(f.Arg(0)), f.Arg(1), *block, places...); err != nil {
		return 1, err
	}
	return 0, nil
}

// parsePlaces parses a list of DataNode numbers like 1,1,2.
func parsePlaces(s string) ([]int, error) {
	var places []int
	for _, w := range strings.Split(s, ",") {
		k, err := strconv.Atoi(w)
		if err != nil || k < 1 {
			return nil, fmt.Errorf("testbed load: -on %s: %q is not the number of a DataNode, counted from 1", s, w)
		}
		places = append(places, k)
	}
	return places, nil
}

// openTestbed returns the test bed that this command runs in, or the one started by `testbed up`.
func openTestbed() (*testbed.Bed, error) {
	if os.Getenv(testbed.EnvFile) != "" {
		return testbed.FromEnv()
	}
	c, err := openCache()
	if err != nil {
		return nil, err
	}
	b, err := testbed.Open(upFile(c))
	if err != nil {
		return nil, fmt.Errorf("no test bed is up (start one with: testbed up) and this is not inside one: %w", err)
	}
	return b, nil
}
