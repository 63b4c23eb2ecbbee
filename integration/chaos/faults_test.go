package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"syscall"
	"time"

	"github.com/drover-run/drover/integration/cluster"
	"github.com/drover-run/drover/integration/testbed"
)

// injection is a fault that begins and ends.
type injection struct {
	kind       string // without its place: what the runs count
	what       string
	machines   []int  // that it is of, from 1
	places     places // of which no other fault is at the same time
	lossy      bool   // files that a machine had may be lost with it
	begin, end func() error
	plan       plan
}

// places are bits: coordinators, of which one fault at a time leaves a majority whole; HDFS; and each machine.
type places uint

const (
	coordinators places = 1 << iota
	fileSystem
	firstMachine
)

func placeOf(machine int) places { return firstMachine << (machine - 1) }

// plan is what the seed says of a fault.
type plan struct {
	kind, server, machine, choice int
	length                        time.Duration
	when                          string        // what is under way as it begins
	lead                          time.Duration // from the beginning of that
}

// Of the faults most are shorter than a lease of a node, which is 15 s, and some are longer.
const (
	shortestFault = time.Second
	shortFault    = 7 * time.Second
	longFault     = 17 * time.Second
	longestFault  = 24 * time.Second
)

// whens are what can be under way. A submission is the answer to "any time" where no job is missing.
var whens = []string{"", "", "submission", "commit", "suspension"}

// drawPlan draws all that is drawn of a fault, so that faults are the same for a seed whatever happens.
func drawPlan(r *rand.Rand, kinds, servers, machines int) plan {
	p := plan{kind: r.IntN(kinds), server: r.IntN(servers), machine: 1 + r.IntN(machines), choice: r.IntN(1 << 16)}
	least, most := shortestFault, shortFault
	if r.IntN(6) == 0 {
		least, most = longFault, longestFault
	}
	p.length = least + time.Duration(r.Int64N(int64(most-least)))
	p.when, p.lead = whens[r.IntN(len(whens))], time.Duration(r.Int64N(int64(1500*time.Millisecond)))
	return p
}

// mostAtOnce is how many faults meet at most.
const mostAtOnce = 3

// maxDraws is how often a fault is drawn for a place that no other is of. With -only there may be none.
const maxDraws = 100

// drawFaults draws one to three faults that meet, and at most limit. No two are of one place. The lead of each but the
// first is from the beginning of the one before.
func drawFaults(r *rand.Rand, makers []func(plan) injection, servers, machines, limit int) []injection {
	var (
		all   []injection
		taken places
	)
	n := min(1+r.IntN(mostAtOnce), limit)
	for draws := 0; len(all) < n && draws < maxDraws; draws++ {
		p := drawPlan(r, len(makers), servers, machines)
		f := makers[p.kind](p)
		if f.places&taken == 0 {
			f.plan = p
			taken |= f.places
			all = append(all, f)
		}
	}
	return all
}

// kinds are the faults, each with how often it is drawn. A machine may still recover from one as the next begins elsewhere.
var kinds = []struct {
	weight int
	make   func(*chaos, plan) injection
}{
	{3, (*chaos).coordinatorKilled}, {2, (*chaos).coordinatorLosesPower}, {2, (*chaos).coordinatorStill}, {1, (*chaos).coordinatorMute}, {1, (*chaos).coordinatorDeaf},
	{2, (*chaos).coordinatorCut}, {1, (*chaos).coordinatorLoses}, {2, (*chaos).coordinatorDiskFull},
	{2, (*chaos).coordinatorDiskSlow},
	{3, (*chaos).daemonKilled}, {2, (*chaos).engineKilled}, {2, (*chaos).shimKilled}, {2, (*chaos).runcKilled}, {2, (*chaos).helperKilled}, {1, (*chaos).watchdogKilled},
	{2, (*chaos).machineStill}, {2, (*chaos).machineCut}, {1, (*chaos).machineMute}, {1, (*chaos).machineDeaf}, {1, (*chaos).machinePower},
	{1, (*chaos).machineLoses}, {1, (*chaos).machineLinkSlow}, {2, (*chaos).machinesApart},
	{2, (*chaos).machineClock}, {1, (*chaos).machineDiskFull}, {1, (*chaos).machineDiskSlow},
	{1, (*chaos).hdfsStill}, {1, (*chaos).dataNodeDown}, {1, (*chaos).nameNodeDown}, {2, (*chaos).dataNodeKilled}, {2, (*chaos).nameNodeKilled},
}

// makersOf returns what makes the kinds whose names match, each as often as its weight.
func (h *chaos) makersOf(only *regexp.Regexp) (all []func(plan) injection) {
	for _, k := range kinds {
		maker := func(p plan) injection { return k.make(h, p) }
		if !only.MatchString(maker(plan{machine: 1}).kind) {
			continue
		}
		for range k.weight {
			all = append(all, maker)
		}
	}
	return all
}

func (h *chaos) ofServer(p plan, kind string, begin, end func(*cluster.Server) error) injection {
	v := h.cluster.Servers()[p.server]
	return injection{kind: "coordinator: " + kind, what: "coordinator " + v.ID + ": " + kind, places: coordinators,
		begin: func() error { return begin(v) }, end: func() error { return end(v) }}
}

func (h *chaos) heal(v *cluster.Server) error { return v.Heal(h.ctx) }

func (h *chaos) coordinatorKilled(p plan) injection {
	return h.ofServer(p, "killed", (*cluster.Server).Kill, (*cluster.Server).Start)
}

func (h *chaos) coordinatorLosesPower(p plan) injection {
	return h.ofServer(p, "power lost", func(v *cluster.Server) error { return v.LosePower(h.ctx) }, (*cluster.Server).Start)
}

func (h *chaos) coordinatorStill(p plan) injection {
	return h.ofServer(p, "stands still", func(v *cluster.Server) error { return v.Signal(syscall.SIGSTOP) }, func(v *cluster.Server) error { return v.Signal(syscall.SIGCONT) })
}

func (h *chaos) coordinatorMute(p plan) injection {
	return h.ofServer(p, "heard by nobody", func(v *cluster.Server) error { return v.Mute(h.ctx) }, h.heal)
}

func (h *chaos) coordinatorDeaf(p plan) injection {
	return h.ofServer(p, "hears nobody", func(v *cluster.Server) error { return v.Deafen(h.ctx) }, h.heal)
}

func (h *chaos) coordinatorCut(p plan) injection {
	return h.ofServer(p, "cut off", func(v *cluster.Server) error { return errors.Join(v.Mute(h.ctx), v.Deafen(h.ctx)) }, h.heal)
}

func (h *chaos) coordinatorLoses(p plan) injection {
	return h.ofServer(p, "loses a tenth of the packets", func(v *cluster.Server) error { return v.Lose(h.ctx, 0.1) }, h.heal)
}

func (h *chaos) coordinatorDiskFull(p plan) injection {
	return h.ofServer(p, "disk full", (*cluster.Server).FillDisk, (*cluster.Server).EmptyDisk)
}

func (h *chaos) coordinatorDiskSlow(p plan) injection {
	each := []time.Duration{50 * time.Millisecond, 300 * time.Millisecond, 2 * time.Second}[p.choice%3]
	slow := func(each time.Duration) func(*cluster.Server) error {
		return func(v *cluster.Server) error { v.SlowDisk(each); return nil }
	}
	f := h.ofServer(p, "disk slow", slow(each), slow(0))
	f.what += fmt.Sprintf(", %s for a sync", each)
	return f
}

func (h *chaos) ofMachine(p plan, kind string, begin, end func() error) injection {
	return injection{kind: "machine: " + kind, what: fmt.Sprintf("machine n%d: %s", p.machine, kind), machines: []int{p.machine}, places: placeOf(p.machine), begin: begin, end: end}
}

func (h *chaos) daemonKilled(p plan) injection {
	return h.ofMachine(p, "daemon killed", func() error { return h.cluster.KillNode(h.ctx, p.machine) }, func() error { return h.cluster.StartNode(h.ctx, p.machine) })
}

const startEngine = `(setsid containerd >/run/containerd.log 2>&1 &); for i in $(seq 600); do ctr version >/dev/null 2>&1 && exit 0; sleep 0.1; done; exit 1`

func (h *chaos) engineKilled(p plan) injection {
	return h.script(p, "containerd killed", "pkill -9 -x containerd", startEngine)
}

// shimKilled kills a shim, if there is one. What it held is gone: its task is run again.
func (h *chaos) shimKilled(p plan) injection {
	return h.script(p, "shim killed", fmt.Sprintf(`p=($(pgrep -f '^[^ ]*containerd-shim')) || true; [ ${#p[@]} = 0 ] || kill -9 ${p[%d %% ${#p[@]}]} || true`, p.choice), "true")
}

// runcProcesses lists the processes of runc: what containerd runs for a step of a container, and inits that have not yet
// become a task's program. runc names these by their stage, such as runc:[2:INIT].
const runcProcesses = `pgrep -x "runc(:.*)?"`

// runcKilled kills runc and such inits. Between two kills a step gets more or less far.
func (h *chaos) runcKilled(p plan) injection {
	return h.killsAgain(p, "runc and inits killed", runcProcesses, 200*time.Millisecond*time.Duration(1+p.choice%10))
}

// helperKilled kills all helpers of the machine's tasks.
func (h *chaos) helperKilled(p plan) injection {
	return h.killsAgain(p, "helpers killed", "cat /sys/fs/cgroup/drover/tasks/*/helpers/cgroup.procs 2>/dev/null", 500*time.Millisecond)
}

// killsAgain kills the processes that a command lists, several times, since they live for moments. The command has no
// single quotes.
func (h *chaos) killsAgain(p plan, kind, list string, pause time.Duration) injection {
	return h.script(p, kind, fmt.Sprintf(`(setsid sh -c 'while [ ! -e /run/chaos.end ]; do %s | xargs -r kill -9 2>/dev/null; sleep %.1f; done; rm /run/chaos.end' >/dev/null 2>&1 &)`, list, pause.Seconds()),
		"touch /run/chaos.end; while [ -e /run/chaos.end ]; do sleep 0.1; done")
}

// watchdogKilled kills one of the two watchdogs, and the daemon with it.
func (h *chaos) watchdogKilled(p plan) injection {
	f := h.script(p, "daemon and a watchdog killed", fmt.Sprintf("read -r pid < /data/drover/watchdog.%d && kill -9 $pid || true", p.choice%2), "true")
	first := f.begin
	f.begin = func() error { return errors.Join(first(), h.cluster.KillNode(h.ctx, p.machine)) }
	f.end = func() error { return h.cluster.StartNode(h.ctx, p.machine) }
	return f
}

func (h *chaos) machineStill(p plan) injection {
	n := h.bed.Nodes[p.machine-1]
	return h.ofMachine(p, "stands still", func() error {
		h.watch.standsStill(n.Name, time.Since(h.began))
		return n.Pause(h.ctx)
	}, func() error {
		defer func() { h.watch.goesOn(n.Name, time.Since(h.began)) }()
		return n.Continue(h.ctx)
	})
}

func (h *chaos) machineCut(p plan) injection {
	n := h.bed.Nodes[p.machine-1]
	return h.ofMachine(p, "cut off", func() error { return n.Partition(h.ctx) }, func() error { return n.Heal(h.ctx) })
}

func (h *chaos) machineMute(p plan) injection {
	mute, heal := "", ""
	for _, v := range h.cluster.Servers() {
		mute += "ip route add blackhole " + v.IP + "/32\n"
		heal += "ip route del blackhole " + v.IP + "/32\n"
	}
	return h.script(p, "heard by no coordinator", mute, heal)
}

func (h *chaos) machineDeaf(p plan) injection {
	each := func(do func(*cluster.Server) error) func() error {
		return func() error {
			var all []error
			for _, v := range h.cluster.Servers() {
				all = append(all, do(v))
			}
			return errors.Join(all...)
		}
	}
	ip := h.bed.Nodes[p.machine-1].IP
	f := h.ofMachine(p, "hears no coordinator", each(func(v *cluster.Server) error { return v.Shun(h.ctx, ip) }), each(h.heal))
	f.places |= coordinators // whose faults of the network end with it
	return f
}

func (h *chaos) machineLoses(p plan) injection {
	return h.onLink(p, "loses a tenth of the packets", "loss 10%")
}

func (h *chaos) machineLinkSlow(p plan) injection {
	return h.onLink(p, "link slow", "delay 150ms rate 2mbit limit 100")
}

// linkLimit is how long the end of a fault of a link is tried, since requests to the machine may be lost as well.
const linkLimit = time.Minute

// onLink has what a machine sends and what it gets go through the kernel's netem. The latter takes a way through a link of
// its own, since netem is for what is sent. The end may be done twice.
func (h *chaos) onLink(p plan, kind, netem string) injection {
	f := h.script(p, kind, fmt.Sprintf(`modprobe ifb numifbs=0
ip link add chaos type ifb
ip link set chaos up
tc qdisc add dev chaos root netem %[1]s
tc qdisc add dev eth0 root netem %[1]s
tc qdisc add dev eth0 ingress
tc filter add dev eth0 ingress matchall action mirred egress redirect dev chaos`, netem),
		"[ ! -e /sys/class/net/chaos ] || { tc qdisc del dev eth0 root || true; tc qdisc del dev eth0 ingress || true; ip link del chaos; }")
	once := f.end
	f.end = func() error {
		return testbed.WaitFor(h.ctx, linkLimit, "an answer through the link", func(context.Context) error { return once() })
	}
	return f
}

// machinesApart has two machines not hear each other, while both hear the coordinators and HDFS.
func (h *chaos) machinesApart(p plan) injection {
	others := len(h.bed.Nodes) - 1
	other := 1 + (p.machine+p.choice%others)%(1+others)
	change := func(option string) func() error {
		drop := func(on, from int) error {
			_, err := h.bed.Nodes[on-1].Sh(h.ctx, "iptables -w "+option+" INPUT -s "+h.bed.Nodes[from-1].IP+" -j DROP")
			return err
		}
		return func() error { return errors.Join(drop(p.machine, other), drop(other, p.machine)) }
	}
	return injection{kind: "machines: cannot reach each other", what: fmt.Sprintf("machines n%d and n%d: cannot reach each other", p.machine, other),
		machines: []int{p.machine, other}, places: placeOf(p.machine) | placeOf(other), begin: change("-A"), end: change("-D")}
}

// machinePower cuts the power of a machine. It boots during the faults that follow.
func (h *chaos) machinePower(p plan) injection {
	n := h.bed.Nodes[p.machine-1]
	begin := func() error {
		if err := h.readMachine(h.ctx, n); err != nil { // the rest of what its watch saw is lost with its memory
			return err
		}
		h.watch.clocks[n.Name] = nil
		h.booting[p.machine] = h.cluster.ResetNode(h.ctx, p.machine)
		return nil
	}
	f := h.ofMachine(p, "power cut", begin, func() error { return nil })
	f.lossy = true
	return f
}

// startBooted starts watch and daemon of machine k if it boots and has booted, which it waits for if it is to.
func (h *chaos) startBooted(k int, wait bool) error {
	booted := h.booting[k]
	if booted == nil || !wait && len(booted) == 0 {
		return nil
	}
	if err := <-booted; err != nil {
		return err
	}
	delete(h.booting, k)
	return errors.Join(startWatch(h.ctx, h.bed.Nodes[k-1]), h.cluster.StartNode(h.ctx, k))
}

func (h *chaos) machineClock(p plan) injection {
	step := []string{"+1 hour", "-1 hour", "+3 seconds"}[p.choice%3]
	f := h.script(p, "clock steps", "date -s '"+step+"'", "date -s @$(($(cat /run/chaos.time) + $(cut -d. -f1 /proc/uptime)))")
	f.what += " by " + step
	return f
}

func (h *chaos) machineDiskFull(p plan) injection {
	f := h.script(p, "disk full", `fallocate -l $(df --output=avail -B1 /data | tail -1) /data/chaos.full || true; dd if=/dev/zero of=/data/chaos.rest bs=64k 2>/dev/null || true; test -s /data/chaos.full`,
		"rm -f /data/chaos.full /data/chaos.rest")
	f.lossy = true // logs that do not fit are not kept
	return f
}

func (h *chaos) machineDiskSlow(p plan) injection {
	return h.script(p, "disk slow", "(setsid sh -c 'while [ ! -e /run/chaos.end ]; do dd if=/dev/zero of=/data/chaos.slow bs=64k count=200 oflag=dsync 2>/dev/null; done; rm /data/chaos.slow /run/chaos.end' >/dev/null 2>&1 &)",
		"touch /run/chaos.end; while [ -e /run/chaos.end ]; do sleep 0.1; done")
}

// script is a fault that a shell on a machine begins and ends.
func (h *chaos) script(p plan, kind, begin, end string) injection {
	run := func(script string) func() error {
		return func() error {
			_, err := h.bed.Nodes[p.machine-1].Sh(h.ctx, "set -e\n"+script)
			return err
		}
	}
	return h.ofMachine(p, kind, run("echo $(($(date +%s) - $(cut -d. -f1 /proc/uptime))) > /run/chaos.time\n"+begin), run(end))
}

func (h *chaos) ofHDFS(kind string, begin, end func() error) injection {
	return injection{kind: "HDFS: " + kind, what: "HDFS: " + kind, places: fileSystem, begin: begin, end: end}
}

func (h *chaos) hdfsStill(plan) injection {
	return h.ofHDFS("stands still", func() error { return h.bed.HDFS.Pause(h.ctx) }, func() error { return h.bed.HDFS.Continue(h.ctx) })
}

func (h *chaos) ofDataNode(p plan, kind string, begin func(context.Context, int) error) injection {
	f := h.ofHDFS(kind, func() error { return begin(h.ctx, p.machine) }, func() error { return h.bed.HDFS.StartDataNode(h.ctx, p.machine) })
	f.what += fmt.Sprintf(" (of n%d)", p.machine)
	return f
}

func (h *chaos) dataNodeDown(p plan) injection {
	return h.ofDataNode(p, "DataNode down", h.bed.HDFS.StopDataNode)
}

func (h *chaos) dataNodeKilled(p plan) injection {
	return h.ofDataNode(p, "DataNode killed", h.bed.HDFS.KillDataNode)
}

func (h *chaos) ofNameNode(kind string, begin func(context.Context) error) injection {
	return h.ofHDFS(kind, func() error { return begin(h.ctx) }, func() error { return h.bed.HDFS.StartNameNode(h.ctx) })
}

func (h *chaos) nameNodeDown(plan) injection {
	return h.ofNameNode("NameNode down", h.bed.HDFS.StopNameNode)
}

func (h *chaos) nameNodeKilled(plan) injection {
	return h.ofNameNode("NameNode killed", h.bed.HDFS.KillNameNode)
}
