package store

import (
	"fmt"
	"strconv"
	"strings"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// ID names one run of an attempt on a node: <job>.<stage>.<task>.<attempt>.<run>,
// all decimal. It is the name of its folder, its cgroup and its container.
type ID string

// IDOf returns the ID of a key.
func IDOf(k *droverv1.AttemptKey) ID {
	b := make([]byte, 0, 32)
	b = strconv.AppendUint(b, k.GetJob(), 10)
	for _, v := range []int32{k.GetStage(), k.GetTask(), k.GetAttempt(), k.GetRun()} {
		b = append(b, '.')
		b = strconv.AppendInt(b, int64(v), 10)
	}
	return ID(b)
}

// ParseID parses the output of IDOf and nothing else.
func ParseID(s string) (*droverv1.AttemptKey, error) {
	bad := func() (*droverv1.AttemptKey, error) {
		return nil, fault.New(fault.Invalid, "attempt id %q: want <job>.<stage>.<task>.<attempt>.<run>", s)
	}
	part := strings.Split(s, ".")
	if len(part) != 5 {
		return bad()
	}
	job, err := strconv.ParseUint(part[0], 10, 64)
	if err != nil {
		return bad()
	}
	var v [4]int32
	for i := range v {
		n, err := strconv.ParseInt(part[i+1], 10, 32)
		if err != nil || n < 0 {
			return bad()
		}
		v[i] = int32(n)
	}
	k := &droverv1.AttemptKey{Job: job, Stage: v[0], Task: v[1], Attempt: v[2], Run: v[3]}
	if string(IDOf(k)) != s {
		return bad()
	}
	return k, nil
}

// String returns the ID as text.
func (id ID) String() string { return string(id) }

// Key is the inverse of IDOf; it panics on an id that IDOf did not make.
func (id ID) Key() *droverv1.AttemptKey {
	k, err := ParseID(string(id))
	if err != nil {
		panic(fmt.Sprintf("store: %v", err))
	}
	return k
}
