package chaos

import (
	"errors"
	"fmt"

	"github.com/drover-run/drover/integration/cluster"
)

// injection is a fault that begins and ends.
type injection struct {
	what       string
	begin, end func() error
}

// draw draws a fault. One at a time is injected, so a majority of the coordinators is
// always whole.
func (h *chaos) draw() injection {
	v, k := h.server(), 1+h.r.IntN(len(h.bed.Nodes))
	kinds := []func(*cluster.Server, int) injection{h.serverFault, h.daemonFault, h.machineFault, h.hdfsFault}
	weights := []int{0, 0, 0, 0, 1, 1, 2, 2, 2, 3}
	return kinds[weights[h.r.IntN(len(weights))]](v, k)
}

// serverFault is one of a coordinator.
func (h *chaos) serverFault(v *cluster.Server, _ int) injection {
	heal := func() error { return v.Heal(h.ctx) }
	all := []injection{
		{"the coordinator " + v.ID + " is killed", v.Kill, v.Start},
		h.pause(v),
		{"the coordinator " + v.ID + " is heard by nobody", func() error { return v.Mute(h.ctx) }, heal},
		{"the coordinator " + v.ID + " hears nobody", func() error { return v.Deafen(h.ctx) }, heal},
		{"the coordinator " + v.ID + " is cut off", func() error { return errors.Join(v.Mute(h.ctx), v.Deafen(h.ctx)) }, heal},
		{"the coordinator " + v.ID + " loses a tenth of the packets", func() error { return v.Lose(h.ctx, 0.1) }, heal},
	}
	return all[h.r.IntN(len(all))]
}

// daemonFault kills a process of a machine; it is started again at the end.
func (h *chaos) daemonFault(_ *cluster.Server, k int) injection {
	if h.r.IntN(2) == 0 {
		return injection{fmt.Sprintf("the daemon of n%d is killed", k), func() error { return h.cluster.KillNode(h.ctx, k) }, func() error { return h.cluster.StartNode(h.ctx, k) }}
	}
	return h.script(fmt.Sprintf("containerd of n%d is killed", k), k, "pkill -9 -x containerd",
		`(setsid containerd >/run/containerd.log 2>&1 &); for i in $(seq 600); do ctr version >/dev/null 2>&1 && exit 0; sleep 0.1; done; exit 1`)
}

// machineFault is one of a machine: its power of execution, network, clock or disk.
func (h *chaos) machineFault(_ *cluster.Server, k int) injection {
	n := h.bed.Nodes[k-1]
	mute, heal := "", ""
	for _, v := range h.cluster.Servers() {
		mute += "ip route add blackhole " + v.IP + "/32\n"
		heal += "ip route del blackhole " + v.IP + "/32\n"
	}
	step := []string{"+1 hour", "-1 hour", "+3 seconds"}[h.r.IntN(3)]
	all := []injection{
		{fmt.Sprintf("n%d stands still", k), func() error { return n.Pause(h.ctx) }, func() error { return n.Continue(h.ctx) }},
		{fmt.Sprintf("n%d is cut off", k), func() error { return n.Partition(h.ctx) }, func() error { return n.Heal(h.ctx) }},
		h.script(fmt.Sprintf("n%d is heard by no coordinator", k), k, mute, heal),
		h.script(fmt.Sprintf("the clock of n%d steps by %s", k, step), k, "date -s '"+step+"'", "date -s @$(($(cat /run/chaos.time) + $(cut -d. -f1 /proc/uptime)))"),
		h.script(fmt.Sprintf("the disk of n%d is full", k), k, "dd if=/dev/zero of=/data/chaos.full bs=1M 2>/dev/null; test -s /data/chaos.full", "rm /data/chaos.full; sync"),
		h.script(fmt.Sprintf("the disk of n%d is slow", k), k, "(setsid sh -c 'while [ ! -e /run/chaos.end ]; do dd if=/dev/zero of=/data/chaos.slow bs=64k count=200 oflag=dsync 2>/dev/null; done; rm /data/chaos.slow /run/chaos.end' >/dev/null 2>&1 &)", "touch /run/chaos.end; while [ -e /run/chaos.end ]; do sleep 0.1; done"),
	}
	return all[h.r.IntN(len(all))]
}

// script is a fault that a shell on a machine begins and ends.
func (h *chaos) script(what string, k int, begin, end string) injection {
	run := func(script string) func() error {
		return func() error {
			_, err := h.bed.Nodes[k-1].Sh(h.ctx, "set -e\n"+script)
			return err
		}
	}
	return injection{what, run("echo $(($(date +%s) - $(cut -d. -f1 /proc/uptime))) > /run/chaos.time\n" + begin), run(end)}
}

// hdfsFault has HDFS give no answer.
func (h *chaos) hdfsFault(_ *cluster.Server, _ int) injection {
	return injection{"HDFS stands still", func() error { return h.bed.HDFS.Pause(h.ctx) }, func() error { return h.bed.HDFS.Continue(h.ctx) }}
}
