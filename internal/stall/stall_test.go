package stall

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

func server(t *testing.T, limit time.Duration, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(Handler(limit, h))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func dial(t *testing.T, s *httptest.Server, protocol string) net.Conn {
	t.Helper()
	conf := s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	conf.NextProtos, conf.ServerName = []string{protocol}, "example.com"
	raw, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.(*net.TCPConn).SetReadBuffer(4 << 10)
	c := tls.Client(raw, conf)
	t.Cleanup(func() { _ = raw.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return c
}

// frame returns a frame of HTTP/2.
func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	return append(binary.BigEndian.AppendUint32(append(b, flags), stream), payload...)
}

// get2 requests / on an HTTP/2 connection whose streams have no window.
func get2(t *testing.T, c net.Conn) {
	t.Helper()
	var b bytes.Buffer
	b.WriteString("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	b.Write(frame(4, 0, 0, []byte{0, 4, 0, 0, 0, 0}))                  // SETTINGS_INITIAL_WINDOW_SIZE: 0
	b.Write(frame(1, 5, 1, []byte{0x82, 0x84, 0x87, 0x41, 0x01, 'c'})) // HEADERS: GET / https, END_STREAM, END_HEADERS
	if _, err := c.Write(b.Bytes()); err != nil {
		t.Fatal(err)
	}
}

// awaitReset reads frames until the stream is reset.
func awaitReset(t *testing.T, c net.Conn) {
	t.Helper()
	for {
		head := make([]byte, 9)
		if _, err := io.ReadFull(c, head); err != nil {
			t.Fatalf("no reset came: %v", err)
		}
		if head[3] == 3 {
			return
		}
		if _, err := io.CopyN(io.Discard, c, int64(head[0])<<16|int64(head[1])<<8|int64(head[2])); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUnreadResponsesEnd requests responses and does not read them.
func TestUnreadResponsesEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		protocol string
		write    func(http.ResponseWriter) error
	}{
		"a long one by HTTP/1": {"http/1.1", func(w http.ResponseWriter) (err error) {
			for block := make([]byte, 1<<20); err == nil; {
				_, err = w.Write(block)
			}
			return err
		}},
		"a long one by HTTP/2": {"h2", func(w http.ResponseWriter) error {
			_, err := w.Write(make([]byte, 1<<20))
			return err
		}},
		"one in buffers by HTTP/2": {"h2", func(w http.ResponseWriter) error {
			_, _ = w.Write([]byte("short"))
			return nil
		}},
		"a message of a stream by HTTP/2": {"h2", func(w http.ResponseWriter) error {
			w.(http.Flusher).Flush() // the header
			_, _ = w.Write([]byte("short"))
			w.(http.Flusher).Flush()
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended := make(chan struct{})
			s := server(t, 300*time.Millisecond, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				defer close(ended)
				_ = tc.write(w)
			}))
			c := dial(t, s, tc.protocol)
			if tc.protocol == "h2" {
				get2(t, c)
				awaitReset(t, c)
			} else if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: c\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Error("the handler still writes")
			}
		})
	}
}

// TestSilentStreamsGoOn lets a stream be silent for longer than the limit, and reuses a connection
// of HTTP/1 after it.
func TestSilentStreamsGoOn(t *testing.T) {
	const limit = 300 * time.Millisecond
	for name, h2 := range map[string]bool{"HTTP/1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			again := make(chan struct{})
			s := server(t, limit, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "a")
				w.(http.Flusher).Flush()
				<-again
				_, _ = io.WriteString(w, "b")
			}))
			tr := s.Client().Transport.(*http.Transport).Clone()
			tr.MaxConnsPerHost, tr.Protocols, tr.TLSClientConfig.NextProtos = 1, new(http.Protocols), nil
			tr.Protocols.SetHTTP1(!h2)
			tr.Protocols.SetHTTP2(h2)
			t.Cleanup(tr.CloseIdleConnections)
			for range 2 {
				res, err := (&http.Client{Transport: tr, Timeout: time.Minute}).Post(s.URL, "", strings.NewReader("a body"))
				if err != nil {
					t.Fatal(err)
				}
				first := make([]byte, 1)
				if _, err := io.ReadFull(res.Body, first); err != nil {
					t.Fatal(err)
				}
				<-time.After(limit * 3 / 2) // the test proves that time alone ends nothing
				again <- struct{}{}
				if rest, err := io.ReadAll(res.Body); err != nil || string(rest) != "b" {
					t.Errorf("HTTP/%d: %q, %v", res.ProtoMajor, rest, err)
				}
				res.Body.Close()
				<-time.After(limit * 3 / 2)
			}
		})
	}
}

// TestBodiesThatNobodyReadsEnd sends a part of a body to handlers that do not read it.
func TestBodiesThatNobodyReadsEnd(t *testing.T) {
	for name, length := range map[string]int{"a short answer": 10, "an answer that is longer than buffers": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := server(t, 50*time.Millisecond, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write(make([]byte, length)) // fails once the connection is closed
			}))
			c := dial(t, s, "http/1.1")
			if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: c\r\nContent-Length: 1000\r\n\r\nabc"); err != nil {
				t.Fatal(err)
			}
			_, err := io.Copy(io.Discard, c) // a reset ends it too
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is still there")
			}
		})
	}
}
