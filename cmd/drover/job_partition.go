package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/keyorder"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/mapreduce"
)

func jobPartitionCommand() *cli.Command {
	return &cli.Command{
		Name:      "partition",
		Usage:     "choose the keys between the reducers of a totally ordered job",
		ArgsUsage: "[FILE]",
		Description: "Reads lines of a mapper's output from FILE or standard input and writes the keys that divide them evenly, one\n" +
			"on each line, one less than reducers: the partition_file of a reduce stage. A sample of the output is\n" +
			"enough; of more than 100,000 lines a random part counts. No key is divided: one that is more frequent than\n" +
			"its part of the lines makes its reducer larger.",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "tasks", Usage: "number of reducers, as tasks of the reduce stage"},
			&cli.IntFlag{Name: "fields", Value: 1, Usage: "number of the first fields of a line that stay together: at most key_fields of the reduce stage"},
			&cli.StringFlag{Name: "order", Usage: "order of each of these fields, with commas between, as key_order of the reduce stage: \"text,number desc\"; by default that of bytes"},
			jsonFlag,
		},
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 0, 1, "[FILE]")
			if err != nil {
				return err
			}
			tasks, fields := c.Int("tasks"), c.Int("fields")
			if tasks < 1 || tasks > jobspec.MaxReduceTasks {
				return usageErrorf("-tasks %d: give the number of reducers, 1 to %d", tasks, jobspec.MaxReduceTasks)
			}
			if fields < 1 || fields > keyorder.MaxFields {
				return usageErrorf("-fields %d: give 1 to %d", fields, keyorder.MaxFields)
			}
			order, err := parseKeyOrder(c.String("order"), fields)
			if err != nil {
				return err
			}
			in, name := c.App.Reader, "standard input"
			if len(a) == 1 && a[0] != "-" {
				f, err := os.Open(a[0])
				if err != nil {
					return fault.New(fault.Invalid, "%w", err)
				}
				defer f.Close()
				in, name = f, a[0]
			}
			sample := mapreduce.NewKeySample(fields, order)
			if err := sampleLines(in, sample.Add); err != nil {
				return fault.New(fault.Invalid, "%s: %w", name, err)
			}
			keys, err := sample.PartitionKeys(tasks)
			if err != nil {
				return exitError{exitRefused, fmt.Errorf("%s: %w", name, err)}
			}
			if n := len(strings.Join(keys, "")); n > jobspec.MaxPartitionKeyBytes {
				return exitError{exitRefused, fmt.Errorf("%s: the keys of %d reducers have %s, and a job may have %s of them: ask for fewer reducers, or for fewer -fields", name, tasks, jobspec.FormatSize(int64(n)), jobspec.FormatSize(jobspec.MaxPartitionKeyBytes))}
			}
			if c.Bool("json") {
				return printJSON(c.App.Writer, map[string]any{"tasks": tasks, "lines": sample.Lines(), "partition_keys": keys})
			}
			out := taskWriter(c.App.Writer, false) // the bytes of the keys
			for _, key := range keys {
				fmt.Fprintln(out, key)
			}
			return nil
		},
	}
}

// parseKeyOrder parses -order for so many fields of a key.
func parseKeyOrder(text string, fields int) (keyorder.Order, error) {
	if text == "" {
		return nil, nil
	}
	var entries []string
	for e := range strings.SplitSeq(text, ",") {
		e = strings.TrimSpace(e)
		if !slices.Contains(keyorder.Entries(), e) {
			return nil, usageErrorf("-order %q: %q is no order of a field: give %s for each", text, e, strings.Join(keyorder.Entries(), ", "))
		}
		entries = append(entries, e)
	}
	if len(entries) < fields {
		return nil, usageErrorf("-order %q: it has %d of the %d fields of -fields: give the order of each", text, len(entries), fields)
	}
	order, _ := keyorder.Parse(entries[:fields])
	return order, nil
}

// sampleLines calls add with each line of a reader, cut to the bytes of its buffer.
func sampleLines(r io.Reader, add func(line []byte)) error {
	in := bufio.NewReaderSize(r, 1<<20)
	for {
		line, err := in.ReadSlice('\n')
		if len(line) > 0 {
			add(bytes.TrimSuffix(line, []byte{'\n'}))
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = in.ReadSlice('\n')
		}
		if err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
	}
}
