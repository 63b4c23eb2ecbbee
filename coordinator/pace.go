package coordinator

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/drover-run/drover/internal/fault"
)

// bodyPace is how fast a request must arrive, and its response be read (package stall). Zero values
// take the defaults given here.
type bodyPace struct {
	Stall time.Duration // longest pause between two parts; 20 s
	Grace time.Duration // before the rate below counts; 30 s
	Rate  int64         // bytes per second that a request must arrive at on average; 16 KiB
}

func (p *bodyPace) setDefaults() {
	setDefault(&p.Stall, 20*time.Second)
	setDefault(&p.Grace, 30*time.Second)
	setDefault(&p.Rate, 16<<10)
}

const (
	envelopeBytes = 16          // of a message's framing
	deadlineStep  = time.Second // by which a deadline must move to be set again
)

// pacedBody is the body of a request, bounded in time, size and memory. Read
// is called by one goroutine; endPace may be called by another.
type pacedBody struct {
	io.ReadCloser
	ctl      *http.ResponseController
	pace     bodyPace
	start    time.Time
	maxBytes int64 // negative: unbounded
	charge   func(int64) error
	charged  int64 // bytes counted by charge
	received int64

	mu       sync.Mutex
	paced    bool
	deadline time.Time // as last set
}

func newPacedBody(b io.ReadCloser, ctl *http.ResponseController, p bodyPace) *pacedBody {
	return &pacedBody{ReadCloser: b, ctl: ctl, pace: p, start: time.Now(), paced: true}
}

// Read implements io.Reader. Its errors have the class that the caller is to see.
func (b *pacedBody) Read(p []byte) (int, error) {
	b.extendDeadline()
	n, err := b.ReadCloser.Read(p)
	b.received += int64(n)
	if b.maxBytes >= 0 && b.received > b.maxBytes {
		return 0, toWireError(b.tooLarge())
	}
	if charge := b.chargeBytes(int64(n)); charge != nil {
		return 0, toWireError(charge)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, toWireError(fault.New(fault.Unavailable, "the request stalled: %d bytes of its body came within %s, and no more: send it again",
			b.received, time.Since(b.start).Round(time.Millisecond)))
	case err != nil: // the end of the body too: nothing more is read, so there is no limit
		b.endPace()
	}
	return n, err
}

func (b *pacedBody) chargeBytes(n int64) error {
	if b.charge == nil || n == 0 {
		return nil
	}
	if err := b.charge(n); err != nil {
		return err
	}
	b.charged += n
	return nil
}

func (b *pacedBody) tooLarge() error {
	return fault.New(fault.Exhausted, "the request has more than %d KiB, the limit of this call", b.maxBytes>>10)
}

// extendDeadline moves the read deadline: to the longest pause, or to the time
// at which the average rate would fall below the limit.
func (b *pacedBody) extendDeadline() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.paced {
		return
	}
	d := time.Now().Add(b.pace.Stall)
	if byRate := b.start.Add(b.pace.Grace + time.Duration(float64(b.received)/float64(b.pace.Rate)*float64(time.Second))); byRate.Before(d) {
		d = byRate
	}
	if d.Sub(b.deadline).Abs() < min(deadlineStep, b.pace.Stall/4) {
		return
	}
	b.deadline = d
	_ = b.ctl.SetReadDeadline(d) // unsupported only by test doubles of http.ResponseWriter
}

// setDeadline bounds the time to read the rest of a refused request.
func (b *pacedBody) setDeadline(in time.Duration) {
	_ = b.ctl.SetReadDeadline(time.Now().Add(in)) // see extendDeadline
}

func (b *pacedBody) endPace() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.paced {
		b.paced = false
		_ = b.ctl.SetReadDeadline(time.Time{}) // see extendDeadline
	}
}
