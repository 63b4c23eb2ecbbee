package d

import (
	"testing"

	"example.org/m/c"
)

func TestD(*testing.T) { c.F() }
