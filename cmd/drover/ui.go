package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"github.com/drover-run/drover/coordinator"
	"github.com/drover-run/drover/internal/stall"
	"github.com/drover-run/drover/ui"
)

func uiCommand() *cli.Command {
	return &cli.Command{
		Name:  "ui",
		Usage: "the web page: the cluster, its jobs, and the schedule with its future",
		Description: "It serves the page on this machine with your own certificate, until Ctrl-C, and prints an address that opens\n" +
			"it once: who opens it gets a cookie, and nobody else on this machine gets in.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "listen", Usage: "`HOST:PORT` of the page on a loopback address; port 0: any that is free", Value: "127.0.0.1:0"},
		},
		Action: func(c *cli.Context) error {
			if _, err := positionalArgs(c, 0, 0, ""); err != nil {
				return err
			}
			if err := checkPageAddress("listen", c.String("listen")); err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			return serveUI(c.Context, c.String("listen"), ui.Config{API: cl.ClientServiceClient, History: cl.history}, func(address string) {
				fmt.Fprintln(c.App.Writer, address)
				fmt.Fprintln(c.App.ErrWriter, "open this address in a browser of this machine; it works once; Ctrl-C ends it")
			})
		},
	}
}

// webPage returns the page that a coordinator serves.
func webPage(c coordinator.PageConfig) http.Handler {
	return ui.New(ui.Config{API: c.API, History: c.History, Reader: c.Reader, Rights: c.Rights, Elsewhere: c.Elsewhere})
}

// uiShutdownLimit bounds how long open pages delay the end, in which they are
// cut off.
const uiShutdownLimit = 2 * time.Second

// checkPageAddress returns an error if what a flag says is no loopback address.
func checkPageAddress(flag, listen string) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return usageErrorf("-%s %q: want HOST:PORT, such as 127.0.0.1:0", flag, listen)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return usageErrorf("-%s %q: the page is served to this machine only: use 127.0.0.1; others use the coordinator's own address", flag, listen)
	}
	return nil
}

// serveUI serves the page on a loopback address, which checkPageAddress has checked, until ctx
// ends. It calls ready with an address that opens it.
func serveUI(ctx context.Context, listen string, page ui.Config, ready func(address string)) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("the page: %w", err)
	}
	guard := ui.NewGuard(ui.New(page), l.Addr().String())
	s := newUIServer(ctx, guard, 20*time.Second, 2*time.Minute)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("the page: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-gctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), uiShutdownLimit)
		defer cancel()
		if err := s.Shutdown(stop); err != nil {
			return s.Close()
		}
		return nil
	})
	ready(guard.Address())
	return g.Wait()
}

// newUIServer returns a server of the page. Every user of this machine can connect to it, so
// that a request that does not come, a response that is not read and a connection by which
// nothing is asked end: the first two after still, the third after idle.
func newUIServer(ctx context.Context, page http.Handler, still, idle time.Duration) *http.Server {
	return &http.Server{
		Handler: stall.Handler(still, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength != 0 { // a form, which is small; also what is left of one that nobody reads
				_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(still)) // unsupported only by test doubles
			}
			page.ServeHTTP(w, r)
		})),
		ReadHeaderTimeout: min(still, 10*time.Second), IdleTimeout: idle, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
}
