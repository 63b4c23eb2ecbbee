package runtime

import (
	"context"
	"slices"
	"testing"
	"time"
)

func TestPartsAreTracedInOrderOfCompletion(t *testing.T) {
	var traced []string
	ctx := WithTrace(context.Background(), func(part string, took time.Duration) {
		if took < 0 {
			t.Errorf("%s took %s", part, took)
		}
		traced = append(traced, part)
	})
	func() {
		defer StartPart(ctx, "all")()
		StartPart(ctx, "first")()
		StartPart(ctx, "second")()
	}()
	StartPart(context.Background(), "without a trace")()
	if want := []string{"first", "second", "all"}; !slices.Equal(traced, want) {
		t.Errorf("traced %v, want %v", traced, want)
	}
}
