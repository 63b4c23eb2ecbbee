// Package pkimetrics has the metrics of a daemon's certificate. It is separate from pki, because
// small programs without metrics import pki.
package pkimetrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/drover-run/drover/internal/pki"
)

// Expiry returns a gauge of when a member's certificate expires.
func Expiry(m *pki.Member) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "drover_tls_certificate_expiry_timestamp_seconds", Help: "When the daemon's certificate expires, Unix time."},
		func() float64 { return float64(m.Leaf().NotAfter.Unix()) })
}
