package main

import (
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/jobspec/hcl"
)

// varFlags returns the flags with values for the variables of a job file.
func varFlags() []cli.Flag {
	return []cli.Flag{
		&cli.GenericFlag{Name: "var", Value: &varList{}, Usage: "value of a variable of the job file as NAME=VALUE, repeatable; the last of a name counts"},
		&cli.GenericFlag{Name: "var-file", Value: &fileList{}, TakesFile: true, Usage: "file with values of variables, a line NAME = VALUE for each, repeatable; -var goes before it"},
	}
}

// varList is the flag -var, which may be repeated. A list flag of the library would divide a value at its commas.
type varList struct{ values []hcl.Given }

// Set implements flag.Value.
func (l *varList) Set(text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return errors.New("want NAME=VALUE")
	}
	if !utf8.ValidString(text) {
		return errors.New("want text in UTF-8")
	}
	l.values = append(l.values, hcl.GivenText(name, value))
	return nil
}

// String implements flag.Value: there is no default.
func (l *varList) String() string { return "" }

// fileList is the flag -var-file, which may be repeated.
type fileList struct{ names []string }

// Set implements flag.Value.
func (l *fileList) Set(name string) error {
	l.names = append(l.names, name)
	return nil
}

// String implements flag.Value: there is no default.
func (l *fileList) String() string { return "" }

// givenValues returns the values of varFlags, in the order in which a later one counts. standardInputs is how many other
// files are read from standard input.
func givenValues(c *cli.Context, standardInputs int) (given []hcl.Given, err error) {
	if files, ok := c.Generic("var-file").(*fileList); ok {
		for _, name := range files.names {
			src, err := readLimited(c, "file of values", name)
			if err != nil {
				return nil, err
			}
			if name == "-" {
				if standardInputs++; standardInputs > 1 {
					return nil, usageErrorf("standard input can be one file only: name the others")
				}
				name = "standard input"
			}
			values, err := hcl.ReadValues(name, src)
			if err != nil {
				return nil, showProblems(c, name, src, err)
			}
			given = append(given, values...)
		}
	}
	if list, ok := c.Generic("var").(*varList); ok {
		given = append(given, list.values...)
	}
	return given, nil
}
