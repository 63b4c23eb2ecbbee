package hdfs_test

import (
	"errors"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/fuzztest"
)

func TestParseURI(t *testing.T) {
	for raw, want := range map[string]hdfs.URI{
		"hdfs:///books/*.txt":        {Scheme: hdfs.SchemeHDFS, Path: "/books/*.txt"},
		"hdfs://nn:8020/a":           {Scheme: hdfs.SchemeHDFS, Authority: "nn:8020", Path: "/a"},
		"HDFS://nn:8020/a//b/./c/":   {Scheme: hdfs.SchemeHDFS, Authority: "nn:8020", Path: "/a/b/c"},
		"hdfs://cluster1/":           {Scheme: hdfs.SchemeHDFS, Authority: "cluster1", Path: "/"},
		"hdfs://[::1]:8020/a":        {Scheme: hdfs.SchemeHDFS, Authority: "[::1]:8020", Path: "/a"},
		"file:///tmp/a%20b?c#d":      {Scheme: hdfs.SchemeLocal, Path: "/tmp/a%20b?c#d"},
		"hdfs:///a/{b,c}/[x-z]?.txt": {Scheme: hdfs.SchemeHDFS, Path: "/a/{b,c}/[x-z]?.txt"},
	} {
		got, err := hdfs.ParseURI(raw)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", raw, got, err, want)
		}
		if again, err := hdfs.ParseURI(got.String()); err != nil || again != got {
			t.Errorf("%s does not parse back: %+v %v", got, again, err)
		}
	}
	for raw, part := range map[string]string{
		"":                    "no scheme",
		"/books":              "no scheme",
		"s3://bucket/a":       `"s3" is unknown`,
		"hdfs://nn:8020":      "no absolute path",
		"hdfs://nn:/a":        "lacks the port",
		"hdfs://a b/c":        "not host:port",
		"hdfs://user@nn/a":    "not host:port",
		"hdfs://nn:http/a":    "not host:port",
		"file://tmp/a":        "is a slash missing",
		"hdfs:///a/../b":      "goes up",
		"hdfs:///a\x00b":      "zero byte",
		"hdfs://:8020/a":      "not host:port",
		"file:///" + longPath: "longer than",
	} {
		_, err := hdfs.ParseURI(raw)
		if !errors.Is(err, hdfs.ErrInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("%q: %v, want it to say %q", raw[:min(len(raw), 40)], err, part)
		}
	}
}

var longPath = strings.Repeat("x", 40_000)

func FuzzParseURI(f *testing.F) {
	f.Add("hdfs://nn:8020/a/*")
	f.Add("file:///a/{b,c}")
	fuzztest.Run(f, func(t *testing.T, raw string) {
		u, err := hdfs.ParseURI(raw)
		if err != nil {
			if !errors.Is(err, hdfs.ErrInvalid) {
				t.Errorf("error without a class: %v", err)
			}
			return
		}
		if again, err := hdfs.ParseURI(u.String()); err != nil || again != u {
			t.Errorf("%q: %+v does not parse back: %+v %v", raw, u, again, err)
		}
		if u.Path != path.Clean(u.Path) || !strings.HasPrefix(u.Path, "/") {
			t.Errorf("path %q", u.Path)
		}
	})
}

func TestIsWithin(t *testing.T) {
	for _, c := range []struct {
		path, dir string
		want      bool
	}{
		{"/a", "/", true}, {"/a/b", "/a", true}, {"/a", "/a", true}, {"/ab", "/a", false}, {"/", "/a", false}, {"/a", "/a/b", false},
	} {
		if got := hdfs.IsWithin(c.path, c.dir); got != c.want {
			t.Errorf("%s within %s: %v", c.path, c.dir, got)
		}
	}
}

func TestErrorClasses(t *testing.T) {
	for _, err := range []error{hdfs.ErrSafeMode, hdfs.ErrStandby, hdfs.ErrUnavailable} {
		if !hdfs.Retryable(err) {
			t.Errorf("%v is not retryable", err)
		}
	}
	for _, err := range []error{nil, hdfs.ErrNotExist, hdfs.ErrBlockMissing, hdfs.ErrPermission, hdfs.ErrChanged} {
		if hdfs.Retryable(err) {
			t.Errorf("%v is retryable", err)
		}
	}
	if errors.Is(hdfs.ErrSafeMode, hdfs.ErrStandby) {
		t.Error("safe mode is standby")
	}
}

func TestWaitNoticeString(t *testing.T) {
	w := hdfs.WaitNotice{Address: "nn:8020", Reason: "safe mode", Remaining: 12*time.Second + 300*time.Millisecond}
	if got, want := w.String(), "waiting for the NameNode at nn:8020 (safe mode), 12 s left"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestClampRange(t *testing.T) {
	for _, c := range []struct{ offset, length, file, from, to int64 }{
		{0, -1, 10, 0, 10}, {3, 4, 10, 3, 7}, {3, 100, 10, 3, 10}, {10, 5, 10, 10, 10}, {50, -1, 10, 10, 10}, {5, 1<<63 - 1, 10, 5, 10}, {0, 0, 10, 0, 0},
	} {
		from, to, err := hdfs.ClampRange(c.offset, c.length, c.file)
		if err != nil || from != c.from || to != c.to {
			t.Errorf("%+v: [%d, %d) %v", c, from, to, err)
		}
	}
}
