package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drover-run/drover/internal/fault"
)

// serverStop is how long open requests have to end when the daemon leaves.
const serverStop = 2 * time.Second

// Run is the node daemon. It returns when ctx ends (nil) or when it cannot go
// on. Containers run on either way; a later Run on the same data folder adopts
// them.
func Run(ctx context.Context, cfg Config) error {
	d, err := newDaemon(cfg)
	if err != nil {
		return err
	}
	listener, err := d.listen()
	if err != nil {
		return errors.Join(err, d.close())
	}
	g, ctx := errgroup.WithContext(ctx)
	d.run = ctx
	g.Go(func() error { return d.serve(ctx, listener) })
	g.Go(func() error {
		if err := d.adopt(ctx); err != nil {
			return fmt.Errorf("adopting what an earlier daemon left: %w", err)
		}
		if d.cfg.Probe && !d.knownLevels() {
			g.Go(func() error { d.probe(ctx); return nil })
		}
		g.Go(func() error { return d.collecting(ctx) })
		return d.sessions(ctx)
	})
	err = g.Wait()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, d.close())
}

// listen opens the node's own server and fills in its address.
func (d *daemon) listen() (net.Listener, error) {
	l := d.cfg.Listener
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return nil, err
		}
	}
	if d.cfg.TLS == nil && !d.cfg.Insecure && !loopback(l.Addr()) {
		return nil, errors.Join(fault.New(fault.Denied, "the node's server would be open to the network at %s: give it a certificate (drover tls cert), or say that this network is trusted", l.Addr()), l.Close())
	}
	if d.cfg.Info.GetAddress() == "" {
		d.cfg.Info.Address = l.Addr().String()
	}
	if d.cfg.TLS != nil {
		c := d.cfg.TLS.Clone()
		c.ClientAuth = tls.VerifyClientCertIfGiven // the shuffle proves itself by the job's token
		c.NextProtos = []string{"h2", "http/1.1"}
		l = tls.NewListener(l, c)
	}
	return l, nil
}

func loopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return !ok || t.IP.IsLoopback()
}

func (d *daemon) serve(ctx context.Context, l net.Listener) error {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true) // Exec streams both ways
	srv := &http.Server{
		Handler: d.handler(ctx), Protocols: protocols, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	select {
	case err := <-done:
		return fmt.Errorf("the node's server: %w", err)
	case <-ctx.Done():
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), serverStop)
	defer cancel()
	if err := srv.Shutdown(within); err != nil {
		err = srv.Close() // streams do not end by themselves
		_ = err           // what is left is the listener, which is closed
	}
	<-done
	return nil
}
