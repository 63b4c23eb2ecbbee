package policies

import (
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/drf"
	"github.com/drover-run/drover/scheduler/locality"
	"github.com/drover-run/drover/scheduler/threedsf"
)

var shareParams = []Param{
	{Name: "lev", Kind: Int, Default: "1", Min: 1, Max: 3, Help: "which share counts as dominant: 1 the largest, 2, 3 the smallest"},
	{Name: "stop_at_first_misfit", Kind: Bool, Default: "false", Help: "end a cycle at the first task that does not fit, as the papers print it"},
}

var localityParams = []Param{
	{Name: "locality", Kind: Bool, Default: "true", Help: "place tasks near their data by weighted matching"},
	{Name: "bandwidth", Kind: Int, Default: "50000000", Min: 1, Max: 1e12, Help: "bytes per second that one reader of remote data gets"},
	{Name: "tcp_window", Kind: Int, Default: "0", Min: 0, Max: 1e12, Help: "bytes; with rtt, transfer times by window and round trip (3DSF eq. 2, 3) instead of bandwidth"},
	{Name: "rtt", Kind: Duration, Default: "0s", Min: 0, Max: 10, Help: "round trip time beside tcp_window"},
	{Name: "max_locality_wait", Kind: Duration, Default: "5s", Min: 0, Max: 3600, Help: "a stage without a task placed at its data for so long moves the next ones"},
	{Name: "small_task", Kind: Int, Default: "1048576", Min: 0, Max: 1e15, Help: "bytes of input below which a task skips matching; the papers' value is one block of the file system"},
}

var threeDSFInfo = Info{
	Name:   "3dsf",
	Help:   "fair shares of three resources between tenants, data locality by matching, deadlines by suspending (the default)",
	Params: append(append([]Param{}, shareParams...), localityParams...),
	New: func(v Values) (scheduler.Policy, error) {
		c := shareConfig("3dsf", 3, v)
		c.Deadlines = true
		c.Locality = v.Bool("locality")
		c.Network = locality.Network{Bandwidth: int64(v.Int("bandwidth")), Window: int64(v.Int("tcp_window")), RTT: v.Duration("rtt")}
		c.MaxWait, c.SmallTask = v.Duration("max_locality_wait"), int64(v.Int("small_task"))
		return threedsf.New(c), nil
	},
}

var drfInfo = Info{
	Name: "drf",
	Help: "dominant resource fairness between tenants: CPU and memory, or with resources = 3 disk I/O as well",
	Params: append([]Param{
		{Name: "resources", Kind: Int, Default: "2", Min: 2, Max: 3, Help: "2: CPU and memory count in shares, the original; 3: disk I/O too, enhanced DRF"},
	}, shareParams...),
	New: func(v Values) (scheduler.Policy, error) {
		return threedsf.New(shareConfig("drf", v.Int("resources"), v)), nil
	},
}

func shareConfig(name string, resources int, v Values) threedsf.Config {
	return threedsf.Config{Name: name, Level: drf.Level(v.Int("lev")), Resources: resources, StopAtFirstMisfit: v.Bool("stop_at_first_misfit")}
}
