package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

// Every command that help shows has a page, with each of its flags; two runs give
// the same bytes, and man finds nothing to complain of.
func TestManPages(t *testing.T) {
	app := newApp(strings.NewReader(""), io.Discard, io.Discard)
	dirs := [2]string{t.TempDir(), t.TempDir()}
	for _, d := range dirs {
		if err := app.Run([]string{"drover", "man", d}); err != nil {
			t.Fatal(err)
		}
	}
	pages := 0
	var look func(name string, c *cli.Command)
	look = func(name string, c *cli.Command) {
		pages++
		page, err := os.ReadFile(filepath.Join(dirs[0], name+".1"))
		if err != nil {
			t.Error(err)
			return
		}
		again, err := os.ReadFile(filepath.Join(dirs[1], name+".1"))
		if err != nil || !bytes.Equal(page, again) {
			t.Errorf("%s: two runs differ (%v)", name, err)
		}
		for code := exitFailed; code <= exitDetached; code++ {
			if !bytes.Contains(page, fmt.Appendf(nil, "; %d ", code)) {
				t.Errorf("%s.1 does not name the exit code %d", name, code)
			}
		}
		for _, f := range c.Flags {
			if v, ok := f.(cli.VisibleFlag); ok && v.IsVisible() && !bytes.Contains(page, []byte(`\fB\-`+roffText(f.Names()[0])+`\fR`)) {
				t.Errorf("%s.1 does not name -%s", name, f.Names()[0])
			}
		}
		if man, err := exec.LookPath("man"); err == nil {
			cmd := exec.Command(man, "--warnings", "-E", "UTF-8", "-l", "-Tutf8", filepath.Join(dirs[0], name+".1"))
			cmd.Env = append(os.Environ(), "MANPAGER=cat", "LC_ALL=C.UTF-8")
			var said bytes.Buffer
			cmd.Stdout, cmd.Stderr = io.Discard, &said
			if err := cmd.Run(); err != nil || said.Len() > 0 {
				t.Errorf("man %s: %v %s", name, err, said.String())
			}
		}
		for _, s := range visibleCommands(c) {
			look(name+"-"+s.Name, s)
		}
	}
	look("drover", &cli.Command{Subcommands: app.Commands})
	if pages < 40 {
		t.Errorf("%d pages", pages)
	}
}
