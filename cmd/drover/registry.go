package main

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/drover-run/drover/internal/version"
)

// newRegistry returns a metrics registry that already contains the metrics of the Go
// runtime, the process and its version.
func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "drover_build_info", Help: "Always 1; the label is the version of the program.",
		ConstLabels: prometheus.Labels{"version": version.Version}})
	build.Set(1)
	r.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}
