package helper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/mapreduce"
)

// emptyPartitions is a transport whose nodes answer every request for a partition with an empty one, but those
// named in refused, those in busy, which are first busy that often, and those in down.
type emptyPartitions struct {
	mu      sync.Mutex
	refused map[string]bool
	busy    map[string]int
	down    map[string]time.Time // address -> until when it refuses connections
	asked   []string
}

func (e *emptyPartitions) RoundTrip(r *http.Request) (*http.Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = append(e.asked, r.URL.Host)
	if e.refused[r.URL.Host] {
		return &http.Response{StatusCode: http.StatusNotFound, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
	}
	if time.Now().Before(e.down[r.URL.Host]) {
		return nil, syscall.ECONNREFUSED
	}
	h := http.Header{}
	if e.busy[r.URL.Host] > 0 {
		e.busy[r.URL.Host]--
		h.Set("Retry-After", "1")
		return &http.Response{StatusCode: http.StatusServiceUnavailable, Header: h, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
	}
	h.Set("Drover-Partition", `{}`)
	h.Set("Drover-Codec", mapreduce.CodecNone.String())
	return &http.Response{StatusCode: http.StatusOK, Header: h, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

func shuffleOf(dir string, maps int, first Update) *Request {
	return &Request{Version: Version, Shuffle: &Shuffle{Job: 1, Maps: maps, Dir: dir, Journal: filepath.Join(dir, "journal"), Token: "t", Update: first}}
}

func output(task int32, address string) MapOutput { return MapOutput{Task: task, Address: address} }

// TestOutputsThatAreMadeAgain: one that is lost is asked for again when another has taken its place, also if that became
// known while the first was being fetched; a task of another job's size is none of this one.
func TestOutputsThatAreMadeAgain(t *testing.T) {
	for name, later := range map[string]bool{"after it was lost": true, "before": false} {
		t.Run(name, func(t *testing.T) {
			nodes := &emptyPartitions{refused: map[string]bool{"gone": true}}
			updates := make(chan Update, 1)
			again := Update{Outputs: []MapOutput{output(0, "n0"), output(1, "new"), output(2, "n2"), output(7, "n7")}}
			if !later {
				updates <- again
			}
			told := 0
			emit := func(e Event) {
				if len(e.Lost) > 0 && later && told == 0 {
					told++
					updates <- again
				}
			}
			r := shuffleOf(t.TempDir(), 3, Update{Outputs: []MapOutput{output(2, "n2"), output(1, "gone"), output(0, "n0")}})
			if err := Run(t.Context(), r, Tools{HTTP: &http.Client{Transport: nodes}, Updates: updates, Emit: emit}); err != nil {
				t.Fatal(err)
			}
			j := mapreduce.JournalReader{Path: r.Shuffle.Journal}
			defer j.Close()
			if _, err := j.Poll(); err != nil || len(j.Segments) != 3 || !j.Done {
				t.Errorf("%d segments, done %v, %v", len(j.Segments), j.Done, err)
			}
			if slices.Contains(nodes.asked, "n7") {
				t.Error("a partition of no task was asked for")
			}
		})
	}
}

// TestShuffleEndsWithItsContext has an output stay lost.
func TestShuffleEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	nodes := &emptyPartitions{refused: map[string]bool{"gone": true}}
	r := shuffleOf(t.TempDir(), 2, Update{Outputs: []MapOutput{output(0, "gone")}})
	err := Run(ctx, r, Tools{HTTP: &http.Client{Transport: nodes}, Emit: func(e Event) {
		if len(e.Lost) == 1 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) || errors.Is(err, fault.Unavailable) {
		t.Error(err)
	}
}

// The harness is told that partitions will not come only if no other helper can bring them.
func TestShuffleGivesUp(t *testing.T) {
	for name, c := range map[string]struct {
		address string
		folder  bool
		told    bool
	}{
		"the disk fails":               {"n0", false, false},
		"an address that nobody knows": {"no host", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := shuffleOf(t.TempDir(), 1, Update{Outputs: []MapOutput{output(0, c.address)}})
			r.Shuffle.Dir = filepath.Join(r.Shuffle.Dir, "partitions")
			makeFolder := func() {
				if err := os.Mkdir(r.Shuffle.Dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if c.folder {
				makeFolder()
			}
			tools := Tools{HTTP: &http.Client{Transport: &emptyPartitions{}}, Emit: func(Event) {}}
			if err := Run(t.Context(), r, tools); err == nil {
				t.Fatal("it succeeded")
			}
			j := mapreduce.JournalReader{Path: r.Shuffle.Journal}
			defer j.Close()
			if _, err := j.Poll(); err != nil || (j.FailReason != "") != c.told {
				t.Errorf("what the harness is told: %+v %v", j.Journal, err)
			}
			if c.told {
				return
			}
			makeFolder()
			if err := Run(t.Context(), r, tools); err != nil {
				t.Errorf("the next helper: %v", err)
			}
			if _, err := j.Poll(); err != nil || !j.Done || j.FailReason != "" {
				t.Errorf("after the next helper: %+v %v", j.Journal, err)
			}
		})
	}
}

// A node that is busy has the output: it is asked again until it answers, and the output does not count as lost. One that
// is busy for longer than any node should be counts as gone.
func TestABusyNodeLosesNoOutput(t *testing.T) {
	for name, c := range map[string]struct {
		refusals int
		lost     bool
	}{
		"for ten requests": {10, false},
		"for good":         {1 << 30, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				nodes, lost := &emptyPartitions{busy: map[string]int{"busy": c.refusals}}, false
				r := shuffleOf(t.TempDir(), 2, Update{Outputs: []MapOutput{output(0, "busy"), output(1, "n1")}})
				begin := time.Now()
				err := Run(ctx, r, Tools{HTTP: &http.Client{Transport: nodes}, Emit: func(e Event) {
					if len(e.Lost) > 0 {
						lost = true
						cancel()
					}
				}})
				if lost != c.lost || (err != nil) != c.lost {
					t.Errorf("lost %v, %v", lost, err)
				}
				// Each refusal asks for a pause of a second.
				if took := time.Since(begin); took < min(time.Duration(c.refusals)*time.Second, maxBusyTime) || took > 2*maxBusyTime {
					t.Errorf("it ended after %v", took)
				}
			})
		})
	}
}

// A daemon that comes back within the lease of its node has its outputs. Those of one that does not are lost, all at about
// the same time, unless an update has taken them away before.
func TestANodeThatIsDownForAWhileLosesNoOutput(t *testing.T) {
	const lease = 15 * time.Second // the coordinator's default
	for name, c := range map[string]struct {
		down  time.Duration
		taken bool          // an update without them comes at the end of the lease
		lost  int           // outputs, in the end
		min   time.Duration // that it lasts
		max   time.Duration
	}{
		"for less than a lease":  {lease, false, 0, lease, 2 * lease},
		"for good":               {time.Hour, false, 8, failingLimit, 2 * failingLimit},
		"and is given up for it": {time.Hour, true, 0, lease, lease + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				begin := time.Now()
				nodes := &emptyPartitions{down: map[string]time.Time{"down": begin.Add(c.down)}}
				var u, again Update
				for m := range int32(8) {
					u.Outputs = append(u.Outputs, output(m, "down"))
					again.Outputs = append(again.Outputs, output(m, "up"))
				}
				updates, lost := make(chan Update, 2), 0
				if c.taken {
					time.AfterFunc(lease, func() { updates <- Update{}; updates <- again })
				}
				err := Run(ctx, shuffleOf(t.TempDir(), 8, u), Tools{HTTP: &http.Client{Transport: nodes}, Updates: updates, Emit: func(e Event) {
					lost = max(lost, len(e.Lost))
					if lost == 8 {
						cancel()
					}
				}})
				if lost != c.lost || (err != nil) != (c.lost > 0) {
					t.Errorf("%d lost, %v", lost, err)
				}
				if took := time.Since(begin); took < c.min || took > c.max {
					t.Errorf("it ended after %v", took)
				}
			})
		})
	}
}

// An output that was made again and is on a node that does not answer either: the fault is here, and no more maps are to run
// again for it. A node that answers that it has no such output is at fault itself.
func TestANodeThatReachesNoOther(t *testing.T) {
	for name, c := range map[string]struct {
		outputs []string // addresses of the attempts, each lost but the last
		lost    int      // reports of a lost output
		fails   bool
	}{
		"no answer, twice":            {[]string{"down", "down2"}, 1, true},
		"no answer of one node":       {[]string{"down", "down", "n0"}, 2, false},
		"no answer, once":             {[]string{"down", "n0"}, 1, false},
		"an answer, each time":        {[]string{"gone", "gone", "n0"}, 2, false},
		"no answer and then a denial": {[]string{"down", "gone", "n0"}, 2, false},
		"busy for good, each time":    {[]string{"busy", "busy", "n0"}, 2, false},
		"a denial and then no answer": {[]string{"gone", "down", "n0"}, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := &emptyPartitions{refused: map[string]bool{"gone": true}, down: map[string]time.Time{}, busy: map[string]int{"busy": 1 << 30}}
				for _, n := range []string{"down", "down2"} {
					nodes.down[n] = time.Now().Add(time.Hour)
				}
				made := 0
				attempt := func() Update {
					o := output(0, c.outputs[made])
					made++
					o.Attempt = int32(made)
					return Update{Outputs: []MapOutput{o, output(1, "n1")}}
				}
				updates, lost := make(chan Update, 1), 0
				err := Run(t.Context(), shuffleOf(t.TempDir(), 2, attempt()), Tools{HTTP: &http.Client{Transport: nodes}, Updates: updates, Emit: func(e Event) {
					if len(e.Lost) == 1 && int(e.Lost[0].Attempt) == made {
						lost++
						updates <- attempt()
					}
				}})
				if lost != c.lost || errors.Is(err, fault.Exhausted) != c.fails || (err != nil) != c.fails || IsRetryable(err) && c.fails {
					t.Errorf("%d lost, %v", lost, err)
				}
			})
		})
	}
}

// silentNodes is a transport whose nodes never answer.
type silentNodes struct {
	mu    sync.Mutex
	asked []string
}

func (s *silentNodes) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.asked = append(s.asked, r.URL.Host)
	s.mu.Unlock()
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// The reducers of a job begin with different map outputs: the node of the first one would be busy with all of them.
func TestReducersBeginWithDifferentMaps(t *testing.T) {
	const maps = 2*maxShuffleFetches + 1
	var u Update
	for m := range int32(maps) {
		u.Outputs = append(u.Outputs, output(m, fmt.Sprintf("n%d", m)))
	}
	first := func(partition int) (asked []string) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			nodes, r := &silentNodes{}, shuffleOf(t.TempDir(), maps, u)
			r.Shuffle.Partition = partition
			ended := make(chan error)
			go func() { ended <- Run(ctx, r, Tools{HTTP: &http.Client{Transport: nodes}, Emit: func(Event) {}}) }()
			synctest.Wait()
			nodes.mu.Lock()
			asked = slices.Clone(nodes.asked)
			nodes.mu.Unlock()
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		slices.Sort(asked)
		return asked
	}
	for partition, want := range [][]string{
		{"n0", "n1", "n2", "n3", "n4"},
		{"n5", "n6", "n7", "n8", "n9"},
		{"n0", "n1", "n10", "n2", "n3"}, // the last one, and on from the first
	} {
		if got := first(partition); !slices.Equal(got, want) {
			t.Errorf("partition %d begins with %v, want %v", partition, got, want)
		}
	}
}

// BenchmarkShuffle fetches empty partitions: what the helper does besides moving bytes.
func BenchmarkShuffle(b *testing.B) {
	for _, maps := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(maps), func(b *testing.B) {
			var u Update
			for m := range maps {
				u.Outputs = append(u.Outputs, output(int32(m), "n"))
			}
			for b.Loop() {
				if err := Run(b.Context(), shuffleOf(b.TempDir(), maps, u), Tools{HTTP: &http.Client{Transport: &emptyPartitions{}}, Emit: func(Event) {}}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
