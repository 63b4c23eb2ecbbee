package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/fuzztest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fastOptions returns options with short pauses.
func fastOptions(addresses ...string) Options {
	return Options{Addresses: addresses, minBackoff: time.Millisecond, maxBackoff: 4 * time.Millisecond, WaitLimit: 30 * time.Second}
}

func TestCallsShareAConnection(t *testing.T) {
	s := newTestServer(t, "127.0.0.1:0", func(k recordedCall) []byte { return successResponse(k, k.method+string(k.request)) })
	c := newTestClient(t, fastOptions(s.Addr().String()))
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			b, err := c.Call(t.Context(), "m", fmt.Append(nil, i))
			if want := fmt.Sprint("m", i); err != nil || string(b) != want {
				t.Errorf("%q %v, want %q", b, err, want)
			}
		})
	}
	wg.Wait()
	if len(s.conns) != 1 {
		t.Errorf("%d connections", len(s.conns))
	}
	for _, k := range s.recordedCalls() {
		if k.user != "alice" || k.clientID != string(c.ID()) || len(k.clientID) != 16 {
			t.Errorf("call as %q by client %x", k.user, k.clientID)
		}
	}
}

func TestExceptionsHaveClasses(t *testing.T) {
	for _, x := range []struct {
		class, message string
		want           error
	}{
		{"java.io.FileNotFoundException", "File does not exist: /x\n\tat org.apache…", hdfs.ErrNotExist},
		{"org.apache.hadoop.security.AccessControlException", "Permission denied: user=bob", hdfs.ErrPermission},
		{"org.apache.hadoop.fs.FileAlreadyExistsException", "rename destination /x already exists", hdfs.ErrExist},
		{"org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "", hdfs.ErrQuota},
		{"java.io.IOException", "File /x could only be written to 0 of the 1 minReplication nodes.", ErrTooFewNodes},
		{"java.io.IOException", "File /x could only be replicated to 0 nodes instead of minReplication (=1).", ErrTooFewNodes}, // Hadoop 2
		{"org.apache.hadoop.ipc.RpcNoSuchMethodException", "Unknown method", hdfs.ErrUnsupported},
		{"org.apache.hadoop.hdfs.UnknownCryptoProtocolVersionException", "No crypto protocol versions provided by the client are supported.", hdfs.ErrUnsupported},
		{"org.apache.hadoop.hdfs.protocol.FSLimitException$MaxDirectoryItemsExceededException", "The directory item limit of /x is exceeded", hdfs.ErrQuota},
		{"org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException", "", hdfs.ErrInvalid},
		{"java.io.IOException", "Requested replication factor of 600 exceeds maximum of 512 for /x", hdfs.ErrRefused},
		{"org.apache.hadoop.fs.SomethingNewException", "no", hdfs.ErrRefused},
	} {
		s := newTestServer(t, "127.0.0.1:0", func(k recordedCall) []byte { return exceptionResponse(k, 1, x.class, x.message) })
		c := newTestClient(t, fastOptions(s.Addr().String()))
		_, err := c.Call(t.Context(), "m", nil)
		var remote *RemoteError
		if !errors.Is(err, x.want) || !errors.As(err, &remote) || remote.Class != x.class || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %v", x.class, err, x.want)
		}
		if n := len(s.recordedCalls()); n != 1 {
			t.Errorf("%s: tried %d times", x.class, n)
		}
	}
}

// An exception about the server's momentary state is no refusal: the request may succeed later.
func TestExceptionsOfTheMomentAreNoRefusals(t *testing.T) {
	for class, message := range map[string]string{
		"java.io.IOException":                                                           "No namenode available to invoke create",
		"java.io.InterruptedIOException":                                                "",
		"java.lang.NullPointerException":                                                "",
		"java.net.SocketTimeoutException":                                               "",
		"org.apache.hadoop.hdfs.protocol.RecoveryInProgressException":                   "",
		"org.apache.hadoop.hdfs.server.federation.router.NoNamenodesAvailableException": "",
		"org.apache.hadoop.hdfs.server.namenode.LeaseExpiredException":                  "",
		"org.apache.hadoop.hdfs.server.namenode.NotReplicatedYetException":              "",
		"org.apache.hadoop.ipc.RetriableException":                                      "",
		"org.apache.hadoop.ipc.StandbyException":                                        "",
		"org.apache.hadoop.security.token.SecretManager$InvalidToken":                   "",
		"": "",
	} {
		if err := error(&RemoteError{Class: class, message: message}); errors.Is(err, hdfs.ErrRefused) {
			t.Errorf("%s: %s is a refusal", class, message)
		}
	}
}

// A call repeated over a new connection must carry the same call id.
func TestRetryReusesCallID(t *testing.T) {
	var calls atomic.Int32
	s := newTestServer(t, "127.0.0.1:0", func(k recordedCall) []byte {
		if calls.Add(1) <= 2 {
			return nil
		}
		return successResponse(k, "done")
	})
	c := newTestClient(t, fastOptions(s.Addr().String()))
	b, err := c.Call(t.Context(), "rename2", []byte("x"))
	if err != nil || string(b) != "done" {
		t.Fatalf("%q %v", b, err)
	}
	seen := s.recordedCalls()
	for i, k := range seen {
		if k.id != seen[0].id || k.retry != int64(i) || k.clientID != seen[0].clientID || string(k.request) != "x" {
			t.Errorf("try %d: %+v", i, k)
		}
	}
}

func TestStandbyFailsOverToNextNameNode(t *testing.T) {
	standby := newTestServer(t, "127.0.0.1:0", func(k recordedCall) []byte {
		return exceptionResponse(k, 1, "org.apache.hadoop.ipc.StandbyException", "Operation category READ is not supported in state standby")
	})
	active := newTestServer(t, "127.0.0.1:0", func(k recordedCall) []byte { return successResponse(k, "active") })
	o := fastOptions("down:1", "standby:1", "active:1")
	down := newTestServer(t, "127.0.0.1:0", nil)
	o.Dial = loopback(map[string]string{"down:1": down.Addr().String(), "standby:1": standby.Addr().String(), "active:1": active.Addr().String()})
	down.stop()
	o.OnWait = func(w hdfs.WaitNotice) { t.Errorf("waited though one is active: %s", w) }
	c := newTestClient(t, o)
	for range 3 {
		if b, err := c.Call(t.Context(), "m", nil); err != nil || string(b) != "active" {
			t.Fatalf("%q %v", b, err)
		}
	}
	if n := len(standby.recordedCalls()); n != 1 {
		t.Errorf("the standby was called %d times", n)
	}
}

func TestCallWaitsForSafeModeToEnd(t *testing.T) {
	var calls atomic.Int32
	s := newTestServer(t, "127.0.0.1:0", func(k recordedCall) []byte {
		if calls.Add(1) <= 3 {
			return exceptionResponse(k, 1, "org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Cannot create /x. Name node is in safe mode.")
		}
		return successResponse(k, "done")
	})
	var notices []hdfs.WaitNotice
	o := fastOptions(s.Addr().String())
	o.OnWait = func(w hdfs.WaitNotice) { notices = append(notices, w) }
	if _, err := newTestClient(t, o).Call(t.Context(), "create", nil); err != nil {
		t.Fatal(err)
	}
	if len(notices) != 3 {
		t.Fatalf("notices %v", notices)
	}
	want := regexp.MustCompile(fmt.Sprintf(`^waiting for the NameNode at %s \(safe mode\), \d+ s left$`, regexp.QuoteMeta(s.Addr().String())))
	if !want.MatchString(notices[0].String()) {
		t.Errorf("%q, want %q", notices[0], want)
	}
}

func TestGivesUpAfterTheLimit(t *testing.T) {
	for _, x := range []struct {
		claim  string
		answer func(recordedCall) []byte
		want   error
		text   string
	}{
		{"hangs up", func(recordedCall) []byte { return nil }, hdfs.ErrUnavailable, "did not answer"},
		{"safe mode", func(k recordedCall) []byte {
			return exceptionResponse(k, 1, "org.apache.hadoop.ipc.RetriableException", "org.apache.hadoop.hdfs.server.namenode.SafeModeException: no")
		}, hdfs.ErrSafeMode, "did not answer"},
		{"standby", func(k recordedCall) []byte {
			return exceptionResponse(k, 1, "org.apache.hadoop.ipc.StandbyException", "no")
		}, hdfs.ErrStandby, "standby"},
	} {
		t.Run(x.claim, func(t *testing.T) {
			s := newTestServer(t, "127.0.0.1:0", x.answer)
			o := fastOptions(s.Addr().String())
			o.WaitLimit = 20 * time.Millisecond
			_, err := newTestClient(t, o).Call(t.Context(), "m", nil)
			if !errors.Is(err, x.want) || !errors.Is(err, hdfs.ErrUnavailable) || !hdfs.Retryable(err) {
				t.Errorf("%v, want %v", err, x.want)
			}
			if x.text != "standby" && !strings.Contains(err.Error(), x.text) {
				t.Errorf("%v does not contain %q", err, x.text)
			}
		})
	}
}

func TestNegativeWaitLimitDisablesRetries(t *testing.T) {
	o := fastOptions("127.0.0.1:1")
	o.WaitLimit = -1
	o.OnWait = func(w hdfs.WaitNotice) { t.Errorf("waited: %s", w) }
	if _, err := newTestClient(t, o).Call(t.Context(), "m", nil); !errors.Is(err, hdfs.ErrUnavailable) {
		t.Errorf("%v", err)
	}
}

func TestSilentServerTimesOut(t *testing.T) {
	release := make(chan struct{})
	var calls atomic.Int32
	s := newTestServer(t, "127.0.0.1:0", func(k recordedCall) []byte {
		if calls.Add(1) == 1 {
			<-release
		}
		return successResponse(k, "done")
	})
	defer close(release)
	o := fastOptions(s.Addr().String())
	o.CallTimeout = 20 * time.Millisecond
	b, err := newTestClient(t, o).Call(t.Context(), "m", nil)
	if err != nil || string(b) != "done" {
		t.Errorf("%q %v", b, err)
	}
}

func TestContextEndsACall(t *testing.T) {
	release := make(chan struct{})
	s := newTestServer(t, "127.0.0.1:0", func(k recordedCall) []byte { <-release; return successResponse(k, "") })
	defer close(release)
	c := newTestClient(t, fastOptions(s.Addr().String()))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Call(ctx, "m", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// A call whose context has ended before it begins is not sent, because it could rename or delete
// something.
func TestACallAfterTheEndIsNotSent(t *testing.T) {
	s := newTestServer(t, "127.0.0.1:0", func(k recordedCall) []byte { return successResponse(k, "") })
	c := newTestClient(t, fastOptions(s.Addr().String()))
	if _, err := c.Call(t.Context(), "before", nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		if _, err := c.Call(ctx, "delete", nil); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}
	if _, err := c.Call(t.Context(), "after", nil); err != nil { // the server has read all earlier requests before this one
		t.Fatal(err)
	}
	for _, k := range s.recordedCalls() {
		if k.method == "delete" {
			t.Fatal("a call after the end of its context was sent")
		}
	}
}

func TestCloseEndsCalls(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	s := newTestServer(t, "127.0.0.1:0", func(k recordedCall) []byte { close(entered); <-release; return successResponse(k, "") })
	defer close(release)
	c := newTestClient(t, fastOptions(s.Addr().String()))
	result := make(chan error)
	go func() {
		_, err := c.Call(t.Context(), "m", nil)
		result <- err
	}()
	<-entered
	c.Close()
	if err := <-result; !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
	if _, err := c.Call(t.Context(), "m", nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}

func TestGarbageFailsAtOnce(t *testing.T) {
	huge := binary.BigEndian.AppendUint32(nil, 1<<31)
	for claim, answer := range map[string][]byte{
		"a frame over the limit": huge,
		"no header":              {0, 0, 0, 1, 0xff},
		"an unknown status":      frame([]byte{8, 1, 16, 7}),
		"no body":                frame([]byte{8, 1, 16, 0}),
		"an HTTP answer":         []byte("HTTP/1.1 400 Bad Request\r\n\r\n"),
	} {
		s := newTestServer(t, "127.0.0.1:0", func(recordedCall) []byte { return answer })
		if _, err := newTestClient(t, fastOptions(s.Addr().String())).Call(t.Context(), "m", nil); !errors.Is(err, hdfs.ErrProtocol) {
			t.Errorf("%s: %v", claim, err)
		}
	}
}

func TestRefusedAuthenticationIsErrPermission(t *testing.T) {
	s := newTestServer(t, "127.0.0.1:0", func(k recordedCall) []byte {
		k.id = -1
		return exceptionResponse(k, 2, "org.apache.hadoop.security.AccessControlException", "SIMPLE authentication is not enabled. Available:[TOKEN, KERBEROS]")
	})
	if _, err := newTestClient(t, fastOptions(s.Addr().String())).Call(t.Context(), "m", nil); !errors.Is(err, hdfs.ErrPermission) {
		t.Errorf("%v", err)
	}
}

// The exception that ends a connection is the error of all calls on it; each error names its own
// method.
func TestCallsThatShareAnExceptionNameTheirOwnMethods(t *testing.T) {
	var calls atomic.Int32
	s := newTestServer(t, "127.0.0.1:0", func(k recordedCall) []byte {
		if calls.Add(1) == 1 {
			return []byte{} // later
		}
		return exceptionResponse(k, 2, "org.apache.hadoop.security.AccessControlException", "no")
	})
	c := newTestClient(t, fastOptions(s.Addr().String()))
	var wg sync.WaitGroup
	for _, method := range []string{"first", "second"} {
		wg.Go(func() {
			if _, err := c.Call(t.Context(), method, nil); !errors.Is(err, hdfs.ErrPermission) || !strings.Contains(err.Error(), method+": ") {
				t.Errorf("%s: %v", method, err)
			}
		})
	}
	wg.Wait()
}

func TestBadOptionsAreRefused(t *testing.T) {
	for _, o := range []Options{
		{}, {Addresses: []string{"host"}, Auth: SimpleAuth("a")}, {Addresses: []string{"host:"}, Auth: SimpleAuth("a")},
		{Addresses: []string{"host:1"}}, {Addresses: []string{"host:1"}, Auth: SimpleAuth("")},
	} {
		if _, err := NewClient(o); !errors.Is(err, hdfs.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// The length of a frame is only a claim: memory grows with the bytes received.
func TestForgedFrameLengthAllocatesLittle(t *testing.T) {
	lie := binary.BigEndian.AppendUint32(nil, 60<<20)
	lie = append(lie, make([]byte, 1000)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := readFrame(bytes.NewReader(lie), 64<<20); err != io.EOF && err != io.ErrUnexpectedEOF {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	allocated := after.TotalAlloc - before.TotalAlloc
	if allocated > 4<<20 {
		t.Errorf("%d bytes for 1,000 that came", allocated)
	}
}

func FuzzDecodeResponse(f *testing.F) {
	f.Add(successResponse(recordedCall{id: 1}, "body")[4:])
	f.Add(exceptionResponse(recordedCall{id: 1}, 1, "java.io.IOException", "message\nstack")[4:])
	f.Add(exceptionResponse(recordedCall{id: -1}, 2, "x", "")[4:])
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		r, err := decodeResponse(b)
		if err != nil && !errors.Is(err, hdfs.ErrProtocol) {
			t.Errorf("error without a class: %v", err)
		}
		if err == nil && (r.err == nil) == (r.body == nil) {
			t.Errorf("neither or both of answer and error: %+v", r)
		}
	})
}
