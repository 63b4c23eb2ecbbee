package mapreduce

import (
	"fmt"
	"strings"
)

// enumNames holds the words for the values 1..n of a closed set.
type enumNames []string

func (ns enumNames) name(set string, v int) string {
	if v < 1 || v > len(ns) {
		return fmt.Sprintf("%s(%d)", set, v)
	}
	return ns[v-1]
}

func (ns enumNames) marshal(set string, v int) ([]byte, error) {
	if v < 1 || v > len(ns) {
		return nil, fmt.Errorf("mapreduce: %s %d is not one of %s", set, v, strings.Join(ns, ", "))
	}
	return []byte(ns[v-1]), nil
}

func (ns enumNames) parse(set string, b []byte) (int, error) {
	for i, n := range ns {
		if n == string(b) {
			return i + 1, nil
		}
	}
	return 0, fmt.Errorf("mapreduce: %s %q is not one of %s", set, b, strings.Join(ns, ", "))
}

// Kind is the kind of a task. The zero value is invalid.
type Kind int

// The kinds of task.
const (
	KindMap    Kind = iota + 1 // lines of a split in, sorted partitions (or, without reducers, an output file) out
	KindReduce                 // sorted partitions in, an output file out
	KindGroup                  // a plain command: no input, its stdout is a log
)

var kindNames = enumNames{"map", "reduce", "group"}

func (k Kind) String() string                { return kindNames.name("kind", int(k)) }
func (k Kind) MarshalText() ([]byte, error)  { return kindNames.marshal("kind", int(k)) }
func (k *Kind) UnmarshalText(b []byte) error { return unmarshalEnum(kindNames, "kind", b, k) }

// ExitClass classifies how a task ended and whose failure it was. The zero
// value is invalid, so that a Result that was never filled in does not look like
// success.
type ExitClass int

// The exit classes. The coordinator decides which of them use up an attempt of the task: failures
// of the program, lack of space, and unreadable input, unless a reduce task names the map outputs
// that it misses.
const (
	ClassOK       ExitClass = iota + 1 // the task is done
	ClassUserExit                      // the program ended with a non-zero status or by a signal
	ClassUserData                      // input or output violates the format of the program or codec
	ClassQuota                         // no space left, or over the disk quota of the attempt
	ClassSpec                          // the TaskSpec is invalid
	ClassInput                         // the split or the partitions did not arrive, or arrived damaged
	ClassIO                            // reading or writing local files failed
	ClassKilled                        // the harness received SIGTERM or SIGINT
	ClassInternal                      // a bug in the harness
)

var classNames = enumNames{"ok", "user_exit", "user_data", "quota", "spec", "input", "io", "killed", "internal"}

func (c ExitClass) String() string                { return classNames.name("class", int(c)) }
func (c ExitClass) MarshalText() ([]byte, error)  { return classNames.marshal("class", int(c)) }
func (c *ExitClass) UnmarshalText(b []byte) error { return unmarshalEnum(classNames, "class", b, c) }

// Exit codes of the harness. They give the class even if the Result could not
// be written. Any other code, e.g. 137, means that the harness was killed.
const (
	exitOK       = 0
	exitUser     = 10 // ClassUserExit, ClassUserData
	exitQuota    = 11 // ClassQuota
	ExitSpec     = 12 // ClassSpec
	exitInput    = 13 // ClassInput
	exitIO       = 14 // ClassIO
	exitInternal = 15 // ClassInternal
	ExitKilled   = 143
)

// ExitCode returns the exit code of the harness for class c.
func (c ExitClass) ExitCode() int {
	switch c {
	case ClassOK:
		return exitOK
	case ClassUserExit, ClassUserData:
		return exitUser
	case ClassQuota:
		return exitQuota
	case ClassSpec:
		return ExitSpec
	case ClassInput:
		return exitInput
	case ClassIO:
		return exitIO
	case ClassKilled:
		return ExitKilled
	case ClassInternal:
		return exitInternal
	default:
		return exitInternal
	}
}

// ClassOfExitCode is the inverse of ExitCode, for a daemon that found no Result.
// ok is false for a code that the harness never returns.
func ClassOfExitCode(code int) (class ExitClass, ok bool) {
	switch code {
	case exitOK:
		return ClassOK, true
	case exitUser:
		return ClassUserExit, true
	case exitQuota:
		return ClassQuota, true
	case ExitSpec:
		return ClassSpec, true
	case exitInput:
		return ClassInput, true
	case exitIO:
		return ClassIO, true
	case exitInternal:
		return ClassInternal, true
	case ExitKilled:
		return ClassKilled, true
	default:
		return 0, false
	}
}

// Codec names a compression. The zero value is invalid; every piece of a split
// states its codec.
type Codec int

// The codecs. Input may use all of them; output and map output use none or zstd.
// CodecDeflate is the zlib stream that Hadoop's default codec writes.
const (
	CodecNone Codec = iota + 1
	CodecGzip
	CodecBzip2
	CodecZstd
	CodecDeflate
)

var codecNames = enumNames{"none", "gzip", "bzip2", "zstd", "deflate"}

func (c Codec) String() string                { return codecNames.name("codec", int(c)) }
func (c Codec) MarshalText() ([]byte, error)  { return codecNames.marshal("codec", int(c)) }
func (c *Codec) UnmarshalText(b []byte) error { return unmarshalEnum(codecNames, "codec", b, c) }

// CodecOf returns the codec for a file name's extension. An extension of an
// unsupported compression is an error: read as text, such a file would produce
// garbage that looks like a result.
func CodecOf(path string) (Codec, error) {
	i := strings.LastIndexAny(path, "./")
	if i < 0 || path[i] == '/' {
		return CodecNone, nil
	}
	switch ext := strings.ToLower(path[i:]); ext {
	case ".gz":
		return CodecGzip, nil
	case ".bz2":
		return CodecBzip2, nil
	case ".zst":
		return CodecZstd, nil
	case ".deflate":
		return CodecDeflate, nil
	case ".xz", ".lz4", ".lzo", ".snappy", ".z", ".br", ".lzma", ".7z", ".zip":
		return 0, fmt.Errorf("mapreduce: input %s: compression %s is not supported; use .gz, .bz2, .zst or .deflate, or store it uncompressed", path, ext)
	default:
		return CodecNone, nil
	}
}

func unmarshalEnum[T ~int](ns enumNames, set string, b []byte, to *T) error {
	v, err := ns.parse(set, b)
	*to = T(v)
	return err
}
