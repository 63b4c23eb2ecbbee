package fsys

import (
	"errors"
	"testing"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/fault"
)

func TestOpen(t *testing.T) {
	all := Config{NameNodes: []string{"nn:8020"}, Services: map[string][]string{"prod": {"a:1", "b:1"}}, Local: true}
	for name, c := range map[string]struct {
		config Config
		uri    string
		err    error
	}{
		"the default NameNode":                {all, "hdfs:///a", nil},
		"a NameNode on the list":              {Config{Allowed: []string{"other:9000"}}, "hdfs://other:9000/a", nil},
		"any NameNode":                        {Config{Allowed: []string{"*"}}, "hdfs://other:9000/a", nil},
		"a NameNode not on the list":          {all, "hdfs://other:9000/a", fault.Denied},
		"a name service":                      {all, "hdfs://prod/a", nil},
		"an unknown name service":             {all, "hdfs://test/a", fault.Invalid},
		"no default NameNode":                 {Config{Local: true}, "hdfs:///a", fault.Invalid},
		"local files":                         {all, "file:///a", nil},
		"local files where they are not read": {Config{NameNodes: []string{"nn:8020"}}, "file:///a", fault.Denied},
	} {
		t.Run(name, func(t *testing.T) {
			uri, err := hdfs.ParseURI(c.uri)
			if err != nil {
				t.Fatal(err)
			}
			s := New(c.config, nil)
			defer s.Close()
			first, err := s.Open(uri, "u")
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if c.err != nil {
				return
			}
			if again, err := s.Open(uri, "u"); err != nil || again != first {
				t.Errorf("a second Open gives another file system (%v)", err)
			}
		})
	}
}
