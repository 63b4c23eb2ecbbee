package ui

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// Sizes of tables.
const (
	pageRows    = 100
	troubleRows = 8
	rackRows    = 12
)

// choice is an option of a select.
type choice struct {
	Value, Label string
	On           bool
}

// The choices of pages whose data are chosen alike, as values and labels.
var (
	nodeShows   = []string{"", "all", "trouble", "needing attention", "busy", "with tasks", "idle", "without tasks"}
	taskShows   = []string{"", "all, in order", "slowest", "slowest first", "failed", "with failed attempts", "running", "running", "suspended", "suspended", "waiting", "waiting"}
	scheduleBys = []string{"", "nodes", "racks", "racks", "jobs", "jobs", "tenants", "tenants"}
)

// choose returns a parameter of an address, which must be a value of these values and labels.
func choose(v url.Values, name string, pairs ...string) (string, error) {
	on, values := v.Get(name), []string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i] == on {
			return on, nil
		}
		if pairs[i] != "" {
			values = append(values, pairs[i])
		}
	}
	return "", unknownChoice(name, on, values)
}

// unknownChoice returns the error of a parameter that has none of its values.
func unknownChoice(name, on string, values []string) error {
	return fault.New(fault.Invalid, "%s is %q: want one of %s", name, on, strings.Join(values, ", "))
}

// choices returns options; pairs are values and labels.
func choices(on string, pairs ...string) (out []choice) {
	for i := 0; i+1 < len(pairs); i += 2 {
		out = append(out, choice{pairs[i], pairs[i+1], pairs[i] == on})
	}
	return out
}

// pager links the parts of a long table.
type pager struct {
	Prev, Next  string
	First, Last int
	Total       int64
}

// paginate returns the bounds of the current part of n rows, and its pager.
func (q *query) paginate(n int) (from, to int, p pager) {
	at := q.number("page", 1)
	at = max(1, min(at, (n+pageRows-1)/pageRows))
	from = (at - 1) * pageRows
	to = min(from+pageRows, n)
	p = pager{First: from + 1, Last: to, Total: int64(n)}
	if at > 1 {
		p.Prev = q.with("page", fmt.Sprint(at-1))
	}
	if to < n {
		p.Next = q.with("page", fmt.Sprint(at+1))
	}
	return from, to, p
}

// with returns the address of this page with another value of a parameter.
func (q *query) with(name, value string) string {
	v := url.Values{}
	for k, list := range q.values {
		v[k] = list
	}
	v.Set(name, value)
	return address(anySlice(q.path)...) + "?" + v.Encode()
}

func anySlice(list []string) (out []any) {
	for _, s := range list {
		out = append(out, s)
	}
	return out
}

// number returns a parameter as a number, otherwise if it is none.
func (q *query) number(name string, otherwise int) int {
	n := 0
	if _, err := fmt.Sscanf(q.values.Get(name), "%d", &n); err != nil {
		return otherwise
	}
	return n
}

// time returns a parameter that is a time in Unix ms, 0 if it is none.
func (q *query) time(name string) int64 {
	ms, err := strconv.ParseInt(q.values.Get(name), 10, 64)
	if err != nil {
		return 0
	}
	return ms
}

// nodeRow is a node with what its row shows.
type nodeRow struct {
	*droverv1.NodeStatus
	Shown                          string // state in one word
	CPUPart                        float64
	MemoryRunning, MemorySuspended float64
}

func newNodeRow(n *droverv1.NodeStatus) nodeRow {
	all, suspended := n.GetInfo().GetAllocatable(), int64(0)
	for _, u := range n.GetSuspended() {
		suspended += u.GetMemory()
	}
	return nodeRow{n, shownState(n), part(n.GetUsed().GetCpu(), all.GetCpu()), part(n.GetUsed().GetMemory()-suspended, all.GetMemory()), part(suspended, all.GetMemory())}
}

// shownState returns a node's state; one that is draining is not just up.
func shownState(n *droverv1.NodeStatus) string {
	if n.GetState() == "up" && n.GetDraining() {
		return "draining"
	}
	return n.GetState()
}

// part returns a/b, 0 if b is 0.
func part(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// resourceUse is a row of a table of resources.
type resourceUse struct {
	Name                           string
	Allocated, Measured, Free, All string
	Running, Suspended, Part       float64
}

// usesOf returns what is allocated of the nodes' resources, and what the machines
// use.
func usesOf(nodes []*droverv1.NodeStatus) []resourceUse {
	var used, all, measured droverv1.Resources
	suspended := int64(0)
	for _, n := range nodes {
		a, u := n.GetInfo().GetAllocatable(), n.GetUsed()
		all.Cpu, all.Memory, all.Io = all.Cpu+a.GetCpu(), all.Memory+a.GetMemory(), all.Io+a.GetIo()
		used.Cpu, used.Memory, used.Io = used.Cpu+u.GetCpu(), used.Memory+u.GetMemory(), used.Io+u.GetIo()
		m := n.GetLoad()
		measured.Cpu, measured.Memory, measured.Io = measured.Cpu+m.GetCpuUsed(), measured.Memory+m.GetMemoryUsed(), measured.Io+m.GetIoUsed()
		for _, l := range n.GetSuspended() {
			suspended += l.GetMemory()
		}
	}
	row := func(name string, used, suspended, measured, all int64, text func(int64) string) resourceUse {
		return resourceUse{name, text(used), text(measured), text(max(all-used, 0)), text(all), part(used-suspended, all), part(suspended, all), part(used, all)}
	}
	return []resourceUse{
		row("CPU", used.Cpu, 0, measured.Cpu, all.Cpu, cpuText),
		row("Memory", used.Memory, suspended, measured.Memory, all.Memory, sizeText),
		row("Disk I/O", used.Io, 0, measured.Io, all.Io, func(v int64) string { return sizeText(v) + "/s" }),
	}
}

// rackRow sums up a rack.
type rackRow struct {
	Name      string
	Nodes, Up int
	cpu, used int64
	Part      float64
}

// health is one sentence about the cluster.
type health struct{ Class, Text string }

type clusterData struct {
	Status                                     *droverv1.StatusResponse
	Health                                     health
	Empty                                      bool
	TasksRunning, TasksPending, TasksSuspended int64
	Uses                                       []resourceUse
	Levels                                     []*droverv1.LevelUse
	Trouble                                    []nodeRow
	MoreTrouble                                int
	Racks                                      []rackRow
	MoreRacks                                  int64
	Search                                     string
	Shows, Bys                                 []choice
	MapAddress                                 string
	Nodes                                      []nodeRow
	Pager                                      pager
	Time                                       string // that the pictures over time cover
	Pasts                                      []choice
	Series                                     []series
	Samples                                    []*droverv1.PastSample
}

// clusterPage shows whether the cluster is well.
func (q *query) clusterPage() (*view, error) {
	status, err := q.status()
	if err != nil {
		return nil, err
	}
	nodes, err := q.nodes()
	if err != nil {
		return nil, err
	}
	tenants, err := q.tenants()
	if err != nil {
		return nil, err
	}
	d := &clusterData{Status: status, Empty: len(nodes) == 0, Search: q.values.Get("q")}
	for _, t := range tenants {
		d.TasksRunning += int64(t.GetTasksRunning())
		d.TasksPending += int64(t.GetTasksPending())
		d.TasksSuspended += int64(t.GetTasksSuspended())
	}
	d.addNodes(nodes)
	d.Health = d.health()
	show, err := choose(q.values, "show", nodeShows...)
	if err != nil {
		return nil, err
	}
	bys := []string{"", "CPU allocated", "memory", "memory allocated", "state", "state"}
	by, err := choose(q.values, "by", bys...)
	if err != nil {
		return nil, err
	}
	d.Shows, d.Bys = choices(show, nodeShows...), choices(by, bys...)
	list := filterNodes(nodes, d.Search, show)
	from, to, p := q.paginate(len(list))
	d.Pager = p
	for _, n := range list[from:to] {
		d.Nodes = append(d.Nodes, newNodeRow(n))
	}
	d.MapAddress = dataAddress("nodes", mapOf(list), "q", d.Search, "show", show, "by", by)
	if err := d.addPast(q); err != nil {
		return nil, err
	}
	return &view{Title: "Cluster", Nav: "Cluster", Template: "cluster", Scripts: []string{"map.js"}, Data: d}, nil
}

// addPast draws what the cluster had and used over time.
func (d *clusterData) addPast(q *query) error {
	since, pasts, name := q.pastTimes()
	list, err := q.samples("", since)
	if err != nil || d.Empty {
		return err
	}
	last, err := newestSample(q, list)
	if err != nil {
		return err
	}
	d.Time, d.Pasts = name, pasts
	d.Samples = newestFirst(list)
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	whole := func(v float64) string { return countText(int64(math.Round(v))) }
	d.Series = newSeries(list, last, []overTime{
		{"Nodes up", (*droverv1.PastSample).GetNodesUp, number},
		{"CPU allocated", func(s *droverv1.PastSample) float64 { return part(s.GetUsed().GetCpu(), s.GetCapacity().GetCpu()) }, percentText},
		{"Memory allocated", func(s *droverv1.PastSample) float64 {
			return part(s.GetUsed().GetMemory(), s.GetCapacity().GetMemory())
		}, percentText},
		{"Tasks running", (*droverv1.PastSample).GetTasksRunning, whole},
		{"Tasks waiting", (*droverv1.PastSample).GetTasksWaiting, whole},
		{"Tasks suspended", (*droverv1.PastSample).GetTasksSuspended, whole},
	})
	return nil
}

func (d *clusterData) addNodes(nodes []*droverv1.NodeStatus) {
	var takes []*droverv1.NodeStatus
	racks := map[string]*rackRow{}
	levels := map[droverv1.Level]*droverv1.LevelUse{}
	for _, n := range nodes {
		r := newNodeRow(n)
		k := racks[n.GetInfo().GetRack()]
		if k == nil {
			k = &rackRow{Name: n.GetInfo().GetRack()}
			racks[k.Name] = k
		}
		k.Nodes++
		if n.GetState() != "down" {
			k.Up++
			k.cpu, k.used = k.cpu+n.GetInfo().GetAllocatable().GetCpu(), k.used+n.GetUsed().GetCpu()
		}
		if r.Shown == "up" || r.Shown == "probation" {
			takes = append(takes, n)
		}
		if needsAttention(n) {
			if len(d.Trouble) < troubleRows {
				d.Trouble = append(d.Trouble, r)
			} else {
				d.MoreTrouble++
			}
		}
		for _, u := range n.GetSuspended() {
			l := levels[u.GetLevel()]
			if l == nil {
				l = &droverv1.LevelUse{Level: u.GetLevel()}
				levels[u.GetLevel()] = l
				d.Levels = append(d.Levels, l)
			}
			l.Attempts, l.Memory, l.Swap, l.Image = l.Attempts+u.GetAttempts(), l.Memory+u.GetMemory(), l.Swap+u.GetSwap(), l.Image+u.GetImage()
		}
	}
	slices.SortFunc(d.Levels, func(a, b *droverv1.LevelUse) int { return cmp.Compare(a.GetLevel(), b.GetLevel()) })
	d.Uses = usesOf(takes)
	d.addRacks(racks)
}

// addRacks lists the racks with lost nodes first, then the fullest.
func (d *clusterData) addRacks(racks map[string]*rackRow) {
	if len(racks) < 2 {
		return
	}
	for _, k := range racks {
		k.Part = part(k.used, k.cpu)
		d.Racks = append(d.Racks, *k)
	}
	slices.SortFunc(d.Racks, func(a, b rackRow) int {
		return cmp.Or(cmp.Compare(b.Nodes-b.Up, a.Nodes-a.Up), cmp.Compare(b.Part, a.Part), cmp.Compare(a.Name, b.Name))
	})
	if n := len(d.Racks); n > rackRows {
		d.Racks, d.MoreRacks = d.Racks[:rackRows], int64(n-rackRows)
	}
}

// health says in one sentence whether the cluster is well.
func (d *clusterData) health() health {
	n := len(d.Trouble) + d.MoreTrouble
	switch {
	case d.Empty:
		return health{"warn", "It has no node yet."}
	case d.Status.GetNodesUp() == 0:
		return health{"bad", "No node is up: nothing can run."}
	case n > 0:
		return health{"warn", plural(int64(n), "node needs", "nodes need") + " attention."}
	case len(d.Status.GetWarnings()) > 0:
		return health{"warn", "The coordinator warns of something."}
	default:
		return health{"good", "All is well."}
	}
}

// needsAttention reports whether a node is anything but healthy.
func needsAttention(n *droverv1.NodeStatus) bool {
	return shownState(n) != "up" || len(n.GetLoad().GetProblems()) > 0
}

func filterNodes(nodes []*droverv1.NodeStatus, search, show string) (out []*droverv1.NodeStatus) {
	search = strings.ToLower(search)
	for _, n := range nodes {
		if !strings.Contains(strings.ToLower(n.GetInfo().GetName()), search) && !strings.Contains(strings.ToLower(n.GetInfo().GetRack()), search) {
			continue
		}
		if show == "trouble" && !needsAttention(n) || show == "busy" && n.GetAttempts() == 0 || show == "idle" && n.GetAttempts() > 0 {
			continue
		}
		out = append(out, n)
	}
	return out
}

// nodeMap is the data of the map of nodes, by rack and name: columns, so that
// 10,000 nodes are small.
type nodeMap struct {
	Racks  []string `json:"racks"`
	Rack   []int    `json:"rack"` // index in Racks
	Name   []string `json:"name"`
	State  []string `json:"state"`
	CPU    []int    `json:"cpu"`    // allocated, in thousandths
	Memory []int    `json:"memory"` // allocated, in thousandths
	Tasks  []int32  `json:"tasks"`
}

func mapOf(nodes []*droverv1.NodeStatus) *nodeMap {
	list := slices.Clone(nodes)
	slices.SortFunc(list, func(a, b *droverv1.NodeStatus) int {
		return cmp.Or(cmp.Compare(a.GetInfo().GetRack(), b.GetInfo().GetRack()), cmp.Compare(a.GetInfo().GetName(), b.GetInfo().GetName()))
	})
	m := &nodeMap{}
	for _, n := range list {
		if k := len(m.Racks); k == 0 || m.Racks[k-1] != n.GetInfo().GetRack() {
			m.Racks = append(m.Racks, n.GetInfo().GetRack())
		}
		m.Rack = append(m.Rack, len(m.Racks)-1)
		m.Name = append(m.Name, n.GetInfo().GetName())
		m.State = append(m.State, shownState(n))
		m.CPU = append(m.CPU, int(1000*part(n.GetUsed().GetCpu(), n.GetInfo().GetAllocatable().GetCpu())))
		m.Memory = append(m.Memory, int(1000*part(n.GetUsed().GetMemory(), n.GetInfo().GetAllocatable().GetMemory())))
		m.Tasks = append(m.Tasks, n.GetAttempts())
	}
	return m
}

type nodeData struct {
	Node     nodeRow
	Operator bool
	Uses     []resourceUse
	Attempts []attemptRow
}

// nodePage shows one node.
func (q *query) nodePage() (*view, error) {
	nodes, err := q.nodes()
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(nodes, func(n *droverv1.NodeStatus) bool { return n.GetInfo().GetName() == q.segment(1) })
	if at < 0 {
		return nil, fault.New(fault.NotFound, "there is no node %q", q.segment(1))
	}
	status, err := q.status()
	if err != nil {
		return nil, err
	}
	plan, err := q.schedule(&droverv1.GetScheduleRequest{Node: q.segment(1), Limit: 500})
	if err != nil {
		return nil, err
	}
	d := &nodeData{Node: newNodeRow(nodes[at]), Operator: status.GetOperator(), Uses: usesOf(nodes[at : at+1])}
	d.Attempts = newScheduleIndex(plan).attempts(plan.GetAttempts(), pageRows)
	return &view{Title: "Node " + q.segment(1), Nav: "Cluster", Template: "node", Data: d}, nil
}
