package main

import (
	"errors"
	"os"
	"runtime/pprof"

	"github.com/urfave/cli/v2"
)

// profileFlag is the flag of commands with a profiled action.
var profileFlag = &cli.StringFlag{Name: "profile", Usage: "write a CPU profile to this `FILE` (go tool pprof)"}

// profiled returns an action that writes a CPU profile of its time to the file of profileFlag, if
// there is one.
func profiled(action cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		file := c.String(profileFlag.Name)
		if file == "" {
			return action(c)
		}
		f, err := os.Create(file)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return errors.Join(err, f.Close())
		}
		err = action(c)
		pprof.StopCPUProfile()
		return errors.Join(err, f.Close())
	}
}
