package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/drover-run/drover/integration/testbed"
)

// busyboxRef is the name of the test bed's image in its archive.
const busyboxRef = "localhost/busybox:latest"

// measureTask runs `drover bench task` on the first machine, with the given number of rounds and of
// containers per round, and prints its table. The coordinator runs on the host side and is not in
// the figures.
func (s *demo) measureTask(ctx context.Context, tasks, rounds int) error {
	argv, err := s.cluster.ClientOn(ctx, 1)
	if err != nil {
		return err
	}
	n := s.testbed.Nodes[0]
	const image = "/data/busybox.tar"
	if err := n.Put(ctx, s.image, image); err != nil {
		return err
	}
	argv = append(argv, "bench", "task", "-image", image, "-ref", busyboxRef, "-tenant", "analytics", "-tasks", strconv.Itoa(tasks), "-rounds", strconv.Itoa(rounds), "true")
	r, err := n.ExecCommand(ctx, testbed.Command{Argv: argv, Stdout: os.Stdout, Stderr: os.Stderr})
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		return fmt.Errorf("on %s: %w", n.Name, err)
	}
	return nil
}
