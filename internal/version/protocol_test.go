package version

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/fault"
)

func TestNeighbouringProtocols(t *testing.T) {
	for name, c := range map[string]struct {
		ours, theirs uint32
		want         string // in the refusal; "" for none
	}{
		"the same":                       {5, 5, ""},
		"the one before":                 {5, 4, ""},
		"the next":                       {5, 6, ""},
		"two before":                     {5, 3, "upgrade node n1"},
		"two ahead":                      {5, 7, "upgrade the coordinator"},
		"the first beside a build of 0":  {1, 0, ""},
		"a build of 0 beside the second": {2, 0, "upgrade node n1"},
		"the largest":                    {5, math.MaxUint32, "upgrade the coordinator"},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkProtocol("the coordinator", c.ours, "node n1", c.theirs)
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, fault.Unsupported) || !strings.HasSuffix(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
