package keyorder

import (
	"encoding/binary"
	"math"
)

// The encoding of a number is
//
//	sign and exponent   one byte, and eight more for very large and very small numbers
//	digits              two in each byte, from the first to the last that is not zero
//	end                 one byte: plain, or other, which the field as text follows
//
// where the value is 0.DIGITS times 10 to the power of the exponent. Digit bytes are above both end
// bytes, so that 1.5 is above 1. For a negative number everything except the text of the field is
// inverted, and the end bytes are above the digit bytes. The text of a plain number, such as 42, -7
// or 0.25, follows from its value, so it is not stored.
const (
	signZero     = 0x80
	exponentBias = 0xc0 // of the byte of a positive number
	exponentSize = 8    // bytes of an exponent that does not fit into the first byte
	minExponent  = signZero + 2 - exponentBias
	maxExponent  = 0xff - 1 - exponentBias

	endPlain, endOther                 = 0, 1
	negativeEndPlain, negativeEndOther = 0xfe, 0xff
	firstPair                          = 2 // the byte of the digits 00
	lastPair                           = firstPair + 99
)

// number is the value of a field.
type number struct {
	negative bool
	plain    bool   // the field is written as appendPlain writes it
	digits   []byte // from the first to the last non-zero digit, including a point between them; empty: zero
	exponent int
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// digitsEnd returns the end of the digits from i on.
func digitsEnd(b []byte, i int) int {
	for i < len(b) && isDigit(b[i]) {
		i++
	}
	return i
}

// parseNumber parses the number at the beginning of a field.
func parseNumber(b []byte) number {
	var n number
	i := 0
	for i < len(b) && (b[i] == ' ' || b[i] == '\t') {
		i++
	}
	blanks, plus := i > 0, false
	if i < len(b) && (b[i] == '-' || b[i] == '+') {
		n.negative, plus = b[i] == '-', b[i] == '+'
		i++
	}
	start := i
	point := digitsEnd(b, start)
	end := point
	if point < len(b) && b[point] == '.' {
		end = digitsEnd(b, point+1)
	}
	n.plain = end == len(b) && !blanks && !plus && point > start && (b[start] != '0' || point == start+1) && end != point+1
	first := start
	for first < end && (b[first] == '0' || first == point) {
		first++
	}
	if first == end {
		n.plain = n.plain && !n.negative && end == point
		n.negative = false
		return n
	}
	last := end - 1
	for b[last] == '0' || last == point {
		last--
	}
	if end > point && last != end-1 {
		n.plain = false // zeros at the end, after the point
	}
	n.digits = b[first : last+1]
	if n.exponent = point - first; n.exponent < 0 {
		n.exponent++ // the point is no digit
	}
	return n
}

// appendNumber appends the encoding of a field as a number.
func appendNumber(dst, b []byte) []byte {
	n := parseNumber(b)
	from := len(dst)
	dst = n.appendMagnitude(dst)
	if n.negative {
		for i := from; i < len(dst); i++ {
			dst[i] = ^dst[i]
		}
	}
	switch {
	case n.negative && n.plain:
		return append(dst, negativeEndPlain)
	case n.plain:
		return append(dst, endPlain)
	case n.negative:
		dst = append(dst, negativeEndOther)
	default:
		dst = append(dst, endOther)
	}
	return appendText(dst, b)
}

// appendMagnitude appends exponent and digits.
func (n *number) appendMagnitude(dst []byte) []byte {
	switch e := n.exponent; {
	case len(n.digits) == 0:
		return append(dst, signZero)
	case e < minExponent:
		dst = binary.BigEndian.AppendUint64(append(dst, exponentBias+minExponent-1), uint64(e)^1<<63)
	case e > maxExponent:
		dst = binary.BigEndian.AppendUint64(append(dst, exponentBias+maxExponent+1), uint64(e)^1<<63)
	default:
		dst = append(dst, byte(exponentBias+e))
	}
	first, open := byte(0), false
	for _, c := range n.digits {
		switch {
		case c == '.':
		case open:
			dst, open = append(dst, firstPair+first+c-'0'), false
		default:
			first, open = (c-'0')*10, true
		}
	}
	if open {
		dst = append(dst, firstPair+first)
	}
	return dst
}

// number decodes the encoding that appendNumber wrote.
func (r *reader) number(dst []byte) []byte {
	head := r.next()
	negative := head < signZero
	invert := byte(0)
	if negative {
		invert = 0xff
	}
	head ^= invert
	exponent := int(head) - exponentBias
	if head != signZero && (exponent < minExponent || exponent > maxExponent) {
		var e [exponentSize]byte
		for i := range e {
			e[i] = r.next() ^ invert
		}
		exponent = int(binary.BigEndian.Uint64(e[:]) ^ 1<<63)
		if exponent < math.MinInt32 || exponent > math.MaxInt32 {
			r.failed = true // no line is long enough for such an exponent
			return dst
		}
	}
	from := r.at
	c := r.next() ^ invert
	for c >= firstPair && c <= lastPair {
		c = r.next() ^ invert
	}
	other := c == endOther
	if negative {
		other = c == negativeEndOther^0xff
	}
	switch {
	case r.failed || c > endOther:
		r.failed = true
		return dst
	case other:
		return r.text(dst)
	case head == signZero:
		return append(dst, '0')
	}
	if negative {
		dst = append(dst, '-')
	}
	return appendPlain(dst, r.b[from:r.at-1], r.invert^invert, exponent)
}

// appendPlain appends the plain number of pairs of digits.
func appendPlain(dst, pairs []byte, invert byte, exponent int) []byte {
	if exponent <= 0 {
		dst = append(dst, '0', '.')
		for range -exponent {
			dst = append(dst, '0')
		}
	}
	count := 0
	digit := func(d byte) {
		if count == exponent && exponent > 0 {
			dst = append(dst, '.')
		}
		dst = append(dst, '0'+d)
		count++
	}
	for i, c := range pairs {
		pair := c ^ invert - firstPair
		digit(pair / 10)
		if pair%10 > 0 || i < len(pairs)-1 {
			digit(pair % 10)
		}
	}
	for ; count < exponent; count++ {
		dst = append(dst, '0')
	}
	return dst
}
