package d

import "testing"

func TestNothing(t *testing.T) {}
