package node

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/internal/diagnosis"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/dump"
	"github.com/drover-run/drover/node/shuffle"
	"github.com/drover-run/drover/node/store"
)

// maxShuffleRequests bounds the partitions that are served at once.
const maxShuffleRequests = 64

// maxScrapes bounds the requests for metrics that are served at once.
const maxScrapes = 4

// handler serves the task API for the coordinator, map outputs and dumps for
// other nodes, and metrics and health for everyone.
func (d *daemon) handler() http.Handler {
	mux := http.NewServeMux()
	path, api := droverv1connect.NewTaskServiceHandler(&taskAPI{d})
	mux.Handle(path, d.peers.requireCoordinator(api))
	path, debug := droverv1connect.NewDebugServiceHandler(&diagnosis.Service{Log: d.cfg.RecentLog})
	mux.Handle(path, d.peers.requireCoordinator(debug))
	mux.Handle(shuffle.Prefix, d.shuffle)
	mux.Handle(dump.Prefix, dump.NewServer(d.dumpSource, maxDumpRequests, d.log))
	mux.Handle("GET /metrics", d.peers.requireMember(promhttp.HandlerFor(d.cfg.Registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, Timeout: 10 * time.Second})))
	mux.HandleFunc("GET /healthz", d.health)
	return mux
}

// health answers 200 while the daemon works and its engine answers.
func (d *daemon) health(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	if err := d.containers.works(ctx); err != nil {
		http.Error(w, cmp.Or(d.containers.problem(0), "container engine: "+err.Error()), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// mapOutputs implements shuffle.Outputs with the committed map outputs of this node.
type mapOutputs struct{ attempts *attemptTable }

// find returns a successful map attempt of this node. Unavailable: the daemon has just started and
// may still adopt it.
func (o mapOutputs) find(k shuffle.OutputKey) (*attempt, *droverv1.TaskSpec, error) {
	id := store.IDOf(&droverv1.AttemptKey{Job: k.Job, Stage: k.Stage, Task: k.Task, Attempt: k.Attempt, Run: k.Run})
	a, err := o.attempts.lookUp(id)
	if err != nil {
		return nil, nil, err
	}
	wanted, spec := a.mail.wantedAndSpec()
	if wanted == nil || spec.GetKind() != kindMap || a.mail.snapshot().GetPhase() != droverv1.Phase_PHASE_SUCCEEDED {
		return nil, nil, fault.New(fault.NotFound, "attempt %s has no output to serve", id)
	}
	return a, spec, nil
}

// Token implements shuffle.Outputs.
func (o mapOutputs) Token(k shuffle.OutputKey) (string, error) {
	_, spec, err := o.find(k)
	return spec.GetShuffleToken(), err
}

// Open implements shuffle.Outputs.
func (o mapOutputs) Open(k shuffle.OutputKey) (*shuffle.Output, error) {
	a, _, err := o.find(k)
	if err != nil {
		return nil, err
	}
	return a.dir.openOutput()
}
