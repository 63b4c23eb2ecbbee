package containerd

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// inventoryOf returns an inventory with the given message.
func inventoryOf(message []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, inventoryMagic)
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(message))), message...)
}

// lockMethod returns the last value of the field in an inventory, as criu reads it.
func lockMethod(t *testing.T, inventory []byte) uint64 {
	t.Helper()
	message := inventory[inventoryHeader:]
	if got := binary.LittleEndian.Uint32(inventory[4:]); int(got) != len(message) {
		t.Fatalf("the length is %d, the message has %d bytes", got, len(message))
	}
	method := uint64(99)
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			t.Fatal(protowire.ParseError(n))
		}
		value := message[n:]
		if field == networkLockMethod {
			method, _ = protowire.ConsumeVarint(value)
		}
		m := protowire.ConsumeFieldValue(field, kind, value)
		if m < 0 {
			t.Fatal(protowire.ParseError(m))
		}
		message = value[m:]
	}
	return method
}

func TestRestoresUnlockNoNetwork(t *testing.T) {
	// Version 2, root's ids, and as method iptables, as criu 4.1.1 writes it.
	real := inventoryOf([]byte{0x08, 2, 0x10, 1, 0x1a, 2, 0x08, 1, 0x20, 1, 0x58, 0, 0x6a, 3, 'r', 'u', 'n'})
	image := t.TempDir()
	file := filepath.Join(image, inventoryImage)
	for name, c := range map[string]struct {
		file  []byte
		wants bool
	}{
		"criu's":                  {real, true},
		"one of an earlier criu":  {inventoryOf([]byte{0x08, 1}), true},
		"another file":            {bytes.Repeat([]byte{7}, 40), false},
		"a truncated one":         {real[:len(real)-1], false},
		"a header without a body": {real[:5], false},
		"an empty file":           {nil, false},
	} {
		if err := os.WriteFile(file, c.file, 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 { // an interrupted Checkpoint repeats it
			skipNetworkUnlock(image)
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !c.wants {
			if !bytes.Equal(got, c.file) {
				t.Errorf("%s: it was changed", name)
			}
			continue
		}
		if m := lockMethod(t, got); m != networkLockSkipped || !bytes.HasPrefix(got[inventoryHeader:], c.file[inventoryHeader:]) || len(got) > len(c.file)+2 {
			t.Errorf("%s: method %d, %d bytes of %d", name, m, len(got), len(c.file))
		}
	}
	if left, err := os.ReadDir(image); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
}
