package namenode

import (
	"fmt"
	"io/fs"
	"strings"
	"time"

	pw "google.golang.org/protobuf/encoding/protowire"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/wire"
)

// ExtendedBlock identifies one version of one block.
type ExtendedBlock struct {
	Pool       string
	ID         uint64
	Generation uint64
	Length     int64
}

// Encode returns the encoded ExtendedBlockProto.
func (b ExtendedBlock) Encode() []byte {
	return wire.Message(nil).String(1, b.Pool).Uint(2, b.ID).Uint(3, b.Generation).Uint(4, uint64(b.Length))
}

// LocatedBlock is a block with everything needed to read or write it.
type LocatedBlock struct {
	Block        ExtendedBlock
	Offset       int64 // in the file
	Corrupt      bool
	Replicas     []hdfs.Replica
	Nodes        [][]byte // DatanodeInfoProto of each replica, as received
	StorageTypes []uint64 // of each replica, if the server sent them
	StorageIDs   []string // of each replica, if the server sent them
	Token        []byte   // TokenProto, as received
}

// BlockLocations is the response to getBlockLocations.
type BlockLocations struct {
	FileLength        int64
	UnderConstruction bool
	Blocks            []LocatedBlock
	UnreadableReason  string // why this client must not read the file: encrypted, erasure-coded
}

// FileStatus is HdfsFileStatusProto. Name is relative to the requested path.
type FileStatus struct {
	Name             string // empty for the requested path itself
	Info             hdfs.Info
	Symlink          bool
	UnreadableReason string
}

// ServerDefaults are the NameNode's defaults for new files.
type ServerDefaults struct {
	BlockSize        int64
	bytesPerChecksum int64
	Replication      int
	Encrypted        bool // data transfer must be encrypted
}

// malformedError wraps err with the name of the malformed message.
func malformedError(message string, err error) error {
	return fmt.Errorf("%w: %s: %w", hdfs.ErrProtocol, message, err)
}

func missingFieldError(message, field string) error {
	return fmt.Errorf("%w: %s without %s", hdfs.ErrProtocol, message, field)
}

// soleSubmessage returns the only submessage of a response, which has field number 1, or nil.
func soleSubmessage(name string, b []byte) ([]byte, error) {
	var inner []byte
	err := wire.Each(b, func(f wire.Field) error {
		if f.Number != 1 {
			return nil
		}
		inner = f.Bytes
		if inner == nil {
			inner = []byte{}
		}
		return f.CheckType(pw.BytesType)
	})
	if err != nil {
		return nil, malformedError(name, err)
	}
	return inner, nil
}

// decodeBool decodes a response that consists of a bool.
func decodeBool(name string, b []byte) (ok bool, err error) {
	err = wire.Each(b, func(f wire.Field) error {
		if f.Number != 1 {
			return nil
		}
		return f.SetBool(&ok)
	})
	if err != nil {
		return false, malformedError(name, err)
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
		return block, malformedError("block", err)
	}
	if seen != 7 {
		return block, missingFieldError("block", "its identity")
	}
	return block, nil
}

func decodeReplica(b []byte) (r hdfs.Replica, err error) {
	var port uint64
	err = wire.Each(b, func(f wire.Field) error {
		switch f.Number {
		case 1: // DatanodeIDProto
			if err := f.CheckType(pw.BytesType); err != nil {
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
		return r, malformedError("DataNode", err)
	}
	if r.IP == "" || port == 0 || port > 65535 {
		return r, missingFieldError("DataNode", "address and port")
	}
	r.Port = int(port)
	return r, nil
}

// maxReplicas exceeds dfs.replication.max (512).
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
			return f.CheckType(pw.BytesType)
		}
		return nil
	})
	switch {
	case err != nil:
		return located, malformedError("located block", err)
	case !identified:
		return located, missingFieldError("located block", "its block")
	case located.Offset+located.Block.Length < located.Offset:
		return located, missingFieldError("located block", "an end below 2^63")
	}
	return located, nil
}

// storageTypes decodes a repeated enum, packed or not.
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

// decodeBlockLocations decodes GetBlockLocationsResponseProto; nil: no such file.
func decodeBlockLocations(b []byte) (*BlockLocations, error) {
	inner, err := soleSubmessage("getBlockLocations response", b)
	if err != nil || inner == nil {
		return nil, err
	}
	out := &BlockLocations{}
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
			out.UnreadableReason = "it lies in an encryption zone"
		case 7:
			out.UnreadableReason = "it is erasure-coded"
		}
		return nil
	})
	if err != nil {
		return nil, malformedError("block locations", err)
	}
	end := int64(-1)
	for i := range out.Blocks {
		if out.Blocks[i].Offset < end {
			return nil, missingFieldError("block locations", "ascending offsets")
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

// Limits on the sizes in a NameNode's answers. They keep sums and products, such as 1,000 blocks,
// below 2^63.
const (
	maxFileBytes  = 1 << 60
	maxBlockBytes = 1 << 50
	maxName       = 3 * 8000 // bytes of a name: HDFS allows a path of 8,000 UTF-16 characters
)

func decodeFileStatus(b []byte) (s FileStatus, err error) {
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
			s.UnreadableReason = "it lies in an encryption zone"
		case 17:
			s.UnreadableReason = "it is erasure-coded"
		}
		return nil
	})
	if err != nil {
		return s, malformedError("file status", err)
	}
	if s.Info.LengthBytes > maxFileBytes || s.Info.BlockSizeBytes > maxBlockBytes {
		return s, fmt.Errorf("%w: file status of %d bytes in blocks of %d", hdfs.ErrProtocol, s.Info.LengthBytes, s.Info.BlockSizeBytes)
	}
	switch kind {
	case typeDir:
		s.Info.Dir = true
		s.Info.LengthBytes, s.Info.BlockSizeBytes, replication, s.UnreadableReason = 0, 0, 0, ""
	case typeFile:
	case typeSymlink:
		s.Symlink = true
	default:
		return s, missingFieldError("file status", fmt.Sprintf("a known type (%d)", kind))
	}
	s.Info.Perm = fs.FileMode(perm) & fs.ModePerm
	s.Info.ModTime = time.UnixMilli(int64(modified)).UTC()
	s.Info.Replication = int(min(replication, 1<<15))
	return s, nil
}

// decodeListing decodes GetListingResponseProto; found is false if there is no such
// directory.
func decodeListing(b []byte) (entries []FileStatus, remaining uint64, found bool, err error) {
	inner, err := soleSubmessage("getListing response", b)
	if err != nil || inner == nil {
		return nil, 0, false, err
	}
	err = wire.Each(inner, func(f wire.Field) error {
		switch f.Number {
		case 1:
			status, err := decodeFileStatus(f.Bytes)
			if err == nil && !isEntryName(status.Name) {
				err = fmt.Errorf("entry %.100q", status.Name)
			}
			entries = append(entries, status)
			return err
		case 2:
			return f.SetUint(&remaining)
		}
		return nil
	})
	if err != nil {
		return nil, 0, false, malformedError("listing", err)
	}
	return entries, remaining, true, nil
}

// isEntryName reports whether an entry of a listing may have the name. The name is empty if the
// listed path is a file.
func isEntryName(name string) bool {
	return len(name) <= maxName && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

func decodeDefaults(b []byte) (d ServerDefaults, err error) {
	inner, err := soleSubmessage("getServerDefaults response", b)
	if err != nil {
		return d, err
	}
	var replication uint64
	err = wire.Each(inner, func(f wire.Field) error {
		switch f.Number {
		case 1:
			return f.SetLength(&d.BlockSize)
		case 2:
			return f.SetLength(&d.bytesPerChecksum)
		case 4:
			return f.SetUint(&replication)
		case 6:
			return f.SetBool(&d.Encrypted)
		}
		return nil
	})
	if err != nil {
		return d, malformedError("server defaults", err)
	}
	if d.BlockSize <= 0 || d.bytesPerChecksum <= 0 || d.bytesPerChecksum > 1<<20 || replication == 0 || replication > 1<<15 {
		return d, missingFieldError("server defaults", "block size, checksum size and replication")
	}
	d.Replication = int(replication)
	return d, nil
}
