package coordinator

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// Too many requests to nodes, or too many on one node, delay what a job leaves to be done. They fail no job.
func TestIntentsOutlastTooManyRequests(t *testing.T) {
	for what, request := range map[string]func(context.Context, *dispatcher) error{
		"a result": func(ctx context.Context, d *dispatcher) error {
			n := &intents{c: &core{dispatcher: d}}
			return n.requestWithRetry(ctx, "hdfs:///out", &droverv1.NodeRequest{Operation: &droverv1.NodeRequest_CommitOutput{}})
		},
		"the logs of a node": func(ctx context.Context, d *dispatcher) error {
			g := &logGathering{job: 1, folder: "hdfs:///logs/j-1", nodes: map[int32]string{1: "n1"}}
			return g.from(ctx, d, 1)
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDispatcher(newWantedSets(time.Now, 0), func(string) []int32 { return []int32{1} })
				d.reset(1)
				for id := range uint64(maxPendingRequests) {
					d.pending[id] = &pendingRequest{}
				}
				var err error
				ended := false
				go func() {
					err = request(t.Context(), d)
					ended = true
				}()
				time.Sleep(10 * maxIntentTries * maxIntentPause) // of the bubble
				synctest.Wait()
				if ended {
					t.Fatalf("it was given up: %v", err)
				}
				d.mu.Lock()
				clear(d.pending)
				d.mu.Unlock()
				for _, class := range []string{fault.Unavailable.Error(), ""} {
					time.Sleep(maxIntentPause) // of the bubble
					synctest.Wait()
					sent := d.requestsFor(1, true, nil)
					if len(sent) != 1 || ended {
						t.Fatalf("%d requests are sent, want 1; ended %v: %v", len(sent), ended, err)
					}
					a := &droverv1.NodeResponse{Id: sent[0].GetId(), ErrorClass: class}
					if class != "" {
						a.Error = "the node has 1000 requests under way"
					}
					d.handleResponse(1, a)
				}
				synctest.Wait()
				if !ended || err != nil {
					t.Errorf("after a node performed it: ended %v, %v", ended, err)
				}
			})
		})
	}
}

// A leader whose loop ended leads again in the same term: a node may still work on a request of before, and would take a new
// one of that number for it, and its answer for the new one's.
func TestRequestIDsAreOfOneRequest(t *testing.T) {
	d := newDispatcher(newWantedSets(time.Now, 0), func(string) []int32 { return nil })
	last := uint64(0)
	for _, term := range []uint64{1, 1, 2, 2, 2, 7} {
		d.reset(term)
		for range 3 {
			p, err := d.addPending(t.Context(), &droverv1.NodeRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if p.request.Id <= last || p.request.Id>>32 != term {
				t.Errorf("in term %d a request is number %x after %x", term, p.request.Id, last)
			}
			last = p.request.Id
		}
	}
}
