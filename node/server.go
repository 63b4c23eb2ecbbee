package node

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/node/dump"
	"github.com/drover-run/drover/node/shuffle"
	"github.com/drover-run/drover/node/store"
)

// shuffleAtOnce bounds the partitions that are served at once.
const shuffleAtOnce = 64

// handler is the node's own server: the task API for the coordinator, map
// outputs for other nodes, metrics and health for everybody.
func (d *daemon) handler(context.Context) http.Handler {
	mux := http.NewServeMux()
	path, api := droverv1connect.NewTaskServiceHandler(&taskAPI{d})
	mux.Handle(path, d.known(api))
	mux.Handle(shuffle.Prefix, shuffle.NewServer(outputs{d}, shuffleAtOnce, d.log, d.cfg.Registry))
	mux.Handle(dump.Prefix, dump.NewServer(&holdings{d: d}, dumpsAtOnce, d.log))
	mux.Handle("GET /metrics", promhttp.HandlerFor(d.cfg.Registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", d.health)
	return mux
}

// known lets only the coordinator through, where there are certificates: it
// asks on behalf of users whose rights it has checked.
func (d *daemon) known(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.cfg.TLS != nil {
			if kind, _, err := pki.Peer(r.TLS); err != nil || kind != pki.KindCoordinator {
				http.Error(w, "only a coordinator's certificate opens this; ask through the coordinator", http.StatusForbidden)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// health says 200 while the daemon works and its engine answers.
func (d *daemon) health(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	if _, err := d.containers.get(ctx); err != nil {
		http.Error(w, d.containers.problem(0), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// outputs finds the committed map outputs of this node.
type outputs struct{ d *daemon }

// find gives a map attempt of this node that succeeded.
func (o outputs) find(k *droverv1.AttemptKey) (*attempt, *droverv1.TaskSpec, error) {
	id := store.IDOf(k)
	o.d.mu.Lock()
	a := o.d.attempts[id]
	silent := a != nil && a.silent
	o.d.mu.Unlock()
	if a == nil || silent {
		return nil, nil, fault.New(fault.NotFound, "attempt %s is not on this node", id)
	}
	wanted, spec := a.goal()
	if wanted == nil || spec.GetKind() != kindMap || a.snapshot().GetPhase() != droverv1.Phase_PHASE_SUCCEEDED {
		return nil, nil, fault.New(fault.NotFound, "attempt %s has no output to serve", id)
	}
	return a, spec, nil
}

// Token implements shuffle.Outputs.
func (o outputs) Token(k *droverv1.AttemptKey) (string, error) {
	_, spec, err := o.find(k)
	return spec.GetShuffleToken(), err
}

// Open implements shuffle.Outputs.
func (o outputs) Open(k *droverv1.AttemptKey) (*shuffle.Output, error) {
	a, spec, err := o.find(k)
	if err != nil {
		return nil, err
	}
	out, err := a.dir.openOutput()
	if err != nil {
		return nil, err
	}
	out.Token = spec.GetShuffleToken()
	return out, nil
}
