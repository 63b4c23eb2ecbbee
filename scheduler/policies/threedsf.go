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
}

var localityParams = []Param{
	{Name: "locality", Kind: Bool, Default: "true", Help: "place map tasks near their input by weighted matching"},
	{Name: "bandwidth", Kind: Int, Default: "50000000", Min: 1, Max: 1e12, Help: "bytes per second of one remote reader"},
	{Name: "max_locality_wait", Kind: Duration, Default: "5s", Min: 0, Max: 3600, Help: "how long a stage waits for the nodes of its input before its tasks go elsewhere"},
	{Name: "max_locality_yield", Kind: Duration, Default: "30s", Min: 0, Max: 3600, Help: "how long a stage that waits for its input lets others use slots elsewhere first"},
	{Name: "small_task", Kind: Int, Default: "1048576", Min: 0, Max: 1e15, Help: "bytes of input below which a task skips matching; the papers' value is one block of the file system"},
}

var deadlineParams = []Param{
	{Name: "order", Kind: Choice, Default: "emwtf", Choices: []string{"emwtf", "edf"}, Help: "order of deadline jobs: EMWTF (least laxity first) or earliest deadline first"},
	{Name: "preempt", Kind: Choice, Default: "suspend", Choices: []string{"suspend", "cheapest", "kill", "none"},
		Help: "how capacity is reclaimed for deadline jobs; cheapest also kills tasks that would lose less work than moving their memory takes; kill is for reproducing the papers"},
	{Name: "max_suspended", Kind: Duration, Default: "10m", Min: 1, Max: 1e6, Help: "after half of it, capacity is reserved for a suspended task; suspended for so long, it is not preempted again"},
	{Name: "migrate", Kind: Bool, Default: "false", Help: "a checkpointed task may resume on another node"},
}

var regularParams = []Param{
	{Name: "regular_order", Kind: Choice, Default: "las_mq", Choices: []string{"las_mq", "fcfs"},
		Help: "order of a tenant's regular jobs of one priority: by LAS_MQ queues, configured by first, step, prior and horizon, or by submission"},
	reservesByDefault,
	{Name: "aging", Kind: Duration, Default: "1m", Min: 0, Max: 1e6,
		Help: "a regular job that had nothing for this time for each stage that is ready is next, so that none waits for ever; 0 for never"},
}

// reservesByDefault is reserveParam for 3dsf. Without it queues gain nothing if tasks differ in
// size: small tasks of new jobs take each place before a large task fits.
var reservesByDefault = func() Param { p := reserveParam; p.Default = "true"; return p }()

var guaranteeParams = []Param{
	{Name: "guarantees", Kind: Bool, Default: "true", Help: "guarantee projects a departure and jobs their deadline, or refuse to; with false only guarantees made elsewhere are honoured"},
	{Name: "sf", Kind: Float, Default: "0.5", Min: 0, Max: 1e6, Help: "slack factor: how far later guarantees may delay a guaranteed departure, as a part of its turn-around"},
	{Name: "spare_nodes", Kind: Int, Default: "0", Min: 0, Max: 1e6, Help: "nodes never used for guarantees, so that none is violated when as many are lost"},
	{Name: "guarantee_share", Kind: Float, Default: "0", Min: 0, Max: 1, Help: "part of the cluster that one tenant's guarantees may reserve at any time, 0 for its weighted fair share among tenants with work"},
	{Name: "margin", Kind: Duration, Default: "2s", Min: 0, Max: 3600, Help: "added to each bound of a guarantee, for starting and stopping"},
}

// guaranteeTries is how many start times are tried for one task of a new guarantee. compressEvery
// is the shortest time between two compressions of the schedule.
const (
	guaranteeTries = 100
	compressEvery  = 10 * time.Second
)

var threeDSFInfo = Info{
	Name:     "3dsf",
	Reserves: true,
	Help:     "fair shares of three resources between tenants, data locality by matching, deadlines by suspending (the default)",
	Params:   slices.Concat(shareParams, localityParams, deadlineParams, guaranteeParams, regularParams, queueParams),
	new: func(v paramValues) scheduler.Policy {
		c := shareConfig("3dsf", 3, v)
		c.PriorityOrder = true
		c.Guarantees = threedsf.Guarantees{Enabled: v.bool("guarantees"), SF: v.float("sf"), MaxTries: guaranteeTries, SpareNodes: v.int("spare_nodes"),
			Share: v.float("guarantee_share"), Margin: v.duration("margin"), CompressEvery: compressEvery}
		c.ReserveNodes, c.Aging = v.bool(reserveParam.Name), v.duration("aging")
		if v.choice("regular_order") == "las_mq" {
			q := queueConfig(v)
			c.LASMQ, c.InitialQueueByInput = &q, v.choice("prior") == "input_bytes"
		}
		withDeadlines(&c, v)
		c.Locality = v.bool("locality")
		c.Network = locality.Network{Bandwidth: int64(v.int("bandwidth"))}
		c.MaxLocalityWait, c.MaxLocalityYield, c.SmallTaskBytes = v.duration("max_locality_wait"), v.duration("max_locality_yield"), int64(v.int("small_task"))
		return threedsf.New(c)
	},
}

var pdsonqueueInfo = Info{
	Name:     "pdsonqueue",
	Reserves: true,
	Help:     "deadline jobs by EMWTF (least laxity first), others in order of submission under fair shares, suspended for deadlines",
	Params: slices.Concat(shareParams, deadlineParams, []Param{
		reserveParam,
		{Name: "accepted_only", Kind: Bool, Default: "false", Help: "only jobs with an accepted deadline are deadline jobs; else all with a deadline"},
	}),
	new: func(v paramValues) scheduler.Policy {
		c := shareConfig("pdsonqueue", 3, v)
		c.AllDeadlines = !v.bool("accepted_only")
		withDeadlines(&c, v)
		c.ReserveNodes = v.bool(reserveParam.Name)
		return threedsf.New(c)
	},
}

func withDeadlines(c *threedsf.Config, v paramValues) {
	c.Deadlines, c.MaxSuspended, c.Migrate = true, v.duration("max_suspended"), v.bool("migrate")
	c.Order = map[string]deadline.Order{"emwtf": deadline.EMWTF, "edf": deadline.EDF}[v.choice("order")]
	c.Preempt = map[string]deadline.Mode{"suspend": deadline.Suspend, "cheapest": deadline.Cheapest, "kill": deadline.Kill, "none": deadline.None}[v.choice("preempt")]
}

var drfInfo = Info{
	Name: "drf",
	Help: "dominant resource fairness between tenants: CPU and memory, or with resources = 3 disk I/O as well",
	Params: append([]Param{
		{Name: "resources", Kind: Int, Default: "2", Min: 2, Max: 3, Help: "2: CPU and memory count in shares, the original; 3: disk I/O too, enhanced DRF"},
		reserveParam,
		{Name: "stop_at_first_misfit", Kind: Bool, Default: "false", Help: "end a cycle at the first task that does not fit, as the papers print it"},
	}, shareParams...),
	new: func(v paramValues) scheduler.Policy {
		c := shareConfig("drf", v.int("resources"), v)
		c.ReserveNodes, c.StopAtFirstMisfit = v.bool(reserveParam.Name), v.bool("stop_at_first_misfit")
		return threedsf.New(c)
	},
}

func shareConfig(name string, resources int, v paramValues) threedsf.Config {
	return threedsf.Config{Name: name, Level: drf.Level(v.int("lev")), Resources: resources, MaxSuspended: 10 * time.Minute}
}
