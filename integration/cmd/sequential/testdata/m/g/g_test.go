package g

import (
	"sync"
	"testing"
)

func TestG(*testing.T) {
	var w sync.WaitGroup
	w.Go(func() {})
}
