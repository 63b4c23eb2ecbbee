package node

import (
	"context"
	"errors"
	"testing"

	"github.com/drover-run/drover/runtime"
)

// slowList is an engine whose List answers when it is told to.
type slowList struct {
	runtime.Driver
	asked  chan struct{}
	answer chan struct{}
}

func (d slowList) Name() string { return "slow" }

func (d slowList) List(ctx context.Context) ([]runtime.Status, error) {
	d.asked <- struct{}{}
	select {
	case <-d.answer:
		return []runtime.Status{{ID: "a"}}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestAListEndsWithNoCaller has a caller leave while the engine works, as a stranger may
// who asks for the node's health, and another one join what it began.
func TestAListEndsWithNoCaller(t *testing.T) {
	d := slowList{asked: make(chan struct{}, 1), answer: make(chan struct{})}
	l := newContainerLister(d)
	defer l.close()
	ctx, leave := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { first <- l.works(ctx) }()
	<-d.asked
	leave()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("who left got %v", err)
	}
	if p := l.problem(0); p != "" {
		t.Errorf("who left made the engine fail: %s", p)
	}
	second := make(chan error, 1)
	go func() {
		all, err := l.list(t.Context())
		if err == nil && len(all) != 1 {
			err = errors.New("other containers")
		}
		second <- err
	}()
	close(d.answer)
	if err := <-second; err != nil {
		t.Errorf("who stayed got %v", err)
	}
	// Whoever asks again at once is answered without the engine.
	if err := l.works(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestAListIsNotOlderThanItsCaller has a caller come while the engine works: what the engine answers then
// may be of a time before, when the caller's container did not exist or had not ended.
func TestAListIsNotOlderThanItsCaller(t *testing.T) {
	d := slowList{asked: make(chan struct{}), answer: make(chan struct{})}
	l := newContainerLister(d)
	defer l.close()
	answers := make(chan error, 2)
	list := func() { _, err := l.list(t.Context()); answers <- err }
	go list()
	<-d.asked // from here on its answer is old
	go list()
	poll(t, "the other to wait", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.next != nil
	})
	d.answer <- struct{}{}
	if err := <-answers; err != nil {
		t.Fatal(err)
	}
	select {
	case <-answers:
		t.Fatal("a caller was given what the engine had been asked before it came")
	case <-d.asked:
	}
	close(d.answer)
	if err := <-answers; err != nil {
		t.Error(err)
	}
}
