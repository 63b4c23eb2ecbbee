package main

import (
	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/node"
)

// testNodeCommand is a node daemon with the process driver and no coordinator
// beside it.
func testNodeCommand(data, socket string) *cli.Command {
	return &cli.Command{Name: "test-node", Flags: devCommand().Flags, Action: func(c *cli.Context) error {
		up := make(chan struct{})
		close(up)
		return runDevNode(c.Context, c, data, socket, up, func(*node.Config) {})
	}}
}
