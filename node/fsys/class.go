package fsys

import (
	"errors"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/fault"
)

// Classed adds the class of package fault to an error of a file system.
func Classed(err error) error {
	if err == nil || fault.Class(err) != nil {
		return err
	}
	for _, c := range []struct{ from, to error }{
		{hdfs.ErrNotExist, fault.NotFound}, {hdfs.ErrExist, fault.Exists}, {hdfs.ErrPermission, fault.Denied},
		{hdfs.ErrQuota, fault.Exhausted}, {hdfs.ErrUnavailable, fault.Unavailable}, {hdfs.ErrBlockMissing, fault.Unavailable},
		{hdfs.ErrUnsupported, fault.Unsupported}, {hdfs.ErrChanged, fault.Conflict}, {hdfs.ErrProtocol, fault.Unavailable},
		{hdfs.ErrInvalid, fault.Invalid}, {hdfs.ErrIsDirectory, fault.Invalid}, {hdfs.ErrNotDirectory, fault.Invalid},
		{hdfs.ErrRefused, fault.Conflict}, // last: a refusal may have a closer class too
	} {
		if errors.Is(err, c.from) {
			return fault.New(c.to, "%w", err)
		}
	}
	return err
}
