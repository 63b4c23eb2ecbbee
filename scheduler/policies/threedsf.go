package policies

import (
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
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
	{Name: "max_locality_yield", Kind: Duration, Default: "30s", Min: 0, Max: 3600, Help: "for so long such a stage lets others use slots elsewhere when its turn has come"},
	{Name: "small_task", Kind: Int, Default: "1048576", Min: 0, Max: 1e15, Help: "bytes of input below which a task skips matching; the papers' value is one block of the file system"},
}

var deadlineParams = []Param{
	{Name: "order", Kind: Choice, Default: "emwtf", Choices: []string{"emwtf", "edf"}, Help: "order of deadline jobs: earliest maximal waiting time or earliest deadline first"},
	{Name: "preempt", Kind: Choice, Default: "suspend", Choices: []string{"suspend", "cheapest", "kill", "none"},
		Help: "how room is taken back for deadline jobs; cheapest also kills what would lose less work than moving its memory takes; kill is for repeating the papers"},
	{Name: "max_suspended", Kind: Duration, Default: "10m", Min: 1, Max: 1e6, Help: "from half of it room is kept for a suspended task to come back; suspended for so long it is a victim no more"},
	{Name: "migrate", Kind: Bool, Default: "false", Help: "a checkpointed task may go on on another node"},
}

var regularParams = []Param{
	{Name: "regular_order", Kind: Choice, Default: "fcfs", Choices: []string{"fcfs", "las_mq"},
		Help: "order of a tenant's regular jobs of one priority: by submission, or by LAS_MQ queues, which the parameters from queues on describe"},
}

var promiseParams = []Param{
	{Name: "promises", Kind: Bool, Default: "true", Help: "promise projects a departure and jobs their deadline, or refuse them; with false only promises made elsewhere are kept"},
	{Name: "sf", Kind: Float, Default: "0.5", Min: 0, Max: 1e6, Help: "slack factor: how much of its turn-around a promised departure may be put off by later promises"},
	{Name: "pl", Kind: Int, Default: "-1", Min: -1, Max: 1e6, Help: "preemption limit: promises that one job may put off, -1 for no limit"},
	{Name: "max_tries", Kind: Int, Default: "100", Min: 0, Max: 1e9, Help: "instants tried for one task of a new promise, 0 for all"},
	{Name: "spare_nodes", Kind: Int, Default: "0", Min: 0, Max: 1e6, Help: "nodes that are never promised, so that no promise breaks when as many are lost"},
	{Name: "promise_share", Kind: Float, Default: "0", Min: 0, Max: 1, Help: "part of the cluster that promises to one tenant may take at any instant, 0 for its weighted fair share among those with work"},
	{Name: "margin", Kind: Duration, Default: "2s", Min: 0, Max: 3600, Help: "added to each bound of a promise, for starting and stopping"},
	{Name: "give_forward", Kind: Duration, Default: "10s", Min: 1e-3, Max: 3600, Help: "holes that early ends leave are given to promises at most so often"},
}

func promiseConfig(v Values) threedsf.Promises {
	return threedsf.Promises{On: v.Bool("promises"), SF: v.Float("sf"), PL: v.Int("pl"), Tries: v.Int("max_tries"), Spare: v.Int("spare_nodes"),
		Share: v.Float("promise_share"), Margin: v.Duration("margin"), Every: v.Duration("give_forward")}
}

var threeDSFInfo = Info{
	Name:   "3dsf",
	Help:   "fair shares of three resources between tenants, data locality by matching, deadlines by suspending (the default)",
	Params: slices.Concat(shareParams, localityParams, deadlineParams, promiseParams, regularParams, queueParams("queue_order")),
	New: func(v Values) (scheduler.Policy, error) {
		c := shareConfig("3dsf", 3, v)
		c.PriorityOrder, c.Promises = true, promiseConfig(v)
		c.Reserve = v.Bool(reserveParam.Name)
		if v.Text("regular_order") == "las_mq" {
			q, err := queueConfig(v, "queue_order")
			if err != nil {
				return nil, err
			}
			c.LASMQ, c.Prior = &q, v.Text("prior") == "input_bytes"
		}
		withDeadlines(&c, v)
		c.Locality = v.Bool("locality")
		c.Network = locality.Network{Bandwidth: int64(v.Int("bandwidth")), Window: int64(v.Int("tcp_window")), RTT: v.Duration("rtt")}
		c.MaxWait, c.MaxYield, c.SmallTask = v.Duration("max_locality_wait"), v.Duration("max_locality_yield"), int64(v.Int("small_task"))
		return threedsf.New(c), nil
	},
}

var pdsonqueueInfo = Info{
	Name: "pdsonqueue",
	Help: "deadline jobs by earliest maximal waiting time, others in order of submission under fair shares, suspended for deadlines",
	Params: slices.Concat(shareParams, deadlineParams, []Param{
		reserveParam,
		{Name: "accepted_only", Kind: Bool, Default: "false", Help: "only accepted deadlines count; else every job with a deadline is a deadline job"},
	}),
	New: func(v Values) (scheduler.Policy, error) {
		c := shareConfig("pdsonqueue", 3, v)
		c.AllDeadlines = !v.Bool("accepted_only")
		withDeadlines(&c, v)
		c.Reserve = v.Bool(reserveParam.Name)
		return threedsf.New(c), nil
	},
}

func withDeadlines(c *threedsf.Config, v Values) {
	c.Deadlines, c.MaxSuspended, c.Migrate = true, v.Duration("max_suspended"), v.Bool("migrate")
	c.Order = map[string]deadline.Order{"emwtf": deadline.EMWTF, "edf": deadline.EDF}[v.Text("order")]
	c.Preempt = map[string]deadline.Mode{"suspend": deadline.Suspend, "cheapest": deadline.Cheapest, "kill": deadline.Kill, "none": deadline.None}[v.Text("preempt")]
}

var drfInfo = Info{
	Name: "drf",
	Help: "dominant resource fairness between tenants: CPU and memory, or with resources = 3 disk I/O as well",
	Params: append([]Param{
		{Name: "resources", Kind: Int, Default: "2", Min: 2, Max: 3, Help: "2: CPU and memory count in shares, the original; 3: disk I/O too, enhanced DRF"},
		reserveParam,
	}, shareParams...),
	New: func(v Values) (scheduler.Policy, error) {
		c := shareConfig("drf", v.Int("resources"), v)
		c.Reserve = v.Bool(reserveParam.Name)
		return threedsf.New(c), nil
	},
}

func shareConfig(name string, resources int, v Values) threedsf.Config {
	return threedsf.Config{Name: name, Level: drf.Level(v.Int("lev")), Resources: resources, MaxSuspended: 10 * time.Minute, StopAtFirstMisfit: v.Bool("stop_at_first_misfit")}
}
