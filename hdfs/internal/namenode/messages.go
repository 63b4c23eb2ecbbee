package namenode

import (
	"fmt"
	"io/fs"
	"time"

	pw "google.golang.org/protobuf/encoding/protowire"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/wire"
)

// ExtendedBlock is the identity of one version of one block.
type ExtendedBlock struct {
	Pool       string
	ID         uint64
	Generation uint64
	Length     int64
}

// Encode gives its message.
func (b ExtendedBlock) Encode() []byte {
	return wire.Message(nil).String(1, b.Pool).Uint(2, b.ID).Uint(3, b.Generation).Uint(4, uint64(b.Length))
}

// LocatedBlock is a block with what is needed to read or write it.
type LocatedBlock struct {
	Block        ExtendedBlock
	Offset       int64 // in the file
	Corrupt      bool
	Replicas     []hdfs.Replica
	Nodes        [][]byte // DatanodeInfoProto of each replica, as received
	StorageTypes []uint64 // of each replica, if the server told
	StorageIDs   []string // of each replica, if the server told
	Token        []byte   // TokenProto, as received
}

// Located is the answer to getBlockLocations.
type Located struct {
	FileLength        int64
	UnderConstruction bool
	Blocks            []LocatedBlock
	Unreadable        string // why our client must not read it: encrypted, erasure-coded
}

// Status is HdfsFileStatusProto: Info with the name relative to what was asked.
type Status struct {
	Name       string // empty for the path that was asked itself
	Info       hdfs.Info
	Symlink    bool
	Unreadable string
}

// Defaults is what the server uses for new files.
type Defaults struct {
	BlockSize        int64
	BytesPerChecksum int64
	Replication      int
	Encrypted        bool // data transfer must be encrypted
}

// bad says which message was malformed.
func bad(message string, err error) error {
	return fmt.Errorf("%w: %s: %w", hdfs.ErrProtocol, message, err)
}

func missing(message, field string) error {
	return fmt.Errorf("%w: %s without %s", hdfs.ErrProtocol, message, field)
}

// only gives the one submessage that a response is made of, or nil.
func only(name string, number pw.Number, b []byte) ([]byte, error) {
	var inner []byte
	err := wire.Each(b, func(f wire.Field) error {
		if f.Number != number {
			return nil
		}
		inner = f.Bytes
		if inner == nil {
			inner = []byte{}
		}
		return f.Want(pw.BytesType)
	})
	if err != nil {
		return nil, bad(name, err)
	}
	return inner, nil
}

// result gives the bool that a response is made of.
func result(name string, b []byte) (ok bool, err error) {
	err = wire.Each(b, func(f wire.Field) error {
		if f.Number != 1 {
			return nil
		}
		return f.SetBool(&ok)
	})
	if err != nil {
		return false, bad(name, err)
	}
	return ok, nil
}

func decodeBlock(b []byte) (block ExtendedBlock, err error) {
	seen := 0
	err = wire.Each(b, func(f wire.Field) error {
		switch f.Number {
		case 1:
			seen |= 1
			return f.SetString(&block.Pool)
		case 2:
			seen |= 2
			return f.SetUint(&block.ID)
		case 3:
			seen |= 4
			return f.SetUint(&block.Generation)
		case 4:
			return f.SetLength(&block.Length)
		}
		return nil
	})
	if err != nil {
		return block, bad("block", err)
	}
	if seen != 7 {
		return block, missing("block", "its identity")
	}
	return block, nil
}

func decodeReplica(b []byte) (r hdfs.Replica, err error) {
	var port uint64
	err = wire.Each(b, func(f wire.Field) error {
		switch f.Number {
		case 1: // DatanodeIDProto
			if err := f.Want(pw.BytesType); err != nil {
				return err
			}
			return wire.Each(f.Bytes, func(f wire.Field) error {
				switch f.Number {
				case 1:
					return f.SetString(&r.IP)
				case 2:
					return f.SetString(&r.Host)
				case 4:
					return f.SetUint(&port)
				}
				return nil
			})
		case 8:
			return f.SetString(&r.Rack)
		}
		return nil
	})
	if err != nil {
		return r, bad("DataNode", err)
	}
	if r.IP == "" || port == 0 || port > 65535 {
		return r, missing("DataNode", "address and port")
	}
	r.Port = int(port)
	return r, nil
}

// maxReplicas is above dfs.replication.max (512): what a block may name.
const maxReplicas = 1024

func decodeLocatedBlock(b []byte) (located LocatedBlock, err error) {
	identified := false
	err = wire.Each(b, func(f wire.Field) (err error) {
		switch f.Number {
		case 1:
			identified = true
			located.Block, err = decodeBlock(f.Bytes)
			return err
		case 2:
			return f.SetLength(&located.Offset)
		case 3:
			if len(located.Replicas) == maxReplicas {
				return fmt.Errorf("more than %d replicas", maxReplicas)
			}
			replica, err := decodeReplica(f.Bytes)
			located.Replicas = append(located.Replicas, replica)
			located.Nodes = append(located.Nodes, append([]byte{}, f.Bytes...))
			return err
		case 4:
			return f.SetBool(&located.Corrupt)
		case 5:
			return f.SetBytes(&located.Token)
		case 7:
			return storageTypes(f, &located.StorageTypes)
		case 8:
			if len(located.StorageIDs) == maxReplicas {
				return fmt.Errorf("more than %d storages", maxReplicas)
			}
			located.StorageIDs = append(located.StorageIDs, string(f.Bytes))
			return f.Want(pw.BytesType)
		}
		return nil
	})
	switch {
	case err != nil:
		return located, bad("located block", err)
	case !identified:
		return located, missing("located block", "its block")
	case located.Offset+located.Block.Length < located.Offset:
		return located, missing("located block", "an end below 2^63")
	}
	return located, nil
}

// storageTypes takes a repeated enum, packed or not.
func storageTypes(f wire.Field, types *[]uint64) error {
	values := f.Bytes
	if f.Type == pw.VarintType {
		values = pw.AppendVarint(nil, f.Varint)
	}
	for len(values) > 0 {
		v, n := pw.ConsumeVarint(values)
		if n < 0 || len(*types) == maxReplicas {
			return fmt.Errorf("%w: storage types", wire.ErrMalformed)
		}
		*types, values = append(*types, v), values[n:]
	}
	return nil
}

// decodeLocated takes a GetBlockLocationsResponseProto; nil means no such file.
func decodeLocated(b []byte) (*Located, error) {
	inner, err := only("getBlockLocations response", 1, b)
	if err != nil || inner == nil {
		return nil, err
	}
	out := &Located{}
	err = wire.Each(inner, func(f wire.Field) error {
		switch f.Number {
		case 1:
			return f.SetLength(&out.FileLength)
		case 2:
			block, err := decodeLocatedBlock(f.Bytes)
			out.Blocks = append(out.Blocks, block)
			return err
		case 3:
			return f.SetBool(&out.UnderConstruction)
		case 6:
			out.Unreadable = "it lies in an encryption zone"
		case 7:
			out.Unreadable = "it is erasure-coded"
		}
		return nil
	})
	if err != nil {
		return nil, bad("block locations", err)
	}
	end := int64(-1)
	for i := range out.Blocks {
		if out.Blocks[i].Offset < end {
			return nil, missing("block locations", "ascending offsets")
		}
		end = out.Blocks[i].Offset + out.Blocks[i].Block.Length
	}
	return out, nil
}

// File types of HdfsFileStatusProto.
const (
	typeDir     = 1
	typeFile    = 2
	typeSymlink = 3
)

func decodeStatus(b []byte) (s Status, err error) {
	var kind, perm, replication, modified uint64
	err = wire.Each(b, func(f wire.Field) error {
		switch f.Number {
		case 1:
			return f.SetUint(&kind)
		case 2:
			return f.SetString(&s.Name)
		case 3:
			return f.SetLength(&s.Info.LengthBytes)
		case 4: // FsPermissionProto
			return wire.Each(f.Bytes, func(f wire.Field) error {
				if f.Number != 1 {
					return nil
				}
				return f.SetUint(&perm)
			})
		case 5:
			return f.SetString(&s.Info.Owner)
		case 6:
			return f.SetString(&s.Info.Group)
		case 7:
			return f.SetUint(&modified)
		case 10:
			return f.SetUint(&replication)
		case 11:
			return f.SetLength(&s.Info.BlockSizeBytes)
		case 13:
			return f.SetUint(&s.Info.ID)
		case 15:
			s.Unreadable = "it lies in an encryption zone"
		case 17:
			s.Unreadable = "it is erasure-coded"
		}
		return nil
	})
	if err != nil {
		return s, bad("file status", err)
	}
	switch kind {
	case typeDir:
		s.Info.Dir = true
		s.Info.LengthBytes, s.Info.BlockSizeBytes, replication, s.Unreadable = 0, 0, 0, ""
	case typeFile:
	case typeSymlink:
		s.Symlink = true
	default:
		return s, missing("file status", fmt.Sprintf("a known type (%d)", kind))
	}
	s.Info.Perm = fs.FileMode(perm) & fs.ModePerm
	s.Info.ModTime = time.UnixMilli(int64(modified)).UTC()
	s.Info.Replication = int(min(replication, 1<<15))
	return s, nil
}

// decodeListing takes a GetListingResponseProto; found is false if there is no
// such directory.
func decodeListing(b []byte) (entries []Status, remaining uint64, found bool, err error) {
	inner, err := only("getListing response", 1, b)
	if err != nil || inner == nil {
		return nil, 0, false, err
	}
	err = wire.Each(inner, func(f wire.Field) error {
		switch f.Number {
		case 1:
			status, err := decodeStatus(f.Bytes)
			entries = append(entries, status)
			return err
		case 2:
			return f.SetUint(&remaining)
		}
		return nil
	})
	if err != nil {
		return nil, 0, false, bad("listing", err)
	}
	return entries, remaining, true, nil
}

func decodeDefaults(b []byte) (d Defaults, err error) {
	inner, err := only("getServerDefaults response", 1, b)
	if err != nil {
		return d, err
	}
	var replication uint64
	err = wire.Each(inner, func(f wire.Field) error {
		switch f.Number {
		case 1:
			return f.SetLength(&d.BlockSize)
		case 2:
			return f.SetLength(&d.BytesPerChecksum)
		case 4:
			return f.SetUint(&replication)
		case 6:
			return f.SetBool(&d.Encrypted)
		}
		return nil
	})
	if err != nil {
		return d, bad("server defaults", err)
	}
	if d.BlockSize <= 0 || d.BytesPerChecksum <= 0 || d.BytesPerChecksum > 1<<20 || replication == 0 || replication > 1<<15 {
		return d, missing("server defaults", "block size, checksum size and replication")
	}
	d.Replication = int(replication)
	return d, nil
}
