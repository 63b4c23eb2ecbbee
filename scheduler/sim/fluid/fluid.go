package fluid

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Job is one job: arrival in seconds, size in seconds of the whole server.
type Job struct {
	Arrival, Size float64
}

// Discipline decides which jobs are served.
type Discipline uint8

// The disciplines.
const (
	FIFO  Discipline = iota + 1
	PS               // processor sharing: all at the same rate (Fair with equal weights)
	LAS              // least attained service first, sharing among equals
	SRPT             // shortest remaining size first
	LASMQ            // LAS_MQ: queues by attained service, weighted sharing between them
)

// String returns the discipline's name on the command line.
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

// ParseDiscipline parses the output of String.
func ParseDiscipline(s string) (Discipline, error) {
	for d := FIFO; d <= LASMQ; d++ {
		if d.String() == s {
			return d, nil
		}
	}
	return 0, fmt.Errorf("scheduler %q of the fluid model: use fifo, ps, las, srpt or las_mq", s)
}

// Queues are the parameters of LAS_MQ (sections 3.3 to 3.5).
type Queues struct {
	Count          int     // number of queues
	FirstThreshold float64 // alpha_1: a job with more attained service is demoted
	ThresholdRatio float64 // alpha_i+1 = ThresholdRatio x alpha_i
	WeightRatio    float64 // weight of a queue over that of the queue before it
}

// DefaultQueues are the paper's values for its simulation (5.4), with weights that fall by ten per
// queue, which the paper leaves open.
var DefaultQueues = Queues{Count: 10, FirstThreshold: 1, ThresholdRatio: 10, WeightRatio: 0.1}

// CompletionTimes serves the jobs and returns the completion time of each, in the order of jobs,
// which need not be sorted. O(n log n); LASMQ O(n (log n + queues)).
func CompletionTimes(jobs []Job, d Discipline, q Queues) ([]float64, error) {
	order := make([]int32, len(jobs))
	for i := range jobs {
		j := &jobs[i]
		if !(j.Size >= 0) || math.IsInf(j.Size, 0) || math.IsNaN(j.Arrival) || math.IsInf(j.Arrival, 0) {
			return nil, fmt.Errorf("job %d: arrival %v, size %v: arrivals must be finite and sizes at least 0", i+1, j.Arrival, j.Size)
		}
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(jobs[a].Arrival, jobs[b].Arrival) })
	ends := make([]float64, len(jobs))
	var s server
	switch d {
	case FIFO:
		serveFIFO(jobs, order, ends)
		return ends, nil
	case PS:
		s = &ps{jobs: jobs, ends: ends}
	case LAS:
		s = &las{jobs: jobs, ends: ends}
	case SRPT:
		s = &srpt{jobs: jobs, ends: ends}
	case LASMQ:
		if q.Count < 1 || q.Count > 1000 || !(q.FirstThreshold > 0) || !(q.ThresholdRatio >= 1) || !(q.WeightRatio > 0 && q.WeightRatio <= 1) {
			return nil, fmt.Errorf("queues %+v: 1 to 1000 queues, a first threshold above 0, a threshold ratio of at least 1, a weight ratio in (0, 1]", q)
		}
		s = newLASMQ(jobs, ends, q)
	default:
		return nil, fmt.Errorf("unknown discipline %v", d)
	}
	serve(jobs, order, s)
	return ends, nil
}

// serveFIFO serves one job after another.
func serveFIFO(jobs []Job, order []int32, ends []float64) {
	free := math.Inf(-1)
	for _, i := range order {
		free = max(free, jobs[i].Arrival) + jobs[i].Size
		ends[i] = free
	}
}

// server implements a discipline between arrivals.
type server interface {
	// nextEvent returns when the served jobs change by themselves, +Inf for never.
	nextEvent() float64
	// advance serves until t, which is at most nextEvent.
	advance(t float64)
	// arrive adds job i at the current time of the server.
	arrive(i int32)
}

// serve runs a server until all jobs are done.
func serve(jobs []Job, order []int32, s server) {
	for _, i := range order {
		at := jobs[i].Arrival
		for n := s.nextEvent(); n <= at; n = s.nextEvent() {
			s.advance(n)
		}
		s.advance(at)
		s.arrive(i)
	}
	for n := s.nextEvent(); !math.IsInf(n, 1); n = s.nextEvent() {
		s.advance(n)
	}
}

// heap is a binary heap of jobs by key, ties by index.
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
