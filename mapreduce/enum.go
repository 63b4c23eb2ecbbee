package mapreduce

import (
	"fmt"
	"strings"
)

// names maps the values 1..n of a closed set to their words.
type names []string

func (ns names) text(set string, v int) string {
	if v < 1 || v > len(ns) {
		return fmt.Sprintf("%s(%d)", set, v)
	}
	return ns[v-1]
}

func (ns names) marshal(set string, v int) ([]byte, error) {
	if v < 1 || v > len(ns) {
		return nil, fmt.Errorf("mapreduce: %s %d is not one of %s", set, v, strings.Join(ns, ", "))
	}
	return []byte(ns[v-1]), nil
}

func (ns names) parse(set string, b []byte) (int, error) {
	for i, n := range ns {
		if n == string(b) {
			return i + 1, nil
		}
	}
	return 0, fmt.Errorf("mapreduce: %s %q is not one of %s", set, b, strings.Join(ns, ", "))
}

// Kind says what a task does with its program. The zero value is invalid.
type Kind int

// The kinds of task.
const (
	KindMap    Kind = iota + 1 // lines of a split in, sorted partitions (or, without reducers, an output file) out
	KindReduce                 // sorted partitions in, an output file out
	KindGroup                  // a plain command: no input, its stdout is a log
)

var kindNames = names{"map", "reduce", "group"}

func (k Kind) String() string                { return kindNames.text("kind", int(k)) }
func (k Kind) MarshalText() ([]byte, error)  { return kindNames.marshal("kind", int(k)) }
func (k *Kind) UnmarshalText(b []byte) error { return unmarshal(kindNames, "kind", b, k) }

// Class says whose failure ended a task. The zero value is invalid, so a
// result that was never filled in is not mistaken for success.
type Class int

// The classes of end. UserFault says which of them count towards the attempts.
const (
	ClassOK       Class = iota + 1 // the task is done
	ClassUserExit                  // the program ended with a non-zero status or by a signal
	ClassUserData                  // input or output is not what the program or format promises
	ClassQuota                     // no space left, or over the disk quota of the attempt
	ClassSpec                      // the TaskSpec is not acceptable
	ClassInput                     // split or partitions did not arrive, or arrived damaged
	ClassIO                        // reading or writing local files failed
	ClassKilled                    // the harness was told to stop
	ClassInternal                  // the harness itself is wrong
)

var classNames = names{"ok", "user_exit", "user_data", "quota", "spec", "input", "io", "killed", "internal"}

func (c Class) String() string                { return classNames.text("class", int(c)) }
func (c Class) MarshalText() ([]byte, error)  { return classNames.marshal("class", int(c)) }
func (c *Class) UnmarshalText(b []byte) error { return unmarshal(classNames, "class", b, c) }

// UserFault reports whether the failure counts towards the attempts of the
// task. The others are the infrastructure's and are tried again for free.
func (c Class) UserFault() bool {
	switch c {
	case ClassUserExit, ClassUserData, ClassQuota:
		return true
	case ClassOK, ClassSpec, ClassInput, ClassIO, ClassKilled, ClassInternal:
		return false
	default:
		panic("mapreduce: unknown " + c.String())
	}
}

// Exit codes of the harness. They say the class even when the Result could not
// be written; a code outside this list (137, say) means that it was killed.
const (
	ExitOK       = 0
	ExitUser     = 10 // ClassUserExit, ClassUserData
	ExitQuota    = 11 // ClassQuota
	ExitSpec     = 12 // ClassSpec
	ExitInput    = 13 // ClassInput
	ExitIO       = 14 // ClassIO
	ExitInternal = 15 // ClassInternal
	ExitKilled   = 143
)

// ExitCode is the status with which the harness ends for a class.
func (c Class) ExitCode() int {
	switch c {
	case ClassOK:
		return ExitOK
	case ClassUserExit, ClassUserData:
		return ExitUser
	case ClassQuota:
		return ExitQuota
	case ClassSpec:
		return ExitSpec
	case ClassInput:
		return ExitInput
	case ClassIO:
		return ExitIO
	case ClassKilled:
		return ExitKilled
	case ClassInternal:
		return ExitInternal
	default:
		return ExitInternal
	}
}

// ClassOfExit is the inverse of ExitCode for a daemon that found no Result.
// ok is false for a code that no harness chooses.
func ClassOfExit(code int) (class Class, ok bool) {
	switch code {
	case ExitOK:
		return ClassOK, true
	case ExitUser:
		return ClassUserExit, true
	case ExitQuota:
		return ClassQuota, true
	case ExitSpec:
		return ClassSpec, true
	case ExitInput:
		return ClassInput, true
	case ExitIO:
		return ClassIO, true
	case ExitInternal:
		return ClassInternal, true
	case ExitKilled:
		return ClassKilled, true
	default:
		return 0, false
	}
}

// Codec names a compression. The zero value is invalid in a spec; a piece of
// a split always states its codec.
type Codec int

// The codecs. Input may use all, output and map output none and zstd.
const (
	CodecNone Codec = iota + 1
	CodecGzip
	CodecBzip2
	CodecZstd
)

var codecNames = names{"none", "gzip", "bzip2", "zstd"}

func (c Codec) String() string                { return codecNames.text("codec", int(c)) }
func (c Codec) MarshalText() ([]byte, error)  { return codecNames.marshal("codec", int(c)) }
func (c *Codec) UnmarshalText(b []byte) error { return unmarshal(codecNames, "codec", b, c) }

// CodecOf chooses the codec by the end of a file's name. Names that say a
// compression which is not supported are an error: read as text they would
// give garbage that looks like a result.
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
	case ".xz", ".lz4", ".lzo", ".snappy", ".z", ".br", ".lzma", ".7z", ".zip":
		return 0, fmt.Errorf("mapreduce: input %s: compression %s is not supported; use .gz, .bz2 or .zst, or store it uncompressed", path, ext)
	default:
		return CodecNone, nil
	}
}

func unmarshal[T ~int](ns names, set string, b []byte, to *T) error {
	v, err := ns.parse(set, b)
	*to = T(v)
	return err
}
