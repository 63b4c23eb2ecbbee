package containerd

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protowire"
)

// criu's inventory is two little-endian words, which identify the file and hold the
// length of the message that follows.
const (
	inventoryImage     = "inventory.img"
	inventoryMagic     = 0x58313116 // INVENTORY_MAGIC
	inventoryHeader    = 8
	networkLockMethod  = protowire.Number(11) // field of the message
	networkLockSkipped = 2                    // NETWORK_LOCK_SKIP
)

// skipNetworkUnlock changes a dump so that its restore neither locks nor unlocks the
// network, for which criu starts iptables seven times. A restored network namespace is
// new and has no interface that is up until the restore has ended, so there is nothing
// to lock. criu takes the method from the dump; see criuOptions for why it is not set
// there. An inventory of another form stays as it is.
func skipNetworkUnlock(image string) {
	file := filepath.Join(image, inventoryImage)
	old, err := os.ReadFile(file)
	if err != nil {
		return
	}
	changed, ok := withoutNetworkLock(old)
	if !ok {
		return
	}
	tmp := filepath.Join(filepath.Dir(image), inventoryImage+".new") // the image itself has criu's files only
	if os.WriteFile(tmp, changed, 0o600) == nil {
		_ = os.Rename(tmp, file) // without it the restore takes longer
	}
}

// withoutNetworkLock returns an inventory with a method that locks nothing; ok is
// false for one that has it already or has another form.
func withoutNetworkLock(inventory []byte) (changed []byte, ok bool) {
	le := binary.LittleEndian
	if len(inventory) < inventoryHeader || le.Uint32(inventory) != inventoryMagic || int(le.Uint32(inventory[4:])) != len(inventory)-inventoryHeader {
		return nil, false
	}
	added := protowire.AppendVarint(protowire.AppendTag(nil, networkLockMethod, protowire.VarintType), networkLockSkipped)
	if bytes.HasSuffix(inventory, added) {
		return nil, false
	}
	changed = append(bytes.Clone(inventory), added...) // if a field occurs twice, the last one counts
	le.PutUint32(changed[4:], uint32(len(changed)-inventoryHeader))
	return changed, true
}
