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

	"github.com/drover-run/drover/internal/plain"
	"github.com/drover-run/drover/mapreduce"
)

// Limits on what a program may report.
const (
	maxCounters     = mapreduce.MaxCounters
	maxCounterName  = mapreduce.MaxCounterName // bytes of group and name together
	maxCounterGroup = 191                      // bytes of the group
	maxStatus       = 4 << 10
	maxTail         = 2 << 10
	stderrBuffer    = 64 << 10
)

var (
	reporterPrefix = []byte("reporter:")
	counterPrefix  = "reporter:counter:"
	statusPrefix   = "reporter:status:"
)

// reporter reads the stderr of programs, extracts counters and status, and
// forwards the rest to the log.
type reporter struct {
	log io.Writer

	mu           sync.Mutex
	counters     mapreduce.Counters
	counterCount int
	dropped      int64
	firstDropped string
	status       string
	tail         []byte
}

// forward reads r to its end. It returns only read errors: a log that cannot be
// written must not stop the program.
func (p *reporter) forward(r io.Reader) error {
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
		p.handleLine(out, b, start && whole, in.Buffered() == 0)
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

// handleLine processes a line, or a part of a very long one.
func (p *reporter) handleLine(out *bufio.Writer, b []byte, line, flush bool) {
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

// parseLocked consumes a reporter line. It returns false for any other line, and
// for a malformed one, which then goes to the log.
func (p *reporter) parseLocked(line string) bool {
	if s, ok := strings.CutPrefix(line, statusPrefix); ok {
		p.status = plain.Clean(sanitize(s, maxStatus))
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
	if err != nil || plain.HasControl(cols[0]) || plain.HasControl(cols[1]) {
		return "", "", 0, false
	}
	group = sanitize(cols[0], maxCounterGroup)
	return group, sanitize(cols[1], maxCounterName-len(":")-len(group)), n, true
}

// sanitize makes text valid for JSON and limits its length.
func sanitize(s string, maxLen int) string {
	s = strings.TrimSpace(s)
	return strings.ToValidUTF8(s[:min(len(s), maxLen)], "?")
}

func (p *reporter) countLocked(group, name string, n int64) {
	g := p.counters[group]
	if _, ok := g[name]; !ok {
		if p.counterCount == maxCounters {
			if p.dropped++; p.dropped == 1 {
				p.firstDropped = group + "," + name
			}
			return
		}
		p.counterCount++
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

// snapshot returns a copy of what has been reported so far.
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

// checkCounters returns an error if the program reported more counters than a task may have:
// incomplete totals would look right.
func (p *reporter) checkCounters() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dropped == 0 {
		return nil
	}
	return permanentErrorf(mapreduce.ClassUserData, "the program reported more than %d different counters (the first too many: %s): put values that vary into its output", maxCounters, p.firstDropped)
}
