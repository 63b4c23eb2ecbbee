package shuffle

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// Prefix is the path below which a node serves map outputs.
const Prefix = "/shuffle/"

const (
	headerPartition = "Drover-Partition"
	headerCodec     = "Drover-Codec"
)

// OutputKey identifies a map output by the attempt that made it. It is not the API's AttemptKey:
// the helper of every task starts with this package, and with the API's messages and Prometheus its
// start would take half as long again.
type OutputKey struct {
	Job                       uint64
	Stage, Task, Attempt, Run int32
}

// Path returns the path of a partition of a map output.
func Path(k OutputKey, partition int) string {
	return fmt.Sprintf("%s%d/%d/%d.%d.%d/%d", Prefix, k.Job, k.Stage, k.Task, k.Attempt, k.Run, partition)
}

// parsePath is the inverse of Path, and accepts nothing else.
func parsePath(path string) (k OutputKey, partition int, ok bool) {
	rest, found := strings.CutPrefix(path, Prefix)
	part := strings.Split(rest, "/")
	if !found || len(part) != 4 {
		return OutputKey{}, 0, false
	}
	run := strings.Split(part[2], ".")
	if len(run) != 3 {
		return OutputKey{}, 0, false
	}
	job, err := strconv.ParseUint(part[0], 10, 64)
	if err != nil {
		return OutputKey{}, 0, false
	}
	var v [5]int64
	for i, s := range []string{part[1], run[0], run[1], run[2], part[3]} {
		if v[i], err = strconv.ParseInt(s, 10, 32); err != nil || v[i] < 0 {
			return OutputKey{}, 0, false
		}
	}
	k = OutputKey{Job: job, Stage: int32(v[0]), Task: int32(v[1]), Attempt: int32(v[2]), Run: int32(v[3])}
	partition = int(v[4])
	return k, partition, Path(k, partition) == path
}

// proof proves that the caller knows the job's token.
func proof(token, path string) string {
	m := hmac.New(sha256.New, []byte(token))
	m.Write([]byte(path))
	return "Bearer " + hex.EncodeToString(m.Sum(nil))
}

func verifyProof(header, token, path string) bool {
	return token != "" && hmac.Equal([]byte(header), []byte(proof(token, path)))
}
