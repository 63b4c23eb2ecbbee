package coordinator

import (
	"context"
	"errors"
	"strings"
	"testing"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// TestANodeIsRefusedAtAnAddressOfEveryMachine: others would reach themselves there, and count its map outputs as lost.
func TestANodeIsRefusedAtAnAddressOfEveryMachine(t *testing.T) {
	service := &nodeService{}
	ctx := context.WithValue(t.Context(), identityKey{}, identity{kind: kindNode, name: "node/n1"})
	for _, address := range []string{":7101", "0.0.0.0:7101", "[::]:7101", "unix:/var/lib/drover/node/node.sock"} {
		_, err := service.Register(ctx, connect.NewRequest(&droverv1.RegisterRequest{Node: &droverv1.NodeInfo{Name: "n1", Address: address}}))
		if !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "its address is") {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, address := range []string{"", "10.0.0.2:7101", "m2.example:7101"} {
		if err := checkNodeAddress(address); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
}
