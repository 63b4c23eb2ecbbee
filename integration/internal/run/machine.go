package run

import (
	"context"
	"errors"
	"syscall"

	"github.com/drover-run/drover/integration/bed"
)

type machine struct{}

func startMachine(*Config, bed.NodeInfo, int) (*machine, error) { return nil, errors.ErrUnsupported }

func (*machine) await(context.Context) error        { return errors.ErrUnsupported }
func (*machine) stop()                              {}
func (*machine) signal(syscall.Signal) error        { return errors.ErrUnsupported }
func (*machine) link(context.Context, string) error { return errors.ErrUnsupported }
func (*machine) state() (string, error)             { return "", errors.ErrUnsupported }
