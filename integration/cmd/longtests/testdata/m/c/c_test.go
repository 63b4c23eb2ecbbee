package c

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if testing.Short() {
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestBelowMain(t *testing.T) {}
