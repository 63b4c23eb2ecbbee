package run

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// bridge connects the machines, the HDFS daemons and the command.
const bridge = "testbed0"

// makeNetwork brings up loopback and, for machines, a bridge with all addresses of the host side.
func (b *inner) makeNetwork(ctx context.Context) error {
	steps := [][]string{{"link", "set", "lo", "up"}}
	if b.config.Machines != nil {
		steps = append(steps,
			[]string{"link", "add", bridge, "type", "bridge", "forward_delay", "0"},
			[]string{"addr", "add", hostIP + "/24", "dev", bridge})
		if h := b.file.HDFS; h != nil {
			steps = append(steps, []string{"addr", "add", hostOf(h.NameNode) + "/24", "dev", bridge})
			for _, d := range h.DataNodes {
				steps = append(steps, []string{"addr", "add", d.IP + "/24", "dev", bridge})
			}
		}
		steps = append(steps, []string{"link", "set", bridge, "up"})
	}
	for _, s := range steps {
		if err := runIP(ctx, s...); err != nil {
			return err
		}
	}
	return nil
}

// runIP runs the ip command of iproute2.
func runIP(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("testbed: ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
