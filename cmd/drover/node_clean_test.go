package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
)

// brokenEngine is an engine in which one container cannot be removed.
type brokenEngine struct{ removed []string }

func (e *brokenEngine) List(context.Context) ([]runtime.Status, error) {
	return []runtime.Status{{ID: "1.0.0.1.1"}, {ID: "stuck"}, {ID: "gone"}}, nil
}

func (e *brokenEngine) Leftovers(context.Context) ([]runtime.Leftover, error) {
	return []runtime.Leftover{{ID: "stuck", Listed: true}, {ID: "9.0.0.1.1"}}, nil
}

func (e *brokenEngine) ListImages(context.Context) ([]runtime.Image, error) {
	return []runtime.Image{{Digest: "sha256:ab"}}, nil
}

func (e *brokenEngine) Remove(_ context.Context, digest string) error {
	e.removed = append(e.removed, digest)
	return nil
}

func (e *brokenEngine) ReleaseImports(context.Context) error {
	e.removed = append(e.removed, "imports")
	return nil
}

func (e *brokenEngine) Delete(_ context.Context, id string) error {
	switch id {
	case "stuck":
		return errors.New("device or resource busy")
	case "gone":
		return fault.New(fault.NotFound, "gone")
	}
	e.removed = append(e.removed, id)
	return nil
}

// One container that stays keeps nothing else from going, and is named.
func TestCleanEngineGoesOn(t *testing.T) {
	e := &brokenEngine{}
	var out strings.Builder
	err := cleanEngine(t.Context(), e, &out)
	if err == nil || err.Error() != "container stuck: device or resource busy" {
		t.Errorf("%v", err)
	}
	if !slices.Equal(e.removed, []string{"1.0.0.1.1", "9.0.0.1.1", "sha256:ab", "imports"}) || !strings.HasPrefix(out.String(), "removed 4 containers and 1 images; 1 could not") {
		t.Errorf("removed %v, said %q", e.removed, out.String())
	}
}
