package node

import (
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/mapreduce"
)

func TestCompressingIsFaster(t *testing.T) {
	for name, c := range map[string]struct {
		bytesPerS, millicores int64
		want                  bool
	}{
		"the default of a task":                {10 << 20, 1000, true},
		"a disk without a limit":               {0, 1000, false},
		"no processor":                         {10 << 20, 0, false},
		"a fast disk":                          {1 << 30, 1000, false},
		"a fast disk and many cores":           {1 << 30, 64_000, false},
		"a tenth of a core at the default":     {10 << 20, 100, true},
		"a twentieth of a core":                {10 << 20, 50, false},
		"the least of both":                    {64 << 10, 10, true},
		"the least processor at the default":   {10 << 20, 10, false},
		"just below what one core can gain by": {119_000_000, 1000, true},
		"just above it":                        {121_000_000, 1000, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := compressingIsFaster(c.bytesPerS, c.millicores); got != c.want {
				t.Errorf("%d bytes/s and %d millicores: %v", c.bytesPerS, c.millicores, got)
			}
		})
	}
}

func TestMapOutputCodec(t *testing.T) {
	slow := &droverv1.Resources{Cpu: 1000, Io: 1 << 20, Memory: minMapMemoryToCompress}
	fast := &droverv1.Resources{Cpu: 1000, Io: 1 << 40, Memory: minMapMemoryToCompress}
	small := &droverv1.Resources{Cpu: 1000, Io: 1 << 20, Memory: minMapMemoryToCompress - 1}
	for name, c := range map[string]struct {
		choice   string
		demand   *droverv1.Resources
		enforced bool
		want     mapreduce.Codec
	}{
		"a coordinator that does not know it": {"", slow, true, mapreduce.CodecNone},
		"auto on a slow disk":                 {"auto", slow, true, mapreduce.CodecZstd},
		"auto on a fast disk":                 {"auto", fast, true, mapreduce.CodecNone},
		"auto without enforcement":            {"auto", slow, false, mapreduce.CodecNone},
		"auto with little memory":             {"auto", small, true, mapreduce.CodecNone},
		"always, with little memory":          {"zstd", small, true, mapreduce.CodecZstd},
		"never":                               {"none", slow, true, mapreduce.CodecNone},
		"always, on a fast disk":              {"zstd", fast, true, mapreduce.CodecZstd},
		"always, without enforcement":         {"zstd", slow, false, mapreduce.CodecZstd},
		"a choice of a newer coordinator":     {"lz4", slow, true, mapreduce.CodecNone},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{}
			if c.enforced {
				cfg.Enforcer = struct{ Enforcer }{}
			}
			if got := cfg.mapOutputCodec(&droverv1.TaskSpec{CompressMapOutput: c.choice, Demand: c.demand}); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
