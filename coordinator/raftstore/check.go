package raftstore

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"

	"github.com/drover-run/drover/internal/boltpages"
	"github.com/drover-run/drover/internal/fault"
)

// CheckVersion reads which version the store in dir has and changes nothing. A
// folder without a store is right. fault.Unsupported: it is of a newer program, or
// an upgrade to one stopped between the two files, unless the version itself is damaged,
// which the message says too. fault.Corrupt: it is damaged.
func CheckVersion(dir string) error {
	versions := map[string]uint32{}
	for _, name := range []string{LogFile, StableFile} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			continue
		}
		v, err := readVersion(path)
		if err != nil {
			return err
		}
		if v >= maxVersion {
			return checkVersion(path, binary.BigEndian.AppendUint32(nil, v))
		}
		versions[name] = v
	}
	log, stable := versions[LogFile], versions[StableFile]
	highest := max(log, stable)
	switch {
	case highest <= schemaVersion:
		return nil
	case log != stable && len(versions) == 2:
		return fault.New(fault.Unsupported, "%s: an upgrade to version %d stopped half way (%s has version %d, %s %d) and this program knows up to %d: start the newer drover once more to finish it; %s", dir, highest, LogFile, log, StableFile, stable, schemaVersion, ifDamaged)
	default:
		return newer(dir, highest)
	}
}

// readVersion reads the version of one file by its pages: the database would end the
// process on a damaged one. 0 for a file that was made and not begun.
func readVersion(path string) (uint32, error) {
	var version uint32
	err := verifyFile(path, func(p *boltpages.File) error {
		_, err := p.Each(metaBucket, func(key, value []byte) error {
			if string(key) == string(versionKey) && len(value) == 4 {
				version = binary.BigEndian.Uint32(value)
			}
			return nil
		})
		return err
	})
	return version, err
}
