package helper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/mapreduce"
)

// emptyPartitions is a transport whose nodes answer every request for a partition with an empty one, but those
// named in refused.
type emptyPartitions struct {
	mu      sync.Mutex
	refused map[string]bool
	asked   []string
}

func (e *emptyPartitions) RoundTrip(r *http.Request) (*http.Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = append(e.asked, r.URL.Host)
	if e.refused[r.URL.Host] {
		return &http.Response{StatusCode: http.StatusNotFound, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
	}
	h := http.Header{}
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
