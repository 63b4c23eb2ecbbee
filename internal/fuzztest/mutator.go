package fuzztest

import (
	"math/rand/v2"
	"reflect"
	"slices"
)

// maxInput bounds the bytes of a mutated argument. A longer argument of the corpus keeps its
// length.
const maxInput = 64 << 10

// mutator draws inputs that resemble those of a corpus.
type mutator struct {
	rand   *rand.Rand
	corpus [][]any
}

func newMutator(seed uint64, corpus [][]any, zero []any) *mutator {
	return &mutator{rand: rand.New(rand.NewPCG(seed, 0)), corpus: append(slices.Clip(corpus), zero)}
}

// next returns an input of the corpus with some of its arguments changed.
func (m *mutator) next() []any {
	in := slices.Clone(m.corpus[m.rand.IntN(len(m.corpus))])
	for i := 0; ; i++ {
		k := m.rand.IntN(len(in))
		in[k] = m.value(in[k], k)
		if m.rand.IntN(2) == 0 {
			return in
		}
	}
}

// value returns a changed argument number k.
func (m *mutator) value(v any, k int) any {
	switch v := v.(type) {
	case []byte:
		return m.bytes(v, m.other(k))
	case string:
		return string(m.bytes([]byte(v), m.other(k)))
	case bool:
		return !v
	}
	x := reflect.New(reflect.TypeOf(v)).Elem()
	x.Set(reflect.ValueOf(v))
	if x.CanInt() {
		x.SetInt(int64(m.number(uint64(x.Int()))))
	} else {
		x.SetUint(m.number(x.Uint()) & (1<<x.Type().Bits() - 1))
	}
	return x.Interface()
}

// other returns argument number k of any input of the corpus, as bytes.
func (m *mutator) other(k int) []byte {
	switch v := m.corpus[m.rand.IntN(len(m.corpus))][k].(type) {
	case []byte:
		return v
	case string:
		return []byte(v)
	}
	return nil
}

// number returns a number near v, near a power of two, or an arbitrary one.
func (m *mutator) number(v uint64) uint64 {
	switch near := uint64(m.rand.IntN(17)) - 8; m.rand.IntN(4) {
	case 0:
		return v + near
	case 1:
		return 1<<m.rand.IntN(64) + near
	case 2:
		return -(1<<m.rand.IntN(64) + near)
	}
	return m.rand.Uint64()
}

// tokens are texts that parsers treat specially.
var tokens = []string{"0", "-1", "-0", "9223372036854775807", "9223372036854775808", "18446744073709551616", "1e999", "1e-999", "0x7f", "NaN", "Infinity",
	"null", "true", "{}", "[]", "[[[[[[[[", "{\"a\":{\"a\":", "\"\"", "\\u0000", "\\ud800", "\x00", "\n", "\r\n", "\t", " ", "\xff\xfe", "\x1b[2J", "\u202e", "../", "/", "%00", "${", "\"", "'", ",", ":",
	"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\xff\xff\xff\x7f", "\x80\x80\x80\x80\x10", "\x1f\x8b"}

// bytes returns b after one to about ten changes.
func (m *mutator) bytes(b, other []byte) []byte {
	limit := max(maxInput, len(b))
	b = slices.Clone(b)
	for {
		b = m.change(b, other)
		b = b[:min(len(b), limit)]
		if m.rand.IntN(3) == 0 {
			return b
		}
	}
}

// change returns b after one change. It may write to b.
func (m *mutator) change(b, other []byte) []byte {
	at := m.rand.IntN(len(b) + 1)
	to := at + m.length(len(b)-at)
	switch m.rand.IntN(10) {
	case 0: // flip a bit
		if at < len(b) {
			b[at] ^= 1 << m.rand.IntN(8)
		}
	case 1: // another byte
		if at < len(b) {
			b[at] = byte(m.rand.Uint32())
		}
	case 2: // near
		if at < len(b) {
			b[at] += byte(m.rand.IntN(33)) - 16
		}
	case 3:
		return slices.Delete(b, at, to)
	case 4: // repeat a part, seldom many times
		n := 1
		if m.rand.IntN(16) == 0 {
			n = 1 + m.rand.IntN(64)
		}
		part := slices.Clone(b[at:to])
		for range n {
			b = slices.Insert(b, at, part...)
		}
	case 5: // insert a part of another input
		from := m.rand.IntN(len(other) + 1)
		return slices.Insert(b, at, other[from:from+m.length(len(other)-from)]...)
	case 6: // overwrite with a part of another input
		from := m.rand.IntN(len(other) + 1)
		return slices.Replace(b, at, to, other[from:from+m.length(len(other)-from)]...)
	case 7:
		return slices.Insert(b, at, m.token()...)
	case 8:
		return slices.Replace(b, at, to, m.token()...)
	case 9: // the same byte many times
		if to > at {
			for i := range b[at:to] {
				b[at+i] = b[at]
			}
		}
	}
	return b
}

func (m *mutator) token() []byte { return []byte(tokens[m.rand.IntN(len(tokens))]) }

// length draws a length up to n, mostly a short one.
func (m *mutator) length(n int) int {
	if n > 16 && m.rand.IntN(4) > 0 {
		n = 16
	}
	return m.rand.IntN(n + 1)
}
