package replica

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
)

// What raft sends passes the guard unchanged, whatever pieces it arrives in, and one message
// after another on one connection.
func TestGuardPassesWhatRaftSends(t *testing.T) {
	own, l := scriptedTransport(t)
	var all []byte
	for _, call := range peerCalls {
		c := newScriptedConn(nil)
		l.dial <- c
		_ = call(own) // nobody answers
		all = append(all, c.out.Bytes()...)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 20 {
		// The order of the calls and the bytes of the snapshot must not matter: \xc9 begins a large extension.
		in := bytes.ReplaceAll(bytes.Repeat(all, 1+r.IntN(3)), []byte("snapshot"), []byte("\xc9\xff\xff\xff\xff\x01\x00\xc9"))
		c := newScriptedConn(nil)
		c.in = iotest.HalfReader(bytes.NewReader(in))
		if r.IntN(2) == 0 {
			c.in = iotest.OneByteReader(bytes.NewReader(in))
		}
		g := newGuardedConn(c, true)
		var out []byte
		for {
			p := make([]byte, 1+r.IntN(40))
			n, err := g.Read(p)
			out = append(out, p[:n]...)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(in, out) {
			t.Fatalf("%d bytes in, %d out, or others", len(in), len(out))
		}
	}
}

func TestGuardRefuses(t *testing.T) {
	snapshot := "\x02\x81\xa4Size\x02\xc9\xc9" // a request and its two bytes
	const extension = "\xc9\xff\xff\xff\xff\x01"
	for name, c := range map[string]struct {
		in      string
		answer  bool
		refused error
	}{
		"an extension as a field":                      {in: "\x00\x81\xa1x" + extension, refused: errExtension},
		"in an array of a map":                         {in: "\x00\x81\xa1x\x92\x01" + extension, refused: errExtension},
		"as a key":                                     {in: "\x00\x81" + extension, refused: errExtension},
		"after all other forms":                        {in: "\x00\xdc\x00\x13\x05\xff\xc0\xc3\xca0000\xcb00000000\xcc0\xcd00\xce0000\xcf00000000\xd0\xff\xd300000000\xd400\xd8" + strings.Repeat("0", 17) + "\xd9\x010\xc5\x00\x010\xc7\x0100\xdf\x00\x00\x00\x00" + extension, refused: errExtension},
		"as an answer":                                 {in: "\xa0" + extension, answer: true, refused: errExtension},
		"after a snapshot":                             {in: snapshot + "\x00" + extension, refused: errExtension},
		"after a snapshot of a negative size":          {in: "\x02\x81\xa4Size\xff\x00" + extension, refused: errExtension},
		"in a string, where it is none":                {in: "\x00\xa6" + extension, refused: nil},
		"after a name like Size that is not the key's": {in: "\x02\x82\xa1x\xa4Size\xa4Size\x02\xc9\xc9\x00" + extension, refused: errExtension},
		"a snapshot whose size is a text":              {in: "\x02\x81\xa4Size\xa12", refused: errSnapshot},
		"a snapshot as an array":                       {in: "\x02\x91\x02", refused: errSnapshot},
		"a string as long as any":                      {in: "\x00\xc6\x00\x20\x00\x00" + strings.Repeat("0", maxString), refused: nil},
		"a longer one":                                 {in: "\x00\xc6\x00\x20\x00\x01", refused: errString},
		"a time of 4 GiB in a place without a name":    {in: "\x00\x91\xdb\xff\xff\xff\xff", refused: errString},
		"arrays without end":                           {in: "\x00" + strings.Repeat("\x91", 1000), refused: errDepth},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := io.ReadAll(newGuardedConn(newScriptedConn([]byte(c.in)), !c.answer))
			if !errors.Is(err, c.refused) {
				t.Errorf("got %v, want %v", err, c.refused)
			}
		})
	}
}

// The transport does not allocate what a field only announces: go-msgpack alone takes all of it for a time.
func TestTransportAllocatesNoAnnouncedExtension(t *testing.T) {
	_, l := scriptedTransport(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c := newScriptedConn([]byte("\x00\x81\xa1x\xc9\x20\x00\x00\x00\xff")) // 512 MiB, as a time
	l.accept <- c
	<-c.closed
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > 64 {
		t.Errorf("%d MiB were allocated", n)
	}
}
