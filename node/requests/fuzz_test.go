package requests

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/hdfs/fake"
	"github.com/drover-run/drover/internal/fuzztest"
)

type noLogs struct{}

func (noLogs) LogsOf(uint64) []JobLog { return nil }

// FuzzRequest performs what the coordinator may ask of a node in a file system: it is done or
// refused, and its answer, which becomes a message, is bounded.
func FuzzRequest(f *testing.F) {
	for _, r := range []*droverv1.NodeRequest{
		locate(1, 0, 10, "hdfs:///in/*"), locate(2, 3, 1, "hdfs:///in", "hdfs:///in/{a,b}"), check(3, true),
		{Id: 4, Operation: &droverv1.NodeRequest_CommitOutput{CommitOutput: &droverv1.CommitOutputRequest{}}},
		{Id: 5, Operation: &droverv1.NodeRequest_DeletePath{DeletePath: &droverv1.DeletePathRequest{Path: "hdfs:///in/a"}}},
		{Id: 6, TimeoutMs: -1, Operation: &droverv1.NodeRequest_GatherLogs{GatherLogs: &droverv1.GatherLogsRequest{Job: 1, Path: "hdfs:///logs"}}},
	} {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		r := &droverv1.NodeRequest{}
		if proto.Unmarshal(b, r) != nil {
			return
		}
		fs := fake.New(fake.Options{})
		for _, name := range []string{"/in/a", "/in/b"} {
			write(t, fs, name, 4)
		}
		s := NewServer(singleFS{fs}, noLogs{}, func() {}, func(string, error) {})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		answer, _ := s.execute(ctx, r)
		if n := proto.Size(answer); n > 1<<20 {
			t.Errorf("an answer of %d bytes", n)
		}
	})
}
