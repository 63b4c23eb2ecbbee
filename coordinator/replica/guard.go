package replica

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/hashicorp/raft"
)

// guardedLayer is raft's network, without messages that announce more than they hold.
//
// Raft reads messages with go-msgpack, which allocates what an extension of type -1, a time,
// announces, up to 4 GiB, before it reads the first byte of it; and so a string where a time belongs,
// whether the field has its name or only its place. Raft sends no extensions, and nothing longer than
// an entry: a connection fails where an extension with a length of 32 bits begins, or a string of more
// than maxString.
type guardedLayer struct {
	raft.StreamLayer
	noteEnd func() // called when a connection from another server ends
}

// Accept implements net.Listener.
func (l guardedLayer) Accept() (net.Conn, error) {
	c, err := l.StreamLayer.Accept()
	if err != nil {
		return nil, err
	}
	return watchedConn{newGuardedConn(c, true), l.noteEnd}, nil
}

// Dial implements raft.StreamLayer.
func (l guardedLayer) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	c, err := l.StreamLayer.Dial(to, timeout)
	if err != nil {
		return nil, err
	}
	return newGuardedConn(c, false), nil
}

// guardedConn is a connection of a guardedLayer. Its Read looks at the beginning of each
// value in MessagePack and passes everything on: O(1) for a value of any size.
type guardedConn struct {
	net.Conn
	r     *bufio.Reader
	calls bool // each message is a byte for the call and a value, else it is a value

	message
	head []byte // the beginning of a value that Read has yet to return, in buf
	buf  [9]byte
	body uint64 // bytes of a string or a snapshot that follow it
	err  error  // Read returns it from now on
}

func newGuardedConn(c net.Conn, calls bool) *guardedConn {
	return &guardedConn{Conn: c, r: bufio.NewReaderSize(c, 16<<10), calls: calls}
}

// Read implements net.Conn. It returns at the end of a message.
func (c *guardedConn) Read(p []byte) (n int, err error) {
	for n < len(p) && (n == 0 || c.r.Buffered() > 0 && len(c.open) > 0) {
		switch {
		case len(c.head) > 0:
			k := copy(p[n:], c.head)
			c.head, n = c.head[k:], n+k
		case c.body > 0:
			k, err := c.r.Read(p[n : n+int(min(c.body, uint64(len(p)-n)))])
			c.body, n = c.body-uint64(k), n+k
			if err != nil {
				return n, err
			}
		case c.err != nil:
			return n, c.err
		default:
			c.readHead()
		}
	}
	return n, nil
}

// readHead reads the byte for a call, or the beginning of a value and how much follows it.
func (c *guardedConn) readHead() {
	first, err := c.r.ReadByte()
	if err != nil {
		c.err = err
		return
	}
	c.head = append(c.buf[:0], first)
	if c.calls && !c.begun {
		c.message = message{begun: true, call: first, open: c.open[:0]}
		return
	}
	f := formOf(first)
	n := f.n
	for range f.digits {
		b, err := c.r.ReadByte()
		if err != nil {
			c.head, c.err = nil, err
			return
		}
		c.head, n = append(c.head, b), n<<8|uint64(b)
	}
	if f.signed { // the sign fills what the digits leave
		n = uint64(int64(n<<(64-8*f.digits)) >> (64 - 8*f.digits))
	}
	isSize := false
	if f.kind == formBytes && n == uint64(len(sizeKey)) {
		b, err := c.r.Peek(len(sizeKey))
		isSize = err == nil && string(b) == sizeKey
	}
	if c.body, err = c.take(f.kind, n, isSize); err != nil {
		c.head, c.err = nil, fmt.Errorf("a message of coordinator %s is refused: %w", c.RemoteAddr(), err)
	}
}

// message is what is known of the message that is read.
type message struct {
	begun  bool
	call   byte
	open   []container // what is being read, outermost first
	atSize bool        // the next value is that of Size
	size   uint64      // of the snapshot that follows
}

// container is an array or a map with values left to read.
type container struct {
	left  uint64 // keys count too
	isMap bool
}

const (
	installSnapshot = 2      // raft's byte for the call after which a snapshot follows,
	sizeKey         = "Size" // and the field that says how many bytes
	maxDepth        = 64     // of containers in each other; raft has three
	// maxString bounds a string of a message, in bytes: twice what an entry may have, since a bound
	// that is too small would stop replication.
	maxString = 2 * MaxEntry
)

var (
	errExtension = errors.New("it has an extension with a length of 32 bits")
	errString    = fmt.Errorf("it has a string of more than %d bytes", maxString)
	errDepth     = errors.New("its values lie too deep in each other")
	errSnapshot  = errors.New("it is to install a snapshot, and does not say of what size as raft does")
)

// take takes the beginning of the next value: n is its number, or how many bytes or values
// it has. It returns how many bytes without values follow, up to those of a snapshot.
func (m *message) take(kind formKind, n uint64, isSize bool) (body uint64, err error) {
	depth := len(m.open)
	switch {
	case kind == formExtension32:
		return 0, errExtension
	case kind == formBytes && n > maxString:
		return 0, errString
	case depth == maxDepth:
		return 0, errDepth
	case m.call == installSnapshot && (depth == 0 && kind != formMap || m.atSize && kind != formNumber):
		return 0, errSnapshot
	}
	if m.atSize {
		m.size = uint64(max(0, int64(n)))
	}
	m.atSize = isSize && depth == 1 && m.open[0].isMap && m.open[0].left%2 == 0
	if depth > 0 {
		m.open[depth-1].left--
	}
	switch {
	case kind == formBytes:
		body = n
	case kind == formExtension:
		body = n + 1 // its type
	case kind == formArray && n > 0:
		m.open = append(m.open, container{left: n})
	case kind == formMap && n > 0:
		m.open = append(m.open, container{left: 2 * n, isMap: true})
	}
	for len(m.open) > 0 && m.open[len(m.open)-1].left == 0 {
		m.open = m.open[:len(m.open)-1]
	}
	if len(m.open) == 0 {
		m.begun = false
		if m.call == installSnapshot {
			body += m.size
		}
	}
	return body, nil
}

// formKind is what follows the marker of a value.
type formKind uint8

const (
	formNumber formKind = iota
	formOther           // nothing that matters
	formBytes
	formArray
	formMap
	formExtension
	formExtension32 // its length has 32 bits
)

// form is how a value in MessagePack begins: a marker, which may hold a number, and the
// digits, in bytes, of a longer one.
type form struct {
	kind   formKind
	n      uint64
	digits int
	signed bool
}

// formOf returns the form of a marker (the specification of MessagePack, "Formats").
func formOf(marker byte) form {
	power := func(first byte) int { return 1 << (marker - first) }
	switch m := uint64(marker); {
	case m < 0x80 || m >= 0xe0:
		return form{kind: formNumber, n: uint64(int64(int8(marker)))}
	case m < 0x90:
		return form{kind: formMap, n: m & 0x0f}
	case m < 0xa0:
		return form{kind: formArray, n: m & 0x0f}
	case m < 0xc0:
		return form{kind: formBytes, n: m & 0x1f}
	case m < 0xc4: // nil, false and true
		return form{kind: formOther}
	case m < 0xc7:
		return form{kind: formBytes, digits: power(0xc4)}
	case m < 0xc9:
		return form{kind: formExtension, digits: power(0xc7)}
	case m == 0xc9:
		return form{kind: formExtension32}
	case m < 0xcc: // floating point
		return form{kind: formOther, digits: 4 * power(0xca)}
	case m < 0xd0:
		return form{kind: formNumber, digits: power(0xcc)}
	case m < 0xd4:
		return form{kind: formNumber, digits: power(0xd0), signed: true}
	case m < 0xd9:
		return form{kind: formExtension, n: uint64(power(0xd4))}
	case m < 0xdc:
		return form{kind: formBytes, digits: power(0xd9)}
	case m < 0xde:
		return form{kind: formArray, digits: 2 * power(0xdc)}
	default:
		return form{kind: formMap, digits: 2 * power(0xde)}
	}
}
