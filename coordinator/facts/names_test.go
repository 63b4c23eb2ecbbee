package facts

import (
	"errors"
	"fmt"
	"testing"

	"github.com/drover-run/drover/internal/fault"
)

// A tenant that submits without end leaves room for the jobs of others.
func TestLiveJobsAreShared(t *testing.T) {
	f := New()
	checks := f.Checks()
	id := uint64(0)
	fill := func(tenant string) (own int) {
		for checks.CheckTenantShare(tenant) == nil {
			id++
			own++
			f.live.add(tenant, fmt.Sprint(id), id)
		}
		return own
	}
	if own := fill("a"); own != maxLiveJobs/2 {
		t.Errorf("one tenant has %d live jobs, want half of %d", own, maxLiveJobs)
	}
	if own := fill("b"); own < maxLiveJobs/4 {
		t.Errorf("the second has %d", own)
	}
	if own := fill("c"); own < maxLiveJobs/8 {
		t.Errorf("the third has %d", own)
	}
	if err := checks.CheckTenantShare("a"); !errors.Is(err, fault.Overloaded) {
		t.Errorf("the first: %v", err)
	}
	for i := range uint64(maxLiveJobs / 2) {
		f.live.remove("a", fmt.Sprint(i+1), i+1)
	}
	if n := f.live.byTenant["a"]; n != 0 {
		t.Errorf("%d jobs of a are left", n)
	}
	if err := checks.CheckTenantShare("a"); err != nil {
		t.Error(err)
	}
}
