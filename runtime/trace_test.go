package runtime

import (
	"context"
	"slices"
	"testing"
	"time"
)

func TestPartsAreHeardInTheOrderOfTheirEnds(t *testing.T) {
	var heard []string
	ctx := WithTrace(context.Background(), func(part string, took time.Duration) {
		if took < 0 {
			t.Errorf("%s took %s", part, took)
		}
		heard = append(heard, part)
	})
	func() {
		defer Part(ctx, "all")()
		Part(ctx, "first")()
		Part(ctx, "second")()
	}()
	Part(context.Background(), "nobody hears")()
	if want := []string{"first", "second", "all"}; !slices.Equal(heard, want) {
		t.Errorf("heard %v, want %v", heard, want)
	}
}
