package a

import (
	"os"
	"testing"

	"example.org/m/b"
)

type counter interface{ count() int }

type long struct{}

func (long) count() int { return b.Rounds() }

type plain struct{}

func (plain) count() int { return 1 }

func newCounter() counter { return long{} }

func helper() bool { return testing.Short() }

var table = []func() bool{helper}

func TestDirect(t *testing.T) {
	if testing.Short() {
		t.Log("short")
	}
}

func TestThroughFunction(t *testing.T)  { t.Log(helper()) }
func TestThroughVariable(t *testing.T)  { t.Log(table[0]()) }
func TestThroughInterface(t *testing.T) { t.Log(newCounter().count()) }
func TestThroughPackage(t *testing.T)   { t.Log(b.Rounds()) }
func TestSame(t *testing.T)             { t.Log(b.Same()) }
func TestPlain(t *testing.T)            { t.Log(plain{}.count()) }
func FuzzDirect(f *testing.F)           { f.Log(helper()) }
func TestSoak(t *testing.T)             { t.Log(os.Getenv("DROVER_SOAK")) }
