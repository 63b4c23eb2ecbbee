package ui

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"hash/crc32"
	"io"
	"sync"
)

// packed is text that was compressed once, to be written to many streams: its
// blocks refer to nothing before them.
type packed struct {
	text   []byte
	blocks []byte // deflated, ends at a byte, not final
}

// compressors are kept, for each has a megabyte of tables.
var compressors = sync.Pool{New: func() any {
	z, _ := flate.NewWriter(nil, flate.BestSpeed) // the level is valid
	return z
}}

func newPacked(text []byte) *packed {
	z := compressors.Get().(*flate.Writer)
	defer compressors.Put(z)
	var b bytes.Buffer
	z.Reset(&b)
	_, _ = z.Write(text) // a buffer takes everything
	_ = z.Flush()        // as above
	return &packed{text, b.Bytes()}
}

// packedWriter writes packed texts one after another as one gzip stream (RFC 1952).
type packedWriter struct {
	w    io.Writer
	crc  uint32
	size uint32 // modulo 2^32, as the format wants
	head []byte // not yet written
}

func newPackedWriter(w io.Writer) *packedWriter {
	const deflate, unknownSystem = 8, 255
	return &packedWriter{w: w, head: []byte{0x1f, 0x8b, deflate, 0, 0, 0, 0, 0, 0, unknownSystem}}
}

// write writes a text.
func (z *packedWriter) write(p *packed) error {
	if z.head != nil {
		if _, err := z.w.Write(z.head); err != nil {
			return err
		}
		z.head = nil
	}
	z.crc, z.size = crc32.Update(z.crc, crc32.IEEETable, p.text), z.size+uint32(len(p.text))
	_, err := z.w.Write(p.blocks)
	return err
}

// close ends the stream: an empty final block, the sum and the size.
func (z *packedWriter) close() error {
	if err := z.write(&packed{blocks: []byte{1, 0, 0, 0xff, 0xff}}); err != nil {
		return err
	}
	_, err := z.w.Write(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, z.crc), z.size))
	return err
}
