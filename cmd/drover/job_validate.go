package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/jobspec/hcl"
)

func jobValidateCommand() *cli.Command {
	return &cli.Command{
		Name:      "validate",
		Usage:     "check a job file without a cluster",
		ArgsUsage: "FILE",
		Description: "Reads the file as `job run` does, checks every field and that the files it names exist.\n" +
			"With -json the canonical form is printed, as it would be submitted.",
		Flags: []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			a, err := args(c, 1, 1, "FILE")
			if err != nil {
				return err
			}
			_, j, err := readJob(c, a[0])
			if err != nil {
				return err
			}
			if _, err := localFiles(j, a[0]); err != nil {
				return err
			}
			for _, h := range forgotten(j, a[0]) {
				fmt.Fprintln(c.App.ErrWriter, h)
			}
			if c.Bool("json") {
				return printJSON(c.App.Writer, j)
			}
			fmt.Fprintf(c.App.Writer, "%s: job %q is valid (%s)\n", a[0], j.Name, count(len(j.Stages), "stage"))
			return nil
		},
	}
}

// readJob reads and validates a job file ("-" is standard input, HCL).
func readJob(c *cli.Context, name string) ([]byte, *jobspec.Job, error) {
	src, err := readLimited(c, name)
	if err != nil {
		return nil, nil, err
	}
	if name == "-" {
		name = "standard input"
	}
	j, err := hcl.Parse(name, src)
	var he *hcl.Error
	switch {
	case errors.As(err, &he):
		he.Write(c.App.ErrWriter, interactive(c.App.ErrWriter) && !c.Bool("no-color"))
		return nil, nil, coded{exitRefused, fmt.Errorf("%s has %s", name, count(len(he.Diags), "problem"))}
	case err != nil:
		return nil, nil, coded{exitRefused, err}
	}
	return src, j, nil
}

func readLimited(c *cli.Context, name string) ([]byte, error) {
	r := c.App.Reader
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fault.New(fault.Invalid, "job file: %w", err)
		}
		defer f.Close()
		if st, err := f.Stat(); err == nil && st.IsDir() {
			return nil, fault.New(fault.Invalid, "job file %s is a folder; name the file", name)
		}
		r = f
	}
	src, err := io.ReadAll(io.LimitReader(r, hcl.MaxFile+1))
	if err != nil {
		return nil, fault.New(fault.Invalid, "job file %s: %w", name, err)
	}
	return src, nil
}
