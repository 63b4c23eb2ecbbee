package past

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"

	"google.golang.org/protobuf/proto"
)

// kind says to which bucket a value belongs. The numbers are in the file.
type kind byte

const (
	kindMeta kind = iota + 1
	kindJob
	kindDetails
	kindAttempt
	kindEnd
	kindTenant
	kindUser
	kindState
	kindName
	kindUsage
	kindSample
)

// buckets are the names of all kinds' buckets, in the order of kinds.
var buckets = [...][]byte{nil, []byte("meta"), []byte("jobs"), []byte("details"), []byte("attempts"), []byte("ends"), []byte("tenants"),
	[]byte("users"), []byte("states"), []byte("names"), []byte("usage"), []byte("samples")}

func (k kind) bucket() []byte { return buckets[k] }

func (k kind) known() bool { return k >= kindMeta && k <= kindSample }

const (
	sealHead = 1 + 8
	sealSum  = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
}

// seal returns the value that is stored for a payload.
func seal(k kind, index uint64, key, payload []byte) []byte {
	b := make([]byte, 0, sealHead+len(payload)+sealSum)
	b = append(b, byte(k))
	b = binary.BigEndian.AppendUint64(b, index)
	b = append(b, payload...)
	return binary.BigEndian.AppendUint32(b, checksum(key, b))
}

// unseal checks a value and returns its parts; payload points into value.
func unseal(key, value []byte) (k kind, index uint64, payload []byte, err error) {
	n := len(value) - sealSum
	if n < sealHead {
		return 0, 0, nil, fmt.Errorf("a value of %d bytes for key %x", len(value), key)
	}
	if got, want := checksum(key, value[:n]), binary.BigEndian.Uint32(value[n:]); got != want {
		return 0, 0, nil, fmt.Errorf("the checksum for key %x is %08x, want %08x", key, got, want)
	}
	k = kind(value[0])
	if !k.known() {
		return 0, 0, nil, fmt.Errorf("a value of kind %d for key %x", value[0], key)
	}
	return k, binary.BigEndian.Uint64(value[1:]), value[sealHead:n], nil
}

// open checks a value of a kind and decodes its payload into m.
func open(want kind, key, value []byte, m proto.Message) error {
	k, _, payload, err := unseal(key, value)
	if err == nil && k != want {
		err = fmt.Errorf("a value of bucket %q in bucket %q", k.bucket(), want.bucket())
	}
	if err != nil {
		return err
	}
	return proto.Unmarshal(payload, m)
}

// Keys.

func jobKey(job uint64) []byte { return binary.BigEndian.AppendUint64(nil, job) }

func attemptKey(job uint64, stage, task, attempt int32) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 20), job)
	for _, n := range [...]int32{stage, task, attempt} {
		b = binary.BigEndian.AppendUint32(b, uint32(n))
	}
	return b
}

// stamp is the end of every index's key: when a job ended, and its number.
func stamp(endMS int64, job uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(make([]byte, 0, stampLength), uint64(max(endMS, 0))), job)
}

const stampLength = 16

func unstamp(key []byte) (endMS int64, job uint64) {
	b := key[len(key)-stampLength:]
	return int64(binary.BigEndian.Uint64(b)), binary.BigEndian.Uint64(b[8:])
}

// text returns s as a part of a key, ended by 0.
func text(s string) []byte { return append([]byte(strings.ReplaceAll(s, "\x00", "")), 0) }
