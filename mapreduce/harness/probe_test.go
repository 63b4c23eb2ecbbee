package harness

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A probe ends when its folder is removed, because the daemon that started it has ended.
func TestProbeEndsWithItsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "count")
	ended := make(chan int, 1)
	go func() { ended <- runProbe(file, "8192") }()
	limit := time.After(20 * time.Second)
	for {
		if b, err := os.ReadFile(file); err == nil && len(b) > 0 {
			break
		}
		select {
		case code := <-ended:
			t.Fatalf("it ended with %d although its file is there", code)
		case <-limit:
			t.Fatal("it does not count")
		case <-time.After(time.Millisecond):
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	select {
	case code := <-ended:
		if code == 0 {
			t.Error("it ended as if it had been asked to")
		}
	case <-limit:
		t.Fatal("it counts on in a file that is gone")
	}
}
