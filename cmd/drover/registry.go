package main

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/drover-run/drover/internal/version"
)

// newRegistry is where a daemon registers its metrics. It holds already what
// every process tells: of Go's runtime, of the process, and its version.
func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "drover_build_info", Help: "1, with the version of the program as label.",
		ConstLabels: prometheus.Labels{"version": version.Version}})
	build.Set(1)
	r.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}
