package mapreduce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

// indexVersion is the version of the index file.
const indexVersion = 1

const (
	indexMagic       = "drvindex"
	indexHeaderBytes = 24
	indexEntryBytes  = 40
)

// ErrCorrupt is wrapped by errors about stored bytes that differ from the bytes written. It is a
// failure of the infrastructure: the bytes must be fetched or produced again.
var ErrCorrupt = errors.New("corrupt")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC32C updates the CRC-32C (Castagnoli) sum, 0 at the start, with p.
func CRC32C(sum uint32, p []byte) uint32 { return crc32.Update(sum, castagnoli, p) }

// PartitionRange locates one partition in a data file and holds its checksum.
type PartitionRange struct {
	Offset    int64  `json:"offset"`
	Length    int64  `json:"length"` // stored bytes
	RawLength int64  `json:"raw"`    // bytes of records, uncompressed
	Records   int64  `json:"records"`
	CRC32C    uint32 `json:"crc32c"`            // of the stored bytes
	Largest   uint32 `json:"largest,omitempty"` // bytes of the largest record; 0: unknown, as in files of earlier versions
}

// Index describes a map output: one range for each partition, in order.
type Index struct {
	Codec Codec            `json:"codec"`
	Parts []PartitionRange `json:"parts"`
}

// Encode returns the bytes of the index file.
func (x *Index) Encode() []byte {
	b := make([]byte, 0, indexHeaderBytes+len(x.Parts)*indexEntryBytes+4)
	le := binary.LittleEndian
	b = append(b, indexMagic...)
	b = le.AppendUint32(b, indexVersion)
	b = le.AppendUint32(b, uint32(x.Codec))
	b = le.AppendUint32(b, uint32(len(x.Parts)))
	b = le.AppendUint32(b, 0)
	for _, p := range x.Parts {
		for _, v := range []int64{p.Offset, p.Length, p.RawLength, p.Records} {
			b = le.AppendUint64(b, uint64(v))
		}
		b = le.AppendUint32(b, p.CRC32C)
		b = le.AppendUint32(b, p.Largest)
	}
	return le.AppendUint32(b, CRC32C(0, b))
}

// DecodeIndex decodes an index file. Errors about damage wrap ErrCorrupt.
func DecodeIndex(b []byte) (*Index, error) {
	le := binary.LittleEndian
	if len(b) < indexHeaderBytes+4 || string(b[:8]) != indexMagic {
		return nil, fmt.Errorf("mapreduce: index: %w: no index header", ErrCorrupt)
	}
	if v := le.Uint32(b[8:]); v != indexVersion {
		return nil, fmt.Errorf("mapreduce: index has version %d, this program knows %d", v, indexVersion)
	}
	n := int(le.Uint32(b[16:]))
	if n < 1 || n > MaxReduces || len(b) != indexHeaderBytes+n*indexEntryBytes+4 {
		return nil, fmt.Errorf("mapreduce: index: %w: %d bytes cannot hold %d partitions", ErrCorrupt, len(b), n)
	}
	if CRC32C(0, b[:len(b)-4]) != le.Uint32(b[len(b)-4:]) {
		return nil, fmt.Errorf("mapreduce: index: %w: checksum differs", ErrCorrupt)
	}
	x := &Index{Codec: Codec(le.Uint32(b[12:])), Parts: make([]PartitionRange, n)}
	if err := checkOutputCodec("index codec", x.Codec); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	end := int64(0)
	for i := range x.Parts {
		e := b[indexHeaderBytes+i*indexEntryBytes:]
		p := PartitionRange{Offset: int64(le.Uint64(e)), Length: int64(le.Uint64(e[8:])), RawLength: int64(le.Uint64(e[16:])), Records: int64(le.Uint64(e[24:])), CRC32C: le.Uint32(e[32:]), Largest: le.Uint32(e[36:])}
		if p.Offset != end || p.Length < 0 || p.RawLength < 0 || p.Records < 0 || end+p.Length < end {
			return nil, fmt.Errorf("mapreduce: index: %w: partition %d does not follow the one before", ErrCorrupt, i)
		}
		end += p.Length
		x.Parts[i] = p
	}
	return x, nil
}

// ReadIndex reads an index file.
func ReadIndex(path string) (*Index, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	x, err := DecodeIndex(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return x, nil
}

// WriteIndex writes an index file (temporary name, rename).
func WriteIndex(path string, x *Index) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, x.Encode(), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// Verify reads r to its end and compares length and checksum with the stored
// ones. Call it on a fetched partition before announcing it.
func (p PartitionRange) Verify(r io.Reader) error {
	buf := make([]byte, 256<<10)
	var sum uint32
	var n int64
	for {
		k, err := r.Read(buf)
		sum = CRC32C(sum, buf[:k])
		n += int64(k)
		if n > p.Length || (err == io.EOF && n < p.Length) {
			return fmt.Errorf("mapreduce: partition: %w: %d bytes or more, want %d", ErrCorrupt, n, p.Length)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if sum != p.CRC32C {
		return fmt.Errorf("mapreduce: partition: %w: checksum %08x, want %08x", ErrCorrupt, sum, p.CRC32C)
	}
	return nil
}
