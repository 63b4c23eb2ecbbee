package run

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// bridge joins the machines, the HDFS daemons and the command.
const bridge = "bed0"

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
		if err := ip(ctx, s...); err != nil {
			return err
		}
	}
	return nil
}

// ip runs the command of that name, from iproute2.
func ip(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("bed: ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
