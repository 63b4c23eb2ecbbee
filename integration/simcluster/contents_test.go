package simcluster

import (
	"fmt"
	"strings"
	"syscall"
	"time"
)

// contents is what simulations contained: how much of what may go wrong they tried.
type contents map[string]float64

// contentsOrder names what is counted, in the order in which it is printed.
var contentsOrder = []string{"jobs", "tasks", "attempts", "faults", "terms", "crashes and starts again", "fenced attempts", "suspensions", "moves", "restores", "adopted runs", "killed runs", "virtual seconds"}

// contents counts what a simulation contained.
func (c *cluster) contents(p *plan) contents {
	tasks := 0
	for _, j := range p.jobs {
		tasks += j.tasks()
	}
	logged := func(what string) float64 { return float64(strings.Count(c.trace.String(), what)) }
	return contents{"simulations": 1, "jobs": float64(len(p.jobs)), "tasks": float64(tasks), "attempts": float64(len(c.world.started)), "faults": float64(len(p.faults)), "terms": float64(len(c.world.leaders)),
		"crashes and starts again": logged(" starts\n") - float64(len(c.servers)+len(c.machines)+len(c.world.started)), "fenced attempts": logged("attempt of an older epoch"),
		"suspensions": logged(" was suspended"), "moves": logged(" goes on as "), "restores": logged(" is restored\n"), "adopted runs": logged(" is adopted\n"), "killed runs": logged(" is killed\n"), "virtual seconds": time.Since(c.began).Seconds()}
}

// cpuTime returns the CPU time of this process so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (s contents) add(o contents) {
	for k, v := range o {
		s[k] += v
	}
}

// String implements fmt.Stringer.
func (s contents) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%.0f simulations; each on average:", s["simulations"])
	for _, k := range contentsOrder {
		fmt.Fprintf(&b, " %.1f %s,", s[k]/max(1, s["simulations"]), k)
	}
	return strings.TrimSuffix(b.String(), ",")
}
