package predict

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// workload is a synthetic workload: run times from a machine model (start-up, reading
// at the slower of demanded disk rate and network, computing on the demanded cores, a
// cliff where data no longer fits the memory) with log-normal noise. The shapes are
// realistic, not measured; each workload is drawn from its seed.
type workload struct {
	name string
	draw func(r *rand.Rand, i int) (Task, float64)
}

const (
	mib = 1 << 20
	gib = 1 << 30
)

func noise(r *rand.Rand, sigma float64) float64 { return math.Exp(sigma * r.NormFloat64()) }

// place draws the two features of the node.
func place(r *rand.Rand, t *Task) (networkShare, slowdown float64) {
	d := [...]float64{0, 0, 0, 0, 1, 1, 3}[r.IntN(7)]
	slowdown = math.Exp(0.3 * r.NormFloat64())
	t.Features[Distance] = d
	t.Features[Slowdown] = slowdown
	return map[float64]float64{0: 1, 1: 0.6, 3: 0.25}[d], slowdown
}

func demand(t *Task, kind, input, cpu, memory, io float64) {
	t.Features[StageKind] = kind
	t.Features[InputBytes] = input
	t.Features[CPU] = cpu
	t.Features[Memory] = memory
	t.Features[DiskIO] = io
}

var workloads = []workload{
	{"terasort", func(r *rand.Rand, i int) (Task, float64) {
		// Stages of 50 tasks; maps read a block, reduces sort a skewed partition and
		// spill if it is larger than half their memory.
		stage := i / 50
		job := rand.New(rand.NewPCG(uint64(stage), 99))
		t := Task{Stage: fmt.Sprint("s", stage), Tenant: fmt.Sprint("t", stage%7)}
		cpu, io := 1000*float64(1+job.IntN(4)), float64(mib*(20+20*job.IntN(4)))
		kind, input := 0.0, 128.0*mib*(0.2+0.8*r.Float64())
		memory := float64(gib * (1 + job.IntN(3)))
		if stage%3 == 2 {
			kind, input = 1, 400*mib*noise(r, 0.9)
		}
		demand(&t, kind, input, cpu, memory, io)
		network, slow := place(r, &t)
		read := input / (io * network)
		compute := input / mib * 0.08 * 1000 / cpu
		seconds := 1.5 + max(read, compute)
		if kind == 1 {
			seconds += 0.5 * compute * math.Log2(1+input/mib/16)
			if input > memory/4 {
				seconds += 3 * input / io
			}
		}
		return t, seconds * slow * noise(r, 0.08)
	}},
	{"pi, malloc, read and write", func(r *rand.Rand, i int) (Task, float64) {
		// Three kinds of jobs by dominant resource, each with its own law.
		stage := i / 20
		t := Task{Stage: fmt.Sprint("s", stage), Tenant: fmt.Sprint("t", stage%5)}
		job := rand.New(rand.NewPCG(uint64(stage), 98))
		switch kind := stage % 3; kind {
		case 0: // Pi: samples in the input size, cores matter
			demand(&t, 2, float64(1+r.IntN(64))*1000, 1000*float64(1+job.IntN(8)), 512*mib, mib)
		case 1: // Malloc: touches its memory, as much as its input
			demand(&t, 2, gib*(0.25+4*r.Float64()), 1000, float64(gib*(1+job.IntN(4))), mib)
		case 2: // reads and writes
			demand(&t, 0, 64*mib*noise(r, 0.8), 500, gib, float64(mib*(10+job.IntN(100))))
		}
		network, slow := place(r, &t)
		f := &t.Features
		var seconds float64
		switch stage % 3 {
		case 0:
			seconds = 1 + f[InputBytes]/1000*8/(f[CPU]/1000)
		case 1:
			seconds = 1 + 2*f[InputBytes]/gib
			if f[InputBytes] > f[Memory] {
				seconds *= 6 // swapping
			}
		case 2:
			seconds = 1 + max(f[InputBytes]/f[DiskIO], f[InputBytes]/(40*mib*network))
		}
		return t, seconds * slow * noise(r, 0.1)
	}},
	{"straggling log search", func(r *rand.Rand, i int) (Task, float64) {
		// All tasks are alike; size, distance and a busy node interact by a maximum.
		stage := i / 200
		t := Task{Stage: fmt.Sprint("s", stage), Tenant: "logs"}
		demand(&t, 0, 256*mib*noise(r, 0.7), 1000, gib, 80*mib)
		network, slow := place(r, &t)
		input := t.Features[InputBytes]
		return t, 0.8 + max(input/(80*mib)*slow*slow, input/(100*mib*network))*noise(r, 0.1)
	}},
}
