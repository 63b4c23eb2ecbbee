package node

import (
	"testing"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/mapreduce"
)

// What no attempt elsewhere could read is told from what this machine alone may lack.
func TestInputIsLostToAll(t *testing.T) {
	gone, shrank := fault.New(fault.NotFound, "gone"), fault.New(fault.Invalid, "shrank")
	for _, c := range []struct {
		err  error
		path string
		want bool
	}{
		{gone, "hdfs:///in", true},
		{gone, "file:///in", false},
		{shrank, "hdfs:///in", true},
		{shrank, "file:///in", true},
		{fault.New(fault.Unavailable, "no DataNode answers"), "hdfs:///in", false},
	} {
		if got := isLostToAll(c.err, []mapreduce.Piece{{Path: c.path}}); got != c.want {
			t.Errorf("%v of %s: %v", c.err, c.path, got)
		}
	}
}
