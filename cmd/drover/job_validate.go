package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/plain"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/jobspec/hcl"
)

func jobValidateCommand() *cli.Command {
	return &cli.Command{
		Name:      "validate",
		Usage:     "check a job file without a cluster",
		ArgsUsage: "FILE",
		Description: "Reads the file as `job run` does, and checks every field and that the named files exist.\n" +
			"With -json it prints the canonical JSON that would be submitted, with the values of variables.",
		Flags: append(varFlags(), jsonFlag),
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, 1, "FILE")
			if err != nil {
				return err
			}
			_, j, err := readJobFile(c, a[0])
			if err != nil {
				return err
			}
			if _, err := collectLocalFiles(j, a[0]); err != nil {
				return err
			}
			for _, h := range jobHints(j, a[0]) {
				fmt.Fprintln(c.App.ErrWriter, h)
			}
			if c.Bool("json") {
				return printJSON(c.App.Writer, j)
			}
			fmt.Fprintf(c.App.Writer, "%s: job %q is valid (%s)\n", a[0], j.Name, countText(len(j.Stages), "stage"))
			return nil
		},
	}
}

// readJobFile reads and validates a job file ("-" is standard input).
func readJobFile(c *cli.Context, name string) ([]byte, *jobspec.Job, error) {
	src, err := readLimited(c, "job file", name)
	if err != nil {
		return nil, nil, err
	}
	parse, standardInputs := hcl.Parse, 0
	if name == "-" {
		name, parse, standardInputs = "standard input", hcl.ParseUnnamed, 1
	}
	given, err := givenValues(c, standardInputs)
	if err != nil {
		return nil, nil, err
	}
	j, err := parse(name, src, given...)
	switch other := wrongFile("job", name, src); {
	case err != nil && other != nil:
		return nil, nil, other
	case err != nil:
		return nil, nil, showProblems(c, name, src, err)
	}
	if err := readPartitionFiles(j, name); err != nil {
		_, others := collectLocalFiles(j, name) // which the caller would have said next
		return nil, nil, exitError{exitRefused, errors.Join(err, others)}
	}
	if err := jobspec.CheckSize(j); err != nil {
		return nil, nil, exitError{exitRefused, err}
	}
	return src, j, nil
}

// showProblems writes the problems of a file in HCL, and returns an error that counts them. Another error it returns.
func showProblems(c *cli.Context, name string, src []byte, err error) error {
	var he *hcl.Error
	if !errors.As(err, &he) {
		return exitError{exitRefused, err}
	}
	if isTerminal(c.App.ErrWriter) && !c.Bool("no-color") && plain.Text(string(src)) == string(src) {
		he.Write(rawWriter(c.App.ErrWriter), true)
	} else {
		he.Write(c.App.ErrWriter, false)
	}
	return exitError{exitRefused, fmt.Errorf("%s has %s", name, countText(len(he.Diags), "problem"))}
}

// firstBlock finds what the first block of a file in HCL is.
var firstBlock = regexp.MustCompile(`(?m)^[ \t]*(job|tenant)[ \t]+[^=\n]*\{`)

// wrongFile returns an error if the file begins with another block than its reader wants: messages
// about its content would not help.
func wrongFile(want, name string, src []byte) error {
	m := firstBlock.FindSubmatch(src)
	if m == nil || string(m[1]) == want {
		return nil
	}
	if string(m[1]) == "job" {
		return fault.New(fault.Invalid, "%s is a job file: `drover job run %s` submits it", name, name)
	}
	return fault.New(fault.Invalid, "%s is a file of tenants: `drover tenant apply %s` puts it in force", name, name)
}

// readPartitionFiles reads the files of partition keys that a job names, with paths relative to
// the job file's folder, into the job. The error has a line for each that it cannot use.
func readPartitionFiles(j *jobspec.Job, jobFile string) error {
	var wrong []error
	for i := range j.Stages {
		s := &j.Stages[i]
		if s.PartitionFile == "" {
			continue
		}
		file := s.PartitionFile
		if !filepath.IsAbs(file) {
			file = filepath.Join(filepath.Dir(jobFile), file)
		}
		f, err := os.Open(file)
		if err != nil {
			wrong = append(wrong, fault.New(fault.Invalid, "partition_file of stage %q: %w; drover job partition makes one from a sample of the mapper's output", s.Name, err))
			continue
		}
		text, err := io.ReadAll(io.LimitReader(f, hcl.MaxFileBytes))
		f.Close()
		if err == nil {
			err = s.SetPartitionKeys(text)
		}
		if err != nil {
			wrong = append(wrong, fault.New(fault.Invalid, "partition_file of stage %q: %w", s.Name, err))
		}
	}
	return errors.Join(wrong...)
}

// readLimited reads a file ("-" is standard input), or a byte more than a job file may have. what is the word for it in messages.
func readLimited(c *cli.Context, what, name string) ([]byte, error) {
	r := c.App.Reader
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fault.New(fault.Invalid, "%s: %w", what, err)
		}
		defer f.Close()
		if st, err := f.Stat(); err == nil && st.IsDir() {
			return nil, fault.New(fault.Invalid, "%s %s is a folder; name the file", what, name)
		}
		r = f
	}
	src, err := io.ReadAll(io.LimitReader(r, hcl.MaxFileBytes+1))
	if err != nil {
		return nil, fault.New(fault.Invalid, "%s %s: %w", what, name, err)
	}
	return src, nil
}
