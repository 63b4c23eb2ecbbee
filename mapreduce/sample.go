package mapreduce

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/drover-run/drover/internal/keyorder"
)

// Limits of a KeySample.
const (
	maxSampledKeys    = 100_000
	maxSampledKeySize = 1 << 10 // bytes at the start of a key that are sampled
)

// KeySample is a sample of the keys of mappers' lines, from which PartitionKeys chooses the keys
// that separate the reducers. Of more than 100,000 keys it keeps a random part; the same lines
// always give the same part.
type KeySample struct {
	keys  Keys
	order keyorder.Order
	added int
	kept  []string // encoded, if there is an order
	rand  *rand.Rand
}

// NewKeySample returns an empty sample of keys with this number of fields. order has an entry for
// each field, or is nil.
func NewKeySample(fields int, order keyorder.Order) *KeySample {
	return &KeySample{keys: Keys{Fields: fields}, order: order, rand: rand.New(rand.NewPCG(1, 1))}
}

// Add adds the key of a line, its newline removed. O(1).
func (s *KeySample) Add(line []byte) {
	s.added++
	at := len(s.kept)
	if at == maxSampledKeys {
		if at = s.rand.IntN(s.added); at >= maxSampledKeys {
			return
		}
	}
	key, _, _ := s.keys.Split(line)
	key = key[:min(len(key), maxSampledKeySize)]
	if s.order != nil {
		key = s.order.Append(nil, key)
	}
	if at == len(s.kept) {
		s.kept = append(s.kept, string(key))
	} else {
		s.kept[at] = string(key)
	}
}

// Lines returns how many lines were added.
func (s *KeySample) Lines() int { return s.added }

// PartitionKeys returns n-1 keys that divide the sample into n ranges of about the same number of
// lines, as Hadoop's InputSampler does. Each key is shortened as far as it still divides the sample
// at the same place. All lines of one key are in one range. It is an error if there are fewer
// distinct keys than ranges.
func (s *KeySample) PartitionKeys(n int) ([]string, error) {
	slices.Sort(s.kept)
	var starts []int // indexes in kept at which another key begins
	for i, key := range s.kept {
		if i == 0 || s.kept[i-1] != key {
			starts = append(starts, i)
		}
	}
	if len(starts) < n {
		return nil, fmt.Errorf("the sample of %d lines has %d different keys, and %d reducers need at least as many: give a larger sample, or ask for fewer reducers", s.added, len(starts), n)
	}
	keys := make([]string, 0, n-1)
	last := 0 // index in starts of the start of the previous range
	for r := 1; r < n; r++ {
		at := nearest(starts, r*len(s.kept)/n)
		last = min(max(at, last+1), len(starts)-(n-r))
		i := starts[last]
		key, err := s.between(s.kept[i-1], s.kept[i])
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// between returns a short key that separates a kept key from the next one: it is above before and
// not above key.
func (s *KeySample) between(before, key string) (string, error) {
	if s.order == nil {
		return shortestBetween(before, key)
	}
	a, err := s.order.Decode(nil, []byte(before))
	if err != nil {
		return "", err
	}
	b, err := s.order.Decode(nil, []byte(key))
	if err != nil {
		return "", err
	}
	return shortestInOrder(string(a), string(b), s.order)
}

// shortestInOrder returns the first fields of key, up to and including the field in which it
// differs from before. If that field is ascending text, it is shortened too, because a prefix of
// such a field is not above the field.
func shortestInOrder(before, key string, order keyorder.Order) (string, error) {
	a, b := strings.SplitN(before, "\t", len(order)), strings.SplitN(key, "\t", len(order))
	i := 0
	for i < len(a) && a[i] == b[i] { // the longer key comes after the key that ends
		i++
	}
	if i < len(a) && order.IsText(i) {
		end, err := shortestBetween(a[i], b[i])
		if err != nil {
			return "", err
		}
		b[i] = end
	}
	short := strings.Join(b[:i+1], "\t")
	if !utf8.ValidString(short) {
		return "", notTextError(before, key)
	}
	return short, nil
}

// nearest returns the index of the element of an increasing list that is nearest to x.
func nearest(list []int, x int) int {
	i, found := slices.BinarySearch(list, x)
	if !found && (i == len(list) || i > 0 && x-list[i-1] <= list[i]-x) {
		i--
	}
	return i
}

// shortestBetween returns the shortest beginning of key, in UTF-8, that is above the key before it.
func shortestBetween(before, key string) (string, error) {
	same := 0
	for same < len(before) && before[same] == key[same] { // if before is longer than key, it is above key or differs before key ends
		same++
	}
	end := same + 1
	for end < len(key) && !utf8.RuneStart(key[end]) {
		end++
	}
	if begin := key[:end]; utf8.ValidString(begin) {
		return begin, nil
	}
	return "", notTextError(before, key)
}

func notTextError(before, key string) error {
	return fmt.Errorf("the key %.60q is not UTF-8 where it differs from the key before it, %.60q: only text can be a partition key", key, before)
}
