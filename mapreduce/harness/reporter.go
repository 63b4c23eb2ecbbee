package harness

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/drover-run/drover/mapreduce"
)

// Limits of what a program may report; more is counted and dropped.
const (
	maxCounters    = 1000
	maxCounterName = 255
	maxStatus      = 4 << 10
	maxTail        = 2 << 10
	stderrBuffer   = 64 << 10
)

var (
	reporterPrefix = []byte("reporter:")
	counterPrefix  = "reporter:counter:"
	statusPrefix   = "reporter:status:"
)

// reporter reads the stderr of programs, takes out counters and status, and
// passes the rest on.
type reporter struct {
	log io.Writer

	mu       sync.Mutex
	counters mapreduce.Counters
	number   int
	dropped  int64
	status   string
	tail     []byte
}

// copy reads r to its end. It returns only errors of reading: a log that
// cannot be written must not stop the program.
func (p *reporter) copy(r io.Reader) error {
	in := bufio.NewReaderSize(r, stderrBuffer)
	out := bufio.NewWriterSize(p.log, stderrBuffer)
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		out.Flush()
	}()
	start := true
	for {
		b, err := in.ReadSlice('\n')
		whole := err != bufio.ErrBufferFull
		p.take(out, b, start && whole, in.Buffered() == 0)
		start = whole
		switch {
		case err == nil, err == bufio.ErrBufferFull:
		case err == io.EOF, errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed):
			return nil
		default:
			return err
		}
	}
}

// take handles a line, or a part of a very long one.
func (p *reporter) take(out *bufio.Writer, b []byte, line, flush bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !line || !bytes.HasPrefix(b, reporterPrefix) || !p.parseLocked(string(b)) {
		out.Write(b)
		p.tail = append(p.tail, b[max(0, len(b)-maxTail):]...)
		if len(p.tail) > 4*maxTail {
			p.tail = append(p.tail[:0], p.tail[len(p.tail)-maxTail:]...)
		}
	}
	if flush {
		out.Flush()
	}
}

// parseLocked takes a reporter line; false means that it is none and belongs
// to the log, as does one with mistakes.
func (p *reporter) parseLocked(line string) bool {
	if s, ok := strings.CutPrefix(line, statusPrefix); ok {
		p.status = clean(s, maxStatus)
		return true
	}
	s, ok := strings.CutPrefix(line, counterPrefix)
	if !ok {
		return false
	}
	group, name, amount, ok := parseCounter(s)
	if ok {
		p.countLocked(group, name, amount)
	}
	return ok
}

// parseCounter reads "GROUP,NAME,AMOUNT": exactly two commas, as in Hadoop.
func parseCounter(s string) (group, name string, amount int64, ok bool) {
	cols := strings.Split(strings.TrimSpace(s), ",")
	if len(cols) != 3 {
		return "", "", 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(cols[2]), 10, 64)
	if err != nil {
		return "", "", 0, false
	}
	return clean(cols[0], maxCounterName), clean(cols[1], maxCounterName), n, true
}

// clean makes text safe for JSON and bounds it.
func clean(s string, most int) string {
	s = strings.TrimSpace(s)
	return strings.ToValidUTF8(s[:min(len(s), most)], "?")
}

func (p *reporter) countLocked(group, name string, n int64) {
	g := p.counters[group]
	if _, ok := g[name]; !ok {
		if p.number == maxCounters {
			p.dropped++
			return
		}
		p.number++
		if g == nil {
			if p.counters == nil {
				p.counters = mapreduce.Counters{}
			}
			g = map[string]int64{}
			p.counters[group] = g
		}
	}
	g[name] += n
}

// snapshot copies what was reported so far.
func (p *reporter) snapshot() (c mapreduce.Counters, dropped int64, status, tail string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counters != nil {
		c = mapreduce.Counters{}
		for g, names := range p.counters {
			c[g] = maps.Clone(names)
		}
	}
	t := p.tail[max(0, len(p.tail)-maxTail):]
	return c, p.dropped, p.status, strings.ToValidUTF8(string(t), "?")
}
