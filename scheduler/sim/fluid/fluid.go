package fluid

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Job is one job: seconds, and seconds of the whole server.
type Job struct {
	Arrival, Size float64
}

// Discipline says who is served.
type Discipline uint8

// The disciplines.
const (
	FIFO  Discipline = iota + 1
	PS               // processor sharing: all at the same rate (Fair with equal weights)
	LAS              // least attained service first, sharing among equals
	SRPT             // shortest remaining size first
	LASMQ            // LAS_MQ: queues by attained service, weighted sharing between them
)

// String gives the discipline's name as the command line has it.
func (d Discipline) String() string {
	switch d {
	case FIFO:
		return "fifo"
	case PS:
		return "ps"
	case LAS:
		return "las"
	case SRPT:
		return "srpt"
	case LASMQ:
		return "las_mq"
	default:
		return fmt.Sprintf("discipline(%d)", uint8(d))
	}
}

// Parse reads what String prints.
func Parse(s string) (Discipline, error) {
	for d := FIFO; d <= LASMQ; d++ {
		if d.String() == s {
			return d, nil
		}
	}
	return 0, fmt.Errorf("scheduler %q of the fluid model: use fifo, ps, las, srpt or las_mq", s)
}

// Queues are the parameters of LAS_MQ (3.3 to 3.5).
type Queues struct {
	K      int     // queues
	First  float64 // threshold of the first, alpha_1: attained service above it demotes
	Step   float64 // alpha_i+1 = Step x alpha_i
	Weight float64 // a queue's weight is Weight times that of the queue before it
}

// DefaultQueues are the paper's values for its simulation (5.4) with weights
// that fall by ten a queue, which the paper leaves open.
var DefaultQueues = Queues{K: 10, First: 1, Step: 10, Weight: 0.1}

// Ends serves jobs and gives each one's completion time, in the order of the
// jobs, which need not be sorted. O(n log n); LASMQ O(n (log n + K)).
func Ends(jobs []Job, d Discipline, q Queues) ([]float64, error) {
	order := make([]int32, len(jobs))
	for i := range jobs {
		j := &jobs[i]
		if !(j.Size >= 0) || math.IsInf(j.Size, 0) || math.IsNaN(j.Arrival) || math.IsInf(j.Arrival, 0) {
			return nil, fmt.Errorf("job %d: arrival %v, size %v: sizes are numbers of at least 0", i+1, j.Arrival, j.Size)
		}
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(jobs[a].Arrival, jobs[b].Arrival) })
	ends := make([]float64, len(jobs))
	var s server
	switch d {
	case FIFO:
		fifo(jobs, order, ends)
		return ends, nil
	case PS:
		s = &ps{jobs: jobs, ends: ends}
	case LAS:
		s = &las{jobs: jobs, ends: ends}
	case SRPT:
		s = &srpt{jobs: jobs, ends: ends, at: make([]float64, len(jobs))}
	case LASMQ:
		if q.K < 1 || q.K > 1000 || !(q.First > 0) || !(q.Step >= 1) || !(q.Weight > 0 && q.Weight <= 1) {
			return nil, fmt.Errorf("queues %+v: 1 to 1000 queues, a first threshold above 0, a step of at least 1, a weight in (0, 1]", q)
		}
		s = newMQ(jobs, ends, q)
	default:
		return nil, fmt.Errorf("%v: no such discipline", d)
	}
	serve(jobs, order, s)
	return ends, nil
}

// fifo serves one job after another.
func fifo(jobs []Job, order []int32, ends []float64) {
	free := math.Inf(-1)
	for _, i := range order {
		free = max(free, jobs[i].Arrival) + jobs[i].Size
		ends[i] = free
	}
}

// server is a discipline between arrivals.
type server interface {
	// next is when something happens by itself, +Inf for never.
	next() float64
	// advance serves until t, which is at most next.
	advance(t float64)
	// arrive takes job i in, at the time last advanced to.
	arrive(i int32)
}

// serve lets jobs arrive and a server work until all are done.
func serve(jobs []Job, order []int32, s server) {
	for _, i := range order {
		at := jobs[i].Arrival
		for n := s.next(); n <= at; n = s.next() {
			s.advance(n)
		}
		s.advance(at)
		s.arrive(i)
	}
	for n := s.next(); !math.IsInf(n, 1); n = s.next() {
		s.advance(n)
	}
}

// heap is a binary heap of jobs by a key, ties by index.
type heap []item

type item struct {
	key float64
	job int32
}

func (a item) before(b item) bool { return a.key < b.key || (a.key == b.key && a.job < b.job) }

func (h *heap) push(x item) {
	*h = append(*h, x)
	s := *h
	i := len(s) - 1
	for i > 0 && x.before(s[(i-1)/2]) {
		s[i] = s[(i-1)/2]
		i = (i - 1) / 2
	}
	s[i] = x
}

func (h *heap) pop() item {
	s := *h
	top, x := s[0], s[len(s)-1]
	s = s[:len(s)-1]
	*h = s
	i := 0
	for 2*i+1 < len(s) {
		c := 2*i + 1
		if c+1 < len(s) && s[c+1].before(s[c]) {
			c++
		}
		if !s[c].before(x) {
			break
		}
		s[i] = s[c]
		i = c
	}
	if len(s) > 0 {
		s[i] = x
	}
	return top
}
