package node

import (
	"cmp"
	"context"
	"fmt"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/quota"
	"github.com/drover-run/drover/jobspec"
)

// diskUse owns the last measurement of the disk space of an attempt's folder. A measurement that
// fails leaves it unchanged.
type diskUse struct {
	bytes int64
	files int64 // files and folders

	dir    folder
	cfg    *Config
	method quota.Method
}

// measure measures the folder. It reports whether that succeeded.
func (u *diskUse) measure(ctx context.Context) bool {
	use, err := quota.Measure(ctx, string(u.dir), u.method)
	if err != nil {
		return false
	}
	u.bytes, u.files = use.Bytes, use.Files
	return true
}

// failure returns the failure of an attempt that filled its quota, or nil.
// slack is the number of bytes that the kernel may have refused to write.
func (u *diskUse) failure(spec *droverv1.TaskSpec, slack int64) *failure {
	limit := spec.GetDisk()
	if limit <= 0 {
		return nil
	}
	if files := u.cfg.filesLimit(spec); u.files > files || slack > 0 && u.files == files {
		return &failure{cause: droverv1.Cause_CAUSE_DISK, message: fmt.Sprintf(
			"over its disk quota: with disk = %q of stage %q it may have %d files and folders, its share of the disk's; raise disk, or make fewer files",
			jobspec.FormatSize(limit), spec.GetStageName(), files)}
	}
	if u.bytes+slack <= limit {
		return nil
	}
	return &failure{cause: droverv1.Cause_CAUSE_DISK, message: fmt.Sprintf(
		"over its disk quota: disk = %q of stage %q, %s were used; raise disk, or write less",
		jobspec.FormatSize(limit), spec.GetStageName(), jobspec.FormatSize(u.bytes))}
}

// failureOfWrite returns the failure of an attempt that may have failed to write because its quota
// is full, or nil.
func (u *diskUse) failureOfWrite(spec *droverv1.TaskSpec) *failure {
	if u.method == quota.Kernel {
		return u.failure(spec, quotaSlack)
	}
	return u.failure(spec, 0)
}

// failureOfInput returns the failure of an attempt whose input cannot be fetched: f, unless the
// input has filled its quota.
func (u *diskUse) failureOfInput(ctx context.Context, spec *droverv1.TaskSpec, f *failure) *failure {
	u.measure(ctx)
	return cmp.Or(u.failureOfWrite(spec), f)
}
