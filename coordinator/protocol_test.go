package coordinator

import (
	"errors"
	"strings"
	"testing"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/version"
)

// Nodes of neighbouring versions register; one of a later version is refused and
// changes nothing.
func TestRegistrationIsAHandshakeOfVersions(t *testing.T) {
	b, as, base := secure(t)
	for name, c := range map[string]struct {
		protocol uint32
		want     error
	}{
		"n1": {version.Protocol - 1, nil},
		"n2": {version.Protocol, nil},
		"n3": {version.Protocol + 1, nil},
		"n4": {version.Protocol + 2, fault.Unsupported},
	} {
		n := droverv1connect.NewNodeServiceClient(as("node/"+name), base)
		res, err := n.Register(b.ctx, connect.NewRequest(&droverv1.RegisterRequest{Node: coordtest.Info(name), Protocol: c.protocol}))
		if err = wire.FromError(err); !errors.Is(err, c.want) {
			t.Errorf("protocol %d: %v, want %v", c.protocol, err, c.want)
		}
		if err == nil && res.Msg.GetProtocol() != version.Protocol {
			t.Errorf("the coordinator says protocol %d", res.Msg.GetProtocol())
		}
		if err != nil && !strings.HasSuffix(err.Error(), "only neighbours work together: upgrade the coordinator") {
			t.Errorf("protocol %d: %v", c.protocol, err)
		}
	}
	list, err := droverv1connect.NewClientServiceClient(as("user/root"), base).ListNodes(b.ctx, connect.NewRequest(&droverv1.ListNodesRequest{}))
	if err != nil || len(list.Msg.GetNodes()) != 3 {
		t.Errorf("%d nodes, want the 3 neighbours: %v", len(list.Msg.GetNodes()), err)
	}
}
