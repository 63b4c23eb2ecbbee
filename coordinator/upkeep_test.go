package coordinator

import (
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// However much changes, all jobs and files are looked at for what may be forgotten once in tidyPause. It was with each burst
// of changes, and took a processor where there are very many.
func TestChangesDoNotHaveAllJobsAndFilesLookedAtEachTime(t *testing.T) {
	var looks atomic.Int64
	b := newTestCluster(t, func(c *Config) {
		c.Now = func() time.Time {
			if calledBy("(*core).forgetJobs") {
				looks.Add(1)
			}
			return time.Now()
		}
	})
	began, changes := time.Now(), 0
	for ; time.Since(began) < tidyPause+tidyPause/2; changes++ {
		req := &droverv1.ApplyTenantsRequest{Tenants: []*droverv1.Tenant{{Name: "t", Weight: float64(changes + 1)}}}
		if _, err := b.client.ApplyTenants(b.ctx, connect.NewRequest(req)); err != nil {
			t.Fatal(err)
		}
	}
	most := 2 + int64(time.Since(began)/tidyPause)
	if n := looks.Load(); n < 1 || n > most {
		t.Errorf("%d looks at all jobs while there were %d changes in %s, want 1 to %d", n, changes, time.Since(began), most)
	}
	b.waitUntil("a look after the last change", func() bool { return looks.Load() > 1 })
}

// calledBy reports whether a method is on the stack, as "(*core).view".
func calledBy(method string) bool {
	pc := make([]uintptr, 16)
	frames := runtime.CallersFrames(pc[:runtime.Callers(2, pc)])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, method) {
			return true
		}
		if !more {
			return false
		}
	}
}
