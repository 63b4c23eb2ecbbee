package c_test

import (
	"testing"

	"example.org/m/b"
)

func TestC(*testing.T) { b.F() }
