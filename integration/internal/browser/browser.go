// Package browser drives a real Chromium and a `drover dev`, for the tests of
// the web page and for its pictures.
package browser

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/chromedp/chromedp"
)

// Limit bounds each wait; machines of CI are slow.
const Limit = 2 * time.Minute

// Find returns the path of Chromium, or an error that says what to install.
func Find() (string, error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if p, err := exec.LookPath(name); err == nil {
			return p, nil
		}
	}
	return "", errors.New("no Chromium is installed (apt-get install chromium, or make deps)")
}

// Start starts a headless Chromium with an empty profile. The function returned
// ends it.
func Start(ctx context.Context) (context.Context, func(), error) {
	path, err := Find()
	if err != nil {
		return nil, nil, err
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.WSURLReadTimeout(Limit),
		chromedp.DisableGPU, chromedp.Flag("lang", "en-GB"))
	actx, endAllocator := chromedp.NewExecAllocator(ctx, opts...)
	bctx, endBrowser := chromedp.NewContext(actx)
	end := func() {
		endBrowser()
		endAllocator()
	}
	if err := chromedp.Do(bctx); err != nil {
		end()
		return nil, nil, fmt.Errorf("start %s: %w", path, err)
	}
	return bctx, end, nil
}

// Dev is a running `drover dev`.
type Dev struct {
	Program string
	Socket  string
	Page    string // address that opens the page once

	dir    string
	listen string
	cmd    *exec.Cmd
	out    *bytes.Buffer
}

// StartDev starts a program's `drover dev` with its state in dir.
func StartDev(program, dir string) (*Dev, error) {
	d := &Dev{Program: program, Socket: filepath.Join(dir, "s"), dir: dir, listen: "127.0.0.1:0"}
	return d, d.Restart()
}

// Restart starts it again on the same state and port.
func (d *Dev) Restart() error {
	d.out = &bytes.Buffer{}
	d.cmd = exec.Command(d.Program, "dev", "-socket", d.Socket, "-data", filepath.Join(d.dir, "data"), "-ui", d.listen)
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stderr, err := d.cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := d.cmd.Start(); err != nil {
		return err
	}
	lines := make(chan string)
	go func() { // ends with the process's standard error
		defer close(lines)
		for s := bufio.NewScanner(stderr); s.Scan(); {
			select {
			case lines <- s.Text():
			case <-time.After(Limit):
			}
		}
	}()
	limit := time.After(Limit)
	page, ready := false, false
	for !page || !ready {
		select {
		case line, ok := <-lines:
			if !ok {
				return fmt.Errorf("drover dev ended: %w: %s", d.cmd.Wait(), d.out)
			}
			fmt.Fprintln(d.out, line)
			if rest, found := strings.CutPrefix(line, "page: "); found {
				d.Page, _, _ = strings.Cut(rest, " ")
				d.listen = strings.TrimPrefix(d.Base(), "http://")
				page = true
			}
			ready = ready || strings.HasPrefix(line, "ready:")
		case <-limit:
			return errors.Join(fmt.Errorf("drover dev was not ready within %s: %s", Limit, d.out), d.Stop())
		}
	}
	go func() { // as above
		for range lines {
		}
	}()
	return nil
}

// Base returns the page's address without a path.
func (d *Dev) Base() string {
	base, _, _ := strings.Cut(d.Page, "/?")
	return base
}

// Stop ends it as Ctrl-C does. Its state stays.
func (d *Dev) Stop() error {
	if err := d.cmd.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- d.cmd.Wait() }()
	select {
	case <-done:
		return nil
	case <-time.After(Limit):
		return errors.Join(errors.New("drover dev does not stop"), d.cmd.Process.Kill(), <-done)
	}
}

// Run runs a command of the program against it and returns its standard output.
func (d *Dev) Run(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.Program, args...)
	cmd.Env = append(os.Environ(), "DROVER_ADDRESS=unix://"+d.Socket)
	var out, bad bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &bad
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("drover %s: %w: %s", strings.Join(args, " "), err, bad.String())
	}
	return out.String(), nil
}
