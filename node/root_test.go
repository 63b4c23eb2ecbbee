package node

import (
	"errors"
	"os"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime/fake"
)

// A tenant without a uid gets no root, unless the node allows it.
func TestRootIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not proved here: that a daemon of root runs no task as root; only root can")
	}
	e := fake.New(nil, nil)
	defer e.Close()
	cfg := &Config{Driver: e.Driver()}
	if _, err := cfg.taskUID(&droverv1.TaskSpec{Tenant: "t"}); !errors.Is(err, fault.Denied) {
		t.Errorf("uid 0: %v", err)
	}
	if uid, err := cfg.taskUID(&droverv1.TaskSpec{Uid: 2001}); err != nil || uid != 2001 {
		t.Errorf("uid 2001: %d, %v", uid, err)
	}
	cfg.AllowRoot = true
	if uid, err := cfg.taskUID(&droverv1.TaskSpec{}); err != nil || uid != 0 {
		t.Errorf("uid 0 where it is allowed: %d, %v", uid, err)
	}
}
