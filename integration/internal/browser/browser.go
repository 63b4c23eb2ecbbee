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
	"time"

	"github.com/chromedp/chromedp"
)

// Limit bounds each wait. It is long because CI machines are slow.
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

// Start starts a headless Chromium with an empty profile. The returned function ends it.
func Start(ctx context.Context) (context.Context, func(), error) {
	path, err := Find()
	if err != nil {
		return nil, nil, err
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.WSURLReadTimeout(Limit),
		chromedp.DisableGPU, chromedp.Flag("lang", "en-GB"), chromedp.Flag("ignore-certificate-errors", true)) // clusters have their own certificate authorities
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

// process is a running command of the program that announces on its standard error when it is
// ready.
type process struct {
	cmd *exec.Cmd
}

// start starts a command and returns when ready accepts one of its lines.
func start(cmd *exec.Cmd, ready func(line string) bool) (*process, error) {
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = in, in
	err = cmd.Start()
	_ = in.Close() // the child has its own descriptor
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	p, said, found := &process{cmd: cmd}, []string{}, make(chan bool, 1)
	all := make(chan struct{})
	go func() { // ends with the process
		defer close(all)
		defer out.Close()
		sent := false
		for s := bufio.NewScanner(out); s.Scan(); {
			if sent {
				continue
			}
			said = append(said, s.Text())
			if ready(s.Text()) {
				sent = true
				found <- true
			}
		}
	}()
	select {
	case <-found:
		return p, nil
	case <-all:
		return nil, fmt.Errorf("%s ended: %w: %s", cmd, cmd.Wait(), strings.Join(said, "\n"))
	case <-time.After(Limit):
		return nil, errors.Join(fmt.Errorf("%s was not ready within %s", cmd, Limit), p.stop())
	}
}

// stop ends the process as Ctrl-C does.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- p.cmd.Wait() }()
	select {
	case <-done:
		return nil
	case <-time.After(Limit):
		return errors.Join(fmt.Errorf("%s does not stop", p.cmd), p.cmd.Process.Kill(), <-done)
	}
}

// Dev is a running `drover dev`.
type Dev struct {
	Page string // address that opens the page once

	program, socket, data string
	process               *process
}

// StartDev starts a program's `drover dev` with its state in dir.
func StartDev(program, dir string) (*Dev, error) {
	d := &Dev{program: program, socket: filepath.Join(dir, "s"), data: filepath.Join(dir, "data")}
	return d, d.Restart()
}

// Restart starts `drover dev` again on the same state, with the page at another address.
func (d *Dev) Restart() (err error) {
	page, ready := "", false
	d.process, err = start(exec.Command(d.program, "dev", "-socket", d.socket, "-data", d.data), func(line string) bool {
		if rest, found := strings.CutPrefix(line, "page: "); found {
			page, _, _ = strings.Cut(rest, " ")
		}
		ready = ready || strings.HasPrefix(line, "ready:")
		return ready && page != ""
	})
	d.Page = page
	return err
}

// Stop ends `drover dev`. Its state stays.
func (d *Dev) Stop() error { return d.process.stop() }

// Attach returns a Dev for a running cluster that is reached at a socket.
func Attach(program, socket string) *Dev { return &Dev{program: program, socket: socket} }

// Coordinator is a running `drover coordinator`.
type Coordinator struct {
	Address string // of its page, https
	Peer    string // host:port for other coordinators, "" without -peer-listen
	process *process
}

// StartCoordinator starts a program's `drover coordinator`; args must contain -listen.
func StartCoordinator(program string, args ...string) (*Coordinator, error) {
	c := &Coordinator{}
	var err error
	c.process, err = start(exec.Command(program, append([]string{"coordinator"}, args...)...), func(line string) bool {
		if _, rest, found := strings.Cut(line, " and https://"); found && strings.HasPrefix(line, "ready:") {
			at, server, _ := strings.Cut(rest, ", server ")
			c.Address = "https://" + at
			_, c.Peer, _ = strings.Cut(server, " at ")
		}
		return c.Address != ""
	})
	return c, err
}

// Stop ends the coordinator.
func (c *Coordinator) Stop() error { return c.process.stop() }

// Kill ends the coordinator as kill -9 does.
func (c *Coordinator) Kill() error {
	if err := c.process.cmd.Process.Kill(); err != nil {
		return err
	}
	if err := c.process.cmd.Wait(); !errors.As(err, new(*exec.ExitError)) {
		return fmt.Errorf("killed, it ended with: %w", err)
	}
	return nil
}

// UI is a running `drover ui`.
type UI struct {
	Page    string // address that opens the page once
	process *process
}

// StartUI starts a `drover ui` for d at an address on loopback.
func (d *Dev) StartUI(listen string) (*UI, error) {
	return StartUI(d.program, listen, "DROVER_ADDRESS=unix://"+d.socket)
}

// StartUI starts a program's `drover ui` at an address on loopback; env names its cluster by
// environment variables.
func StartUI(program, listen string, env ...string) (*UI, error) {
	u := &UI{}
	cmd := exec.Command(program, "ui", "-listen", listen)
	cmd.Env = append(os.Environ(), env...)
	var err error
	u.process, err = start(cmd, func(line string) bool {
		if strings.HasPrefix(line, "http://") {
			u.Page = line
		}
		return u.Page != ""
	})
	return u, err
}

// Stop ends the `drover ui`.
func (u *UI) Stop() error { return u.process.stop() }

// Base returns the address of a page without its path.
func Base(page string) string {
	base, _, _ := strings.Cut(page, "/?")
	return base
}

// Socket returns the path of d's socket.
func (d *Dev) Socket() string { return d.socket }

// Run runs a command of the program against d and returns its standard output.
func (d *Dev) Run(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.program, args...)
	cmd.Env = append(os.Environ(), "DROVER_ADDRESS=unix://"+d.socket)
	var out, bad bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &bad
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("drover %s: %w: %s", strings.Join(args, " "), err, bad.String())
	}
	return out.String(), nil
}
