package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drover-run/drover/internal/httplog"
	"github.com/drover-run/drover/internal/stall"
)

const (
	shutdownLimit = 2 * time.Second // for open requests when the daemon stops
	maxHeaderSize = 16 << 10        // bytes
	stallLimit    = time.Minute     // for a response that nobody reads; the helper of a frozen task fetches again later
)

// Run runs the node daemon. It returns when ctx ends (nil) or on a fatal error.
// Containers keep running either way; a later Run on the same data folder adopts
// them.
func Run(ctx context.Context, cfg Config) error {
	d, err := newDaemon(cfg)
	if err != nil {
		return err
	}
	endpoints, err := d.sockets.listen(d.handler(), d.shuffle)
	if err != nil {
		return errors.Join(err, d.close())
	}
	g, ctx := errgroup.WithContext(ctx)
	d.runCtx = ctx
	for _, e := range endpoints {
		g.Go(func() error { return d.serve(ctx, e) })
	}
	g.Go(func() error { return d.peers.follow(ctx) })
	g.Go(func() error { return d.containers.watch(ctx) })
	g.Go(func() error { return d.exclusive.keepWatchdog(ctx) })
	g.Go(func() error {
		if err := d.adopt(ctx); err != nil {
			return fmt.Errorf("adopting attempts of an earlier daemon: %w", err)
		}
		if d.cfg.Probe && !d.prober.load() {
			if d.attempts.count() > 0 { // their lease does not wait for a probe
				g.Go(func() error { d.prober.probe(ctx); d.prober.changed <- struct{}{}; return nil })
			} else {
				d.prober.probe(ctx) // before any task is placed here, because its resources are charged to nobody
			}
		}
		g.Go(func() error { return d.collector().loop(ctx) })
		g.Go(func() error { return d.sweeper().loop(ctx) })
		g.Go(func() error { return d.closeIdleLoop(ctx) })
		return d.sessionLoop(ctx)
	})
	err = g.Wait()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, d.close())
}

// serve serves one endpoint until ctx ends.
func (d *daemon) serve(ctx context.Context, e endpoint) error {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true) // Exec streams in both directions
	srv := &http.Server{
		Handler: stall.Handler(stallLimit, e.handler), Protocols: protocols, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: maxHeaderSize,
		BaseContext: func(net.Listener) context.Context { return ctx }, ConnState: d.peers.connections.Observe,
		ErrorLog: httplog.New(d.log.Handler()),
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(e) }()
	select {
	case err := <-done:
		return fmt.Errorf("the node's server: %w", err)
	case <-ctx.Done():
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownLimit)
	defer cancel()
	if err := srv.Shutdown(within); err != nil {
		err = srv.Close() // streams do not end by themselves
		_ = err           // only the listener is left, which is closed
	}
	<-done
	return nil
}
