package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/internal/coordclient"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/jobspec"
)

func TestSlowUploadReportsProgress(t *testing.T) {
	now := time.Unix(1000, 0)
	var said []string
	m := &uploadMeter{name: "big.tar", size: 100 << 20, start: now, lastReport: now, now: func() time.Time { return now },
		printf: func(f string, args ...any) { said = append(said, fmt.Sprintf(f, args...)) }}
	for range 10 { // 10 MiB a second
		now = now.Add(time.Second)
		m.add(10 << 20)
	}
	want := []string{
		"uploading big.tar: 30MiB of 100MiB, 10MiB/s, 7s left",
		"uploading big.tar: 60MiB of 100MiB, 10MiB/s, 4s left",
		"uploading big.tar: 90MiB of 100MiB, 10MiB/s, 1s left",
	}
	if d := cmp.Diff(want, said); d != "" {
		t.Error(d)
	}
}

// TestUploadsBeginAgainAtTheNextLeader: the coordinator that takes a file dies, the next one in the list
// is gone, and the one after it gets all of the file.
func TestUploadsBeginAgainAtTheNextLeader(t *testing.T) {
	const size = 3 * uploadChunkBytes
	file := filepath.Join(t.TempDir(), "big.bin")
	if err := os.WriteFile(file, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	serve := func(b *blobReceiver) *httptest.Server {
		mux := http.NewServeMux()
		mux.Handle(droverv1connect.NewClientServiceHandler(b))
		b.server = httptest.NewUnstartedServer(mux)
		b.server.EnableHTTP2 = true
		b.server.StartTLS()
		t.Cleanup(b.server.Close)
		return b.server
	}
	dies, leads := &blobReceiver{dies: true}, &blobReceiver{}
	first, second := serve(dies), serve(leads)
	gone := httptest.NewServer(nil)
	gone.Close()
	tr, err := coordclient.NewTransport([]string{first.URL, gone.URL, second.URL}, func(address string) (*http.Transport, string, error) {
		return first.Client().Transport.(*http.Transport).Clone(), address, nil // both have the certificate of httptest
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.CloseIdleConnections)
	cl := &client{transport: tr, ctx: t.Context(),
		ClientServiceClient: droverv1connect.NewClientServiceClient(&http.Client{Transport: tr}, coordclient.Base, connect.WithInterceptors(coordclient.NewRetrier(tr)))}
	var digest string
	var length int64
	err = uploadFiles(t.Context(), cl, []localFile{{path: file, label: "a file", size: size, digest: &digest, specSize: &length}}, t.Logf)
	if err != nil || leads.got.Load() != size || dies.got.Load() == 0 {
		t.Errorf("%v; the first got %d bytes, the second %d of %d", err, dies.got.Load(), leads.got.Load(), size)
	}
}

// TestAnUploadGoesOnAtTheNextLeader: while a leader of three real coordinators takes a file, the leadership is transferred,
// or the leader is killed. The client goes on, and a majority has the file when it is told so.
func TestAnUploadGoesOnAtTheNextLeader(t *testing.T) {
	c := newProcessCluster(t)
	c.start("c1")
	c.start("c2", "-join", c.peers["c1"])
	c.start("c3", "-join", c.peers["c1"])
	c.shows("c1", func(list string) bool { return strings.Count(list, "follower") == 2 })
	ids := []string{"c1", "c2", "c3"}
	var urls []string
	for _, id := range ids {
		urls = append(urls, c.url(id))
	}
	files := pki.Files{CA: c.at("ca/ca.pem"), Cert: c.at("ca/root.pem"), Key: c.at("ca/root.key")}
	tr, err := openCoordinators("-address", strings.Join(urls, ","), func() (*tls.Config, error) { return files.ClientConfig(pki.KindCoordinator) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.CloseIdleConnections)
	const chunks = 16
	for _, event := range []struct {
		name string
		do   func()
	}{
		{"the leadership is transferred", func() {
			waitFor(t, "another one leads", func() bool {
				_, err := droverOutput(t, c.remote(ids, "operator", "server", "transfer")...)
				return err == nil
			}, c.allLogs)
		}},
		{"the leader is killed", func() {
			taker := ids[slices.Index(urls, tr.Current())]
			c.stop(taker, os.Kill)
			ids = slices.DeleteFunc(ids, func(id string) bool { return id == taker })
		}},
	} {
		file := filepath.Join(t.TempDir(), "big.bin")
		content := bytes.Repeat([]byte(event.name), chunks*uploadChunkBytes/len(event.name))
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		in := &interruption{at: chunks / 2, do: event.do}
		cl := &client{transport: tr, ctx: t.Context(),
			ClientServiceClient: droverv1connect.NewClientServiceClient(&http.Client{Transport: tr}, coordclient.Base, connect.WithInterceptors(coordclient.NewRetrier(tr), in))}
		var digest string
		var length int64
		if err := uploadFiles(t.Context(), cl, []localFile{{path: file, label: "a file", digest: &digest, specSize: &length, size: int64(len(content))}}, t.Logf); err != nil {
			t.Fatalf("%s: %v\n%s", event.name, err, c.allLogs())
		}
		have := 0
		for _, id := range ids {
			h := strings.TrimPrefix(digest, "sha256:")
			if _, err := os.Stat(filepath.Join(c.at("data-"+id), "blobs/sha256", h[:2], h)); err == nil {
				have++
			}
		}
		if have < 2 || in.streams < 2 {
			t.Errorf("%s: %d running coordinators have the file, of which the client was told after %d attempts", event.name, have, in.streams)
		}
	}
}

// interruption does something in the middle of the first upload.
type interruption struct {
	connect.Interceptor     // nil: a client calls the two methods below
	at                  int // before which message
	do                  func()
	sent                int
	streams             int
}

// WrapUnary implements connect.Interceptor.
func (*interruption) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc { return next }

// WrapStreamingClient implements connect.Interceptor.
func (i *interruption) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		i.streams++
		return interruptedStream{next(ctx, spec), i}
	}
}

// interruptedStream is a stream of an interruption.
type interruptedStream struct {
	connect.StreamingClientConn
	i *interruption
}

// Send implements connect.StreamingClientConn.
func (s interruptedStream) Send(m any) error {
	if s.i.sent++; s.i.sent == s.i.at {
		s.i.do()
	}
	return s.StreamingClientConn.Send(m)
}

// blobReceiver is a coordinator that lacks every file, and may die with the first message of one.
type blobReceiver struct {
	droverv1connect.UnimplementedClientServiceHandler
	server *httptest.Server
	dies   bool
	got    atomic.Int64
}

func (*blobReceiver) HasBlobs(_ context.Context, req *connect.Request[droverv1.HasBlobsRequest]) (*connect.Response[droverv1.HasBlobsResponse], error) {
	return connect.NewResponse(&droverv1.HasBlobsResponse{Missing: req.Msg.Digests}), nil
}

func (b *blobReceiver) PutBlob(_ context.Context, st *connect.ClientStream[droverv1.PutBlobRequest]) (*connect.Response[droverv1.PutBlobResponse], error) {
	for st.Receive() {
		b.got.Add(int64(len(st.Msg().Data)))
		if b.dies && b.got.Load() > 0 {
			b.server.CloseClientConnections()
		}
	}
	if err := st.Err(); err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.PutBlobResponse{}), nil
}

// TestFollowersLookAgainSoonAfterAnElection: a list of tasks that waited twenty seconds for a new leader
// says nothing about what the next one costs.
func TestFollowersLookAgainSoonAfterAnElection(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{0: followPoll, 100 * time.Millisecond: 2 * time.Second, 20 * time.Second: maxPoll} {
		if got := pollPause(took); got != want {
			t.Errorf("after a list that took %s: a pause of %s, want %s", took, got, want)
		}
	}
}

// A file without a mode has that of its source, and one that was uploaded before, in canonical JSON, its own.
func TestModesOfFiles(t *testing.T) {
	folder := t.TempDir()
	for name, mode := range map[string]os.FileMode{"run.sh": 0o777, "data": 0o600} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(folder, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	j := &jobspec.Job{Stages: []jobspec.Stage{{Name: "a", Files: []jobspec.File{
		{Name: "run.sh", Source: "run.sh"}, {Name: "uploaded", Source: "gone", Digest: "sha256:00"}, {Name: "data", Source: "data"}, {Name: "given", Source: "data", Mode: 0o640},
	}}}}
	if _, err := collectLocalFiles(j, filepath.Join(folder, "job.hcl")); err != nil {
		t.Fatal(err)
	}
	var got []uint32
	for _, f := range j.Stages[0].Files {
		got = append(got, f.Mode)
	}
	if d := cmp.Diff([]uint32{0o755, 0, 0o600, 0o640}, got); d != "" {
		t.Error(d)
	}
}

// All files that a job names and that cannot be uploaded are told at once, each by its place in the job file.
func TestAllMissingFilesAreTold(t *testing.T) {
	folder := t.TempDir()
	writeFile(t, filepath.Join(folder, "there"), "x")
	for text, want := range map[string][]string{
		`job "j" {
  image = "oci-archive:i.tar"
  stage "a" {
    command = ["true"]
    file "one" { source = "1" }
    file "two" { source = "there" }
  }
  stage "b" {
    command = ["true"]
    file "three" { source = "." }
    file "four" { source = "1" }
  }
}`: {`file "one" of stage "a": stat ` + folder + "/1: no such file", `file "three" of stage "b": ` + folder + " is not a regular file",
			`file "four" of stage "b": stat `, "image: stat " + folder + "/i.tar: no such file"},
		`job "j" {
  input  { path = "hdfs:///in" }
  output { path = "hdfs:///out" }
  stage "map" {
    kind = "map"
    builtin = ["identity"]
    file "one" { source = "1" }
  }
  stage "reduce" {
    kind = "reduce"
    tasks = 2
    builtin = ["identity"]
    partition_file = "keys"
  }
}`: {`partition_file of stage "reduce": open ` + folder + "/keys: no such file", `file "one" of stage "map": stat `},
	} {
		writeFile(t, filepath.Join(folder, "job.hcl"), text)
		for _, verb := range []string{"validate", "plan", "run"} {
			f := &fakeCoordinator{}
			_, err := f.run(t, t.Context(), "job", verb, filepath.Join(folder, "job.hcl"))
			if exitCode(err) != exitRefused {
				t.Fatalf("%s: exit code %d: %v", verb, exitCode(err), err)
			}
			lines := strings.Split(err.Error(), "\n")
			if !slices.EqualFunc(lines, want, strings.HasPrefix) {
				t.Errorf("%s says\n%v\nwant lines that begin with\n%s", verb, err, strings.Join(want, "\n"))
			}
		}
	}
}

// A plan is of the job as it is, with its image and the sizes of its files, although nothing is uploaded: it was warned that a
// job with an archive had no image.
func TestPlansHaveImagesAndFiles(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{"i.tar": "image", "run.sh": "program", "job.hcl": `
job "j" {
  image = "oci-archive:i.tar"
  stage "s" {
    command = ["./run.sh"]
    file "run.sh" { source = "run.sh" }
  }
}`} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := &fakeCoordinator{}
	if _, err := f.run(t, t.Context(), "job", "plan", filepath.Join(folder, "job.hcl")); err != nil || len(f.planned) != 1 {
		t.Fatalf("%d plans, %v", len(f.planned), err)
	}
	j, err := jobspec.Decode([]byte(f.planned[0].Spec))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&jobspec.Image{Kind: jobspec.ImageOCIArchive, Source: "i.tar", Size: 5}, j.Image); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]jobspec.File{{Name: "run.sh", Source: "run.sh", Size: 7, Mode: 0o600}}, j.Stages[0].Files); d != "" {
		t.Error(d)
	}
}
