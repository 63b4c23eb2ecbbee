package a_test

import (
	"testing"

	"example.org/m/b"
)

func TestOutside(t *testing.T) { t.Log(b.Rounds()) }
