package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

// checkOutputs refuses, before hours of simulation, a folder of -out or a file of -html that cannot
// be written. It creates nothing.
func checkOutputs(c *cli.Context) error {
	if dir := c.String("out"); dir != "" {
		if err := checkFolder(dir); err != nil {
			return fmt.Errorf("-out %s: %w", dir, err)
		}
	}
	if file := c.String("html"); file != "" {
		if err := checkFile(file); err != nil {
			return fmt.Errorf("-html %s: %w", file, err)
		}
	}
	return nil
}

// checkFolder returns an error unless files can be created in dir, which is created with those
// above it where they do not exist.
func checkFolder(dir string) error {
	at := filepath.Clean(dir)
	st, err := os.Stat(at)
	for errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
		at = filepath.Dir(at)
		st, err = os.Stat(at)
	}
	switch {
	case errors.Is(err, unix.ENOTDIR):
		return errors.New("a folder above it is a file: name another folder")
	case err != nil:
		return err
	case !st.IsDir():
		return fmt.Errorf("%s is a file: name a folder", at)
	}
	if err := unix.Access(at, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("cannot create files in %s: %w: name a folder that you may write to", at, err)
	}
	return nil
}

// checkFile returns an error unless the file can be created, or replaced.
func checkFile(file string) error {
	if to, err := filepath.EvalSymlinks(file); err == nil {
		file = to
	}
	st, err := os.Stat(file)
	switch {
	case err == nil && st.IsDir():
		return errors.New("it is a folder: name a file")
	case err == nil && !st.Mode().IsRegular(): // a device or a pipe
		return nil
	}
	dir := filepath.Dir(file)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no folder %s: create it", dir)
	}
	return checkFolder(dir)
}
