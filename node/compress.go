package node

import (
	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/mapreduce/sortmerge"
)

// What the encoder of map outputs does to text, as BenchmarkWriteText of mapreduce/sortmerge
// measures it (MB/cpu-s and ratio of codec=zstd), rounded down.
const (
	compressBytesPerS = 200e6 // uncompressed bytes of one core; the encoder uses no second one
	compressRatio     = 2.5   // uncompressed bytes that become one byte
)

// minMapMemoryToCompress is the demand of a map task in bytes below which "auto" compresses nothing: its
// memory for sorting would not be twice that of the encoder.
const minMapMemoryToCompress = 2 * sortmerge.EncoderBytes * sortMemoryDivisor

// mapOutputCodec returns how a map task stores its output. A choice that this node does not know, of
// a newer coordinator, is not compressed: every reducer reads that.
func (c *Config) mapOutputCodec(spec *droverv1.TaskSpec) mapreduce.Codec {
	limits := c.limitsOf(spec)
	if c.Enforcer == nil {
		limits.io = 0 // nothing limits it
	}
	switch jobspec.Compression(spec.GetCompressMapOutput()) {
	case jobspec.CompressZstd:
		return mapreduce.CodecZstd
	case jobspec.CompressAuto:
		if spec.GetDemand().GetMemory() >= minMapMemoryToCompress && compressingIsFaster(limits.io, limits.CPU) {
			return mapreduce.CodecZstd
		}
	}
	return mapreduce.CodecNone
}

// compressingIsFaster reports whether a task with this disk rate in bytes per second, 0 for no
// limit, and this share of the processor in millicores stores text sooner if it first compresses
// it. Compressing and writing are taken to be one after the other, which favours plain bytes.
func compressingIsFaster(bytesPerS, millicores int64) bool {
	if bytesPerS <= 0 || millicores <= 0 {
		return false
	}
	disk := float64(bytesPerS)
	encoder := compressBytesPerS * float64(min(millicores, 1000)) / 1000
	return 1/encoder+1/(disk*compressRatio) < 1/disk
}
