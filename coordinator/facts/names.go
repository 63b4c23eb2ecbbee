package facts

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/drover-run/drover/internal/fault"
)

// liveNames are the live jobs by name. A name is a tenant's own: jobs of several
// tenants may bear it at the same time.
type liveNames struct {
	byName   map[string][]uint64 // ascending
	byTenant map[string]int      // how many; none is zero
	count    int
}

func newLiveNames() liveNames {
	return liveNames{byName: map[string][]uint64{}, byTenant: map[string]int{}}
}

func (l *liveNames) add(tenant, name string, id uint64) {
	l.byTenant[tenant]++
	ids := l.byName[name]
	i, _ := slices.BinarySearch(ids, id)
	l.byName[name] = slices.Insert(ids, i, id)
	l.count++
}

func (l *liveNames) remove(tenant, name string, id uint64) {
	ids := l.byName[name]
	i, found := slices.BinarySearch(ids, id)
	if !found {
		return
	}
	l.count--
	if l.byTenant[tenant]--; l.byTenant[tenant] == 0 {
		delete(l.byTenant, tenant)
	}
	if len(ids) == 1 {
		delete(l.byName, name)
		return
	}
	l.byName[name] = slices.Delete(ids, i, i+1)
}

// liveJob returns the live job of that name of a tenant, or nil.
func (f *Facts) liveJob(tenant, name string) *Job {
	for _, id := range f.live.byName[name] {
		if j := f.jobs[id]; j.Spec.Tenant == tenant {
			return j
		}
	}
	return nil
}

// LiveJobs returns the live jobs of that name, of all tenants, oldest first. It
// allocates.
func (f *Facts) LiveJobs(name string) (out []*Job) {
	for _, id := range f.live.byName[name] {
		out = append(out, f.jobs[id])
	}
	return out
}

// CheckTenantShare returns an error if a tenant has its share of the live jobs: half of
// maxLiveJobs, and never more than are still free. It is asked at submission alone: a
// job that was acknowledged stays.
func (c Checks) CheckTenantShare(tenant string) error {
	if own, free := c.f.live.byTenant[tenant], maxLiveJobs-c.f.live.count; own >= min(maxLiveJobs/2, free) {
		return fault.Overload("%d jobs of tenant %q are live, its share: submit when some of them have ended", own, tenant)
	}
	return nil
}

// reservedOutputs are the output paths that jobs have reserved.
type reservedOutputs struct {
	byPath  map[string]uint64 // path as the job has it -> job
	byPlace map[string]int32  // place -> how many paths are spellings of it; more than one only by earlier versions
}

func newReservedOutputs() reservedOutputs {
	return reservedOutputs{byPath: map[string]uint64{}, byPlace: map[string]int32{}}
}

func (r reservedOutputs) add(path string, job uint64) {
	if _, known := r.byPath[path]; !known {
		r.byPlace[placeOf(path)]++
	}
	r.byPath[path] = job
}

// remove frees a path if the job has it.
func (r reservedOutputs) remove(path string, job uint64) {
	if path == "" || r.byPath[path] != job {
		return
	}
	delete(r.byPath, path)
	if place := placeOf(path); r.byPlace[place] > 1 {
		r.byPlace[place]--
	} else {
		delete(r.byPlace, place)
	}
}

// CheckOutputSpelling returns an error if a job has reserved an output in another spelling: through
// another name of its NameNode, or as an earlier version took it, uncleaned. It is asked at
// submission alone: CheckJob compares what is written. O(1), but O(live jobs) for an output that is
// reserved.
func (c Checks) CheckOutputSpelling(tenant, output string) error {
	if output == "" || c.f.outputs.byPlace[placeOf(output)] == 0 {
		return nil
	}
	place, first := placeOf(output), uint64(0)
	for path, id := range c.f.outputs.byPath {
		if (first == 0 || id < first) && placeOf(path) == place {
			first = id
		}
	}
	return c.outputConflict(tenant, output, first)
}

// placeOf returns the scheme and the cleaned path of a URI, without the authority: a NameNode has
// many names.
func placeOf(uri string) string {
	scheme, rest, _ := strings.Cut(uri, "://")
	return scheme + ":" + path.Clean(rest[max(0, strings.IndexByte(rest, '/')):])
}

func (c Checks) outputConflict(tenant, output string, by uint64) error {
	return fault.New(fault.Conflict, "output %s is reserved by %s: wait for it or choose another path", output, describeTo(tenant, c.f.jobs[by]))
}

// JobNameIn returns the name of a job for the members of a tenant: its number if it belongs to
// another tenant, "" if it is forgotten.
func (f *Facts) JobNameIn(tenant string, id uint64) string {
	switch j := f.jobs[id]; {
	case j == nil:
		return ""
	case j.Spec.Tenant != tenant:
		return fmt.Sprint(id)
	default:
		return j.Name
	}
}

// UnknownTenant is the error for a name that no tenant has.
func UnknownTenant(name string) error {
	return fault.New(fault.NotFound, "tenant %q is unknown; `drover tenant list` shows those there are", clip(name, 128))
}

// describeTo names a job for the members of a tenant. It does not tell names and numbers of other
// tenants' jobs.
func describeTo(tenant string, j *Job) string {
	if j.Spec.Tenant != tenant {
		return "a job of another tenant"
	}
	return fmt.Sprintf("job %q (number %d)", j.Name, j.ID)
}
